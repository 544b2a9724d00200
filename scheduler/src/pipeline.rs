//! A line of stages with bounded buffers between them: a stream of requests in, a stream of answers
//! out, in order.
//!
//! Each stage has a thread, so that all work at the same time on different requests. A stage that
//! is ahead waits for room in the buffer behind it, so a slow one holds up what is before it and
//! nothing piles up. Buffers of one request suffice where stages take equally long; more even out
//! stages that vary.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use crate::timeline::{Span, SpanKind, Timeline, UnixMicros};

/// A stage: what it is called in the timeline, and what it does with a request.
pub struct Stage<'a, T, E> {
    /// Its device.
    pub device: String,
    /// What it does.
    pub work: Box<dyn FnMut(T) -> Result<T, E> + Send + 'a>,
}

/// Why a stream ended before its requests did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {request} failed in stage {stage}: {cause}")]
pub struct PipelineError<E> {
    /// Which request, from 0.
    pub request: usize,
    /// Which stage, from 0.
    pub stage: usize,
    /// Why.
    pub cause: E,
}

/// A request on its way, and its number.
type Numbered<T> = (usize, T);

/// What a stage's thread gives when it ends.
type Ended<E> = (Timeline, Option<PipelineError<E>>);

/// Sends `requests` through `stages` and gives each answer to `take`, in the order of the requests.
/// `buffer` requests may wait before each stage. When one fails, those before it are still
/// answered, and no further request is taken.
///
/// # Errors
/// [`PipelineError`]: the first request that failed.
///
/// # Panics
/// If a stage panics, with what it said.
pub fn stream<T: Send, E: Send>(
    stages: Vec<Stage<'_, T, E>>,
    buffer: NonZeroUsize,
    requests: impl Iterator<Item = T> + Send,
    mut take: impl FnMut(T),
    clock: &(dyn Fn() -> UnixMicros + Sync),
) -> Result<Timeline, PipelineError<E>> {
    std::thread::scope(|scope| {
        let (first, mut incoming) = sync_channel(buffer.get());
        scope.spawn(move || feed(requests, &first));
        let mut threads = Vec::with_capacity(stages.len());
        for (number, stage) in stages.into_iter().enumerate() {
            let (outgoing, next) = sync_channel(buffer.get());
            threads.push(start(scope, number, stage, incoming, outgoing, clock));
            incoming = next;
        }
        incoming.into_iter().for_each(|(_, answer)| take(answer));
        let mut timeline = Timeline::default();
        let mut failed: Option<PipelineError<E>> = None;
        for thread in threads {
            let (spans, failure) = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            timeline.merge(spans);
            // Of several the earliest request counts: it would have failed alone.
            let earlier =
                |one: &PipelineError<E>, other: &PipelineError<E>| one.request < other.request;
            if let Some(failure) = failure
                && failed.as_ref().is_none_or(|known| earlier(&failure, known))
            {
                failed = Some(failure);
            }
        }
        failed.map_or(Ok(timeline), Err)
    })
}

fn feed<T>(requests: impl Iterator<Item = T>, first: &SyncSender<Numbered<T>>) {
    for request in requests.enumerate() {
        // The first stage has gone: a request failed.
        if first.send(request).is_err() {
            return;
        }
    }
}

fn start<'scope, T: Send + 'scope, E: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    number: usize,
    stage: Stage<'scope, T, E>,
    incoming: Receiver<Numbered<T>>,
    outgoing: SyncSender<Numbered<T>>,
    clock: &'scope (dyn Fn() -> UnixMicros + Sync),
) -> std::thread::ScopedJoinHandle<'scope, Ended<E>> {
    scope.spawn(move || run(number, stage, &incoming, &outgoing, clock))
}

fn run<T, E>(
    number: usize,
    mut stage: Stage<'_, T, E>,
    incoming: &Receiver<Numbered<T>>,
    outgoing: &SyncSender<Numbered<T>>,
    clock: &(dyn Fn() -> UnixMicros + Sync),
) -> Ended<E> {
    let mut timeline = Timeline::default();
    let mut free = clock();
    for (request, value) in incoming {
        let begun = clock();
        let done = (stage.work)(value);
        let ended = clock();
        let mut push = |name: String, kind, start, end| {
            timeline.push(Span {
                device: stage.device.clone(),
                lane: format!("stage {number}"),
                name,
                kind,
                start,
                end,
            });
        };
        push(
            "waits for a request".to_owned(),
            SpanKind::Wait,
            free,
            begun,
        );
        push(
            format!("request {request}"),
            SpanKind::Compute,
            begun,
            ended,
        );
        let answer = match done {
            Ok(answer) => answer,
            Err(cause) => {
                let (stage, cause) = (number, cause);
                return (
                    timeline,
                    Some(PipelineError {
                        request,
                        stage,
                        cause,
                    }),
                );
            }
        };
        if outgoing.send((request, answer)).is_err() {
            break;
        }
        free = clock();
        push("waits for room".to_owned(), SpanKind::Wait, ended, free);
    }
    (timeline, None)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::sync::{Barrier, Mutex};

    use super::*;

    const ONE: NonZeroUsize = NonZeroUsize::MIN;

    fn clock() -> impl Fn() -> UnixMicros + Sync {
        let ticks = AtomicU64::new(0);
        move || UnixMicros(ticks.fetch_add(1, Ordering::SeqCst))
    }

    fn stage<'a>(
        device: &str,
        work: impl FnMut(u64) -> Result<u64, String> + Send + 'a,
    ) -> Stage<'a, u64, String> {
        Stage {
            device: device.to_owned(),
            work: Box::new(work),
        }
    }

    #[test]
    fn answers_come_in_the_order_of_the_requests() {
        let stages = vec![
            stage("a", |value| Ok(value + 1)),
            stage("b", |value| Ok(value * 2)),
            stage("c", |value| Ok(value + 3)),
        ];
        let mut answers = Vec::new();
        stream(
            stages,
            ONE,
            0..1000,
            |answer| answers.push(answer),
            &clock(),
        )
        .unwrap();
        assert_eq!(
            answers,
            (0..1000)
                .map(|value| (value + 1) * 2 + 3)
                .collect::<Vec<u64>>()
        );
    }

    #[test]
    fn stages_work_at_the_same_time_and_the_trace_shows_it() {
        // Each request of the first stage waits for the one before it in the second.
        let both = Barrier::new(2);
        let meet = |is_last: bool, value: u64| {
            let alone = if is_last { value == 7 } else { value == 0 };
            if !alone {
                both.wait();
            }
            Ok(value)
        };
        let stages = vec![
            stage("a", |value| meet(false, value)),
            stage("b", |value| meet(true, value)),
        ];
        let timeline = stream(stages, ONE, 0..8, |_| (), &clock()).unwrap();
        let spans = |device: &'static str| {
            let spans = timeline.spans().iter();
            spans.filter(move |span| span.device == device && span.kind == SpanKind::Compute)
        };
        let overlapping = spans("a").skip(1).zip(spans("b"));
        let together = overlapping.filter(|(a, b)| a.start < b.end && b.start < a.end);
        assert_eq!(together.count(), 7, "request n in b beside n + 1 in a");
    }

    #[test]
    fn a_slow_stage_holds_up_those_before_it() {
        let under_way = AtomicUsize::new(0);
        let most = AtomicUsize::new(0);
        let requests = (0..200u64).inspect(|_| {
            let now = under_way.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
        });
        let slow = |value| {
            std::thread::yield_now();
            Ok(value)
        };
        let stages = vec![stage("quick", Ok), stage("slow", slow)];
        let answered = |_| {
            under_way.fetch_sub(1, Ordering::SeqCst);
        };
        stream(stages, ONE, requests, answered, &clock()).unwrap();
        // Three buffers of one, two stages, one in the feeder's hand and one in the taker's.
        assert!(most.load(Ordering::SeqCst) <= 7, "{most:?} at a time");
    }

    #[test]
    fn a_request_that_fails_is_named_and_ends_the_stream() {
        let begun = AtomicUsize::new(0);
        let fails = |value| match value {
            5 => Err("five is bad".to_owned()),
            other => Ok(other),
        };
        let requests = (0..1_000_000u64).inspect(|_| {
            begun.fetch_add(1, Ordering::SeqCst);
        });
        let answers = Mutex::new(Vec::new());
        let stages = vec![stage("a", Ok), stage("b", fails)];
        let take = |answer| answers.lock().unwrap().push(answer);
        let error = stream(stages, ONE, requests, take, &clock()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "request 5 failed in stage 1: five is bad"
        );
        assert_eq!(*answers.lock().unwrap(), [0, 1, 2, 3, 4]);
        assert!(begun.load(Ordering::SeqCst) < 20, "no more were taken");
    }
}
