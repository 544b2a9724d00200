//! Runs a stream of requests and returns the answers in order.
//!
//! Enough requests are in progress to keep every device busy
//! ([`stream_ahead`](Runner::stream_ahead)), each as a run of its own. An answer that waits for an
//! earlier one or for its consumer counts as in progress. So a slow consumer slows the stream, and
//! answers do not pile up.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use souk_memory::{ContentId, Tensor};

use super::cancel::Cancel;
use super::error::TaskError;
use super::group::{Request, Stream};
use super::runner::Runner;
use super::task::{Precedence, RunResult, Task};
use super::timeline::Timeline;

/// Tensors by name: a request or an answer.
type Tensors = BTreeMap<String, Tensor>;

/// The first owner number of streams, far above the numbers of leases. The owner matters because a
/// device prefers the oldest request of an owner.
const OWNER_FIRST: u64 = 1 << 63;

/// Number of streams since this process began.
static STREAMS: AtomicU64 = AtomicU64::new(0);

/// The state that the threads with requests share with the consumer of the answers.
struct StreamRun<'a, Requests> {
    runner: &'a Runner,
    model: ContentId,
    requests: Mutex<Requests>,
    stream: Stream,
    precedence: Precedence,
    cancel: Cancel,
    state: Mutex<StreamState>,
    changed: Condvar,
}

#[derive(Default)]
struct StreamState {
    /// Number of started requests, and whether no more will come.
    begun: usize,
    ended: bool,
    /// Number of answers that the consumer has taken.
    taken: usize,
    /// Answers that wait for the consumer.
    answers: BTreeMap<usize, Result<RunResult, TaskError>>,
    /// Whether no more requests can start.
    over: bool,
}

/// Cancels a stream's runs if the consumer leaves or a thread with requests panics.
struct EndOnDrop<'a, Requests>(&'a StreamRun<'a, Requests>);

impl Runner {
    /// Runs requests on the devices, each device on a different one if that is faster than one by
    /// one, and passes the answers to `take` in order. If a device fails, the others do its part if
    /// they can. If a request fails, you still get the answers before it, and the runner cancels
    /// the requests after it.
    ///
    /// # Errors
    /// [`TaskError::Request`] for the first failed request, with its cause.
    ///
    /// # Panics
    /// If `requests` or `take` panics.
    pub fn run_stream(
        &self,
        model: ContentId,
        requests: impl Iterator<Item = Tensors> + Send,
        mut take: impl FnMut(Tensors),
    ) -> Result<Timeline, TaskError> {
        let number = STREAMS.fetch_add(1, Ordering::Relaxed);
        let run = StreamRun {
            runner: self,
            model,
            requests: Mutex::new(requests),
            stream: Stream::default(),
            precedence: Precedence {
                owner: Some(OWNER_FIRST + number),
                ..Precedence::default()
            },
            cancel: Cancel::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        let mut timeline = Timeline::default();
        std::thread::scope(|scope| {
            for _ in 0..self.stream_ahead() {
                scope.spawn(|| run.run_requests());
            }
            let _ending = EndOnDrop(&run);
            while let Some((request, answer)) = run.next_answer() {
                let ran = answer.map_err(|cause| TaskError::Request {
                    request,
                    cause: Box::new(cause),
                })?;
                timeline.merge(ran.timeline);
                take(ran.outputs);
                run.lock_state().taken += 1;
                run.changed.notify_all();
            }
            Ok(timeline)
        })
    }
}

impl<Requests: Iterator<Item = Tensors>> StreamRun<'_, Requests> {
    /// Runs requests until no more come.
    fn run_requests(&self) {
        let ending = EndOnDrop(self);
        while let Some((next, number, inputs)) = self.next_request() {
            let task = Task {
                name: format!("request {number}"),
                model: self.model,
                sequence: 0,
                inputs,
            };
            // The next request must not start before the devices have this one.
            let next = Cell::new(Some(next));
            let request = Request {
                stream: &self.stream,
                begun: &|| drop(next.take()),
            };
            let answer = self
                .runner
                .run_request(request, &task, self.precedence, &self.cancel);
            self.lock_state().answers.insert(number, answer);
            self.changed.notify_all();
        }
        // Other threads can still run requests.
        std::mem::forget(ending);
    }

    /// Waits until one more request can start. Returns it with the lock that holds back the one
    /// after it.
    fn next_request(&self) -> Option<(MutexGuard<'_, Requests>, usize, Tensors)> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = self.runner.stream_ahead();
        let waits = |state: &mut StreamState| !state.over && state.begun - state.taken >= ahead;
        let state = self.changed.wait_while(self.lock_state(), waits);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if state.over || state.ended {
            return None;
        }
        drop(state);
        let next = requests.next();
        let mut state = self.lock_state();
        let Some(inputs) = next else {
            state.ended = true;
            self.changed.notify_all();
            return None;
        };
        state.begun += 1;
        let number = state.begun - 1;
        drop(state);
        Some((requests, number, inputs))
    }
}

impl<Requests> StreamRun<'_, Requests> {
    fn lock_state(&self) -> MutexGuard<'_, StreamState> {
        // Each holder completes its change or makes none.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next answer in order; returns none after the last one, or if a thread with
    /// requests has panicked.
    fn next_answer(&self) -> Option<(usize, Result<RunResult, TaskError>)> {
        let waits = |state: &mut StreamState| {
            let is_last = state.ended && state.taken == state.begun;
            !state.over && !is_last && !state.answers.contains_key(&state.taken)
        };
        let state = self.changed.wait_while(self.lock_state(), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let request = state.taken;
        state
            .answers
            .remove(&request)
            .map(|answer| (request, answer))
    }
}

impl<Requests> Drop for EndOnDrop<'_, Requests> {
    fn drop(&mut self) {
        self.0.lock_state().over = true;
        self.0.changed.notify_all();
        self.0.cancel.cancel();
    }
}
