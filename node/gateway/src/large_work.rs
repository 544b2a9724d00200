//! Runs requests that hold models or tensors in memory, or compute for long, on threads of their
//! own: events, heartbeats and cancellations do not wait for them. Readers can do only a little of
//! such work at a time, because a token that can only read must not exhaust the machine.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::problem::{Code, Problem};

/// How many readers' requests can hold models or tensors at a time.
pub const READERS_MAX: usize = 2;

/// How long a reader's request waits for its turn, and how long it can keep it waiting for devices.
pub const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The turns of readers' large requests.
pub struct ReaderTurns(Arc<Semaphore>);

impl Default for ReaderTurns {
    fn default() -> ReaderTurns {
        ReaderTurns(Arc::new(Semaphore::new(READERS_MAX)))
    }
}

impl ReaderTurns {
    /// Runs work of a reader on a thread of its own, in its turn. The turn ends with the work, also
    /// if the client has gone.
    ///
    /// # Errors
    /// Fails if no turn comes, or as the work does.
    pub async fn run_in_turn<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        let waiting = tokio::time::timeout(TURN_TIMEOUT, self.0.clone().acquire_owned());
        let Ok(Ok(turn)) = waiting.await else {
            let detail = format!("{READERS_MAX} requests read models or tensors already");
            return Err(Problem::new(Code::TooMany, detail, "ask again in a moment"));
        };
        run_aside(async move {
            let done = work.await;
            drop(turn);
            done
        })
        .await
    }
}

/// Runs work on a thread of its own.
///
/// # Errors
/// Fails as the work does, or if it panics.
pub async fn run_aside<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let runtime = Handle::current();
    let running = spawn_blocking(move || runtime.block_on(work));
    running.await.map_err(Problem::unexpected_failure)?
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Notify, mpsc};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readers_take_turns_and_one_that_gets_none_is_told() {
        let (turns, release) = (Arc::new(ReaderTurns::default()), Arc::new(Notify::new()));
        let (begin, mut begun) = mpsc::unbounded_channel();
        let ask = |number: usize| {
            let (turns, release, begin) = (turns.clone(), release.clone(), begin.clone());
            tokio::spawn(async move {
                let work = async move {
                    begin.send(number).expect("the test listens");
                    release.notified().await;
                    Ok(number)
                };
                turns.run_in_turn(work).await
            })
        };
        let first: Vec<_> = (0..READERS_MAX).map(ask).collect();
        for _ in 0..READERS_MAX {
            begun.recv().await.expect("it begins");
        }
        // The runtime has one thread, which no work holds.
        let late = ask(READERS_MAX);
        tokio::task::yield_now().await;
        tokio::time::advance(TURN_TIMEOUT * 2).await;
        let refused = late.await.expect("it does not panic").unwrap_err();
        assert_eq!(refused.code, Code::TooMany);
        release.notify_one();
        let next = ask(READERS_MAX + 1);
        assert_eq!(begun.recv().await, Some(READERS_MAX + 1));
        for _ in 0..READERS_MAX {
            release.notify_one();
            tokio::task::yield_now().await;
        }
        let mut ended = Vec::new();
        for asked in first.into_iter().chain([next]) {
            release.notify_one();
            ended.push(asked.await.expect("it does not panic").expect("it ends"));
        }
        assert_eq!(ended, [0, 1, READERS_MAX + 1]);
    }
}
