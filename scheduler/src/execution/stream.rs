//! A stream of requests in, a stream of answers out, in order.
//!
//! As many requests are under way as keep every device at work
//! ([`stream_ahead`](Runner::stream_ahead)), each a run of its own. Answers that wait for one
//! before them, or for whoever takes them, count as under way: who takes them slowly holds up the
//! rest, and nothing piles up.

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

/// The first owner that streams are told apart by, far from the numbers of leases: of one owner's
/// requests a device takes the oldest.
const OWNER_FIRST: u64 = 1 << 63;

/// Streams since this process began.
static STREAMS: AtomicU64 = AtomicU64::new(0);

/// What those who run requests and who takes the answers share.
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
    /// Requests that were begun, and whether there are no more of them.
    begun: usize,
    ended: bool,
    /// Answers that were taken.
    taken: usize,
    /// Answers that wait to be taken.
    answers: BTreeMap<usize, Result<RunResult, TaskError>>,
    /// Nothing is begun any more.
    over: bool,
}

/// Ends a line's runs when whoever takes the answers leaves, or one who runs requests panics.
struct EndOnDrop<'a, Requests>(&'a StreamRun<'a, Requests>);

impl Runner {
    /// Sends requests through the devices, each at work on another one where that answers sooner
    /// than one by one, and gives the answers to `take` in order. A device that fails is done
    /// without, as long as others can do its part. When a request fails those before it are
    /// answered, and what is under way behind it is cancelled.
    ///
    /// # Errors
    /// [`TaskError::Request`]: the first request that failed, and why.
    ///
    /// # Panics
    /// If `requests` or `take` panics.
    pub fn stream(
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
                scope.spawn(|| run.work());
            }
            let _ending = EndOnDrop(&run);
            while let Some((request, answer)) = run.next_answer() {
                let ran = answer.map_err(|cause| TaskError::Request {
                    request,
                    cause: Box::new(cause),
                })?;
                timeline.merge(ran.timeline);
                take(ran.outputs);
                run.state().taken += 1;
                run.changed.notify_all();
            }
            Ok(timeline)
        })
    }
}

impl<Requests: Iterator<Item = Tensors>> StreamRun<'_, Requests> {
    /// Runs requests until there are no more.
    fn work(&self) {
        let ending = EndOnDrop(self);
        while let Some((next, number, inputs)) = self.next_request() {
            let task = Task {
                name: format!("request {number}"),
                model: self.model,
                sequence: 0,
                inputs,
            };
            // Nobody begins the one after it before the devices have it.
            let next = Cell::new(Some(next));
            let request = Request {
                stream: &self.stream,
                begun: &|| drop(next.take()),
            };
            let answer = self
                .runner
                .run_request(request, &task, self.precedence, &self.cancel);
            self.state().answers.insert(number, answer);
            self.changed.notify_all();
        }
        // Others may be at work still.
        std::mem::forget(ending);
    }

    /// The next request, as soon as one more may be under way, and what holds back the one after
    /// it.
    fn next_request(&self) -> Option<(MutexGuard<'_, Requests>, usize, Tensors)> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = self.runner.stream_ahead();
        let waits = |state: &mut StreamState| !state.over && state.begun - state.taken >= ahead;
        let state = self.changed.wait_while(self.state(), waits);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if state.over || state.ended {
            return None;
        }
        drop(state);
        let next = requests.next();
        let mut state = self.state();
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
    fn state(&self) -> MutexGuard<'_, StreamState> {
        // Nothing in it is ever half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next answer in order; none if all were taken, or one who runs requests has panicked.
    fn next_answer(&self) -> Option<(usize, Result<RunResult, TaskError>)> {
        let waits = |state: &mut StreamState| {
            let is_last = state.ended && state.taken == state.begun;
            !state.over && !is_last && !state.answers.contains_key(&state.taken)
        };
        let state = self.changed.wait_while(self.state(), waits);
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
        self.0.state().over = true;
        self.0.changed.notify_all();
        self.0.cancel.cancel();
    }
}
