//! Runs requests that hold models or tensors in memory, or compute for long, on threads of their
//! own, so that events, heartbeats and cancellations do not wait for them. Readers (clients whose
//! token can only read) take turns: only [`READERS_MAX`] of their requests run at a time, so that
//! they cannot exhaust the machine.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

use crate::problem::{Code, Problem};

/// How many readers' requests can hold models or tensors at a time.
pub const READERS_MAX: usize = 2;

/// How long a reader's request waits for its turn, and how long it can keep it waiting for devices.
pub const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The turns of readers' large requests.
pub struct ReaderTurns {
    turns: Arc<Semaphore>,
    timeout: Duration,
}

impl Default for ReaderTurns {
    fn default() -> ReaderTurns {
        ReaderTurns::with_timeout(TURN_TIMEOUT)
    }
}

impl ReaderTurns {
    fn with_timeout(timeout: Duration) -> ReaderTurns {
        let turns = Arc::new(Semaphore::new(READERS_MAX));
        ReaderTurns { turns, timeout }
    }

    /// Runs work of a reader on a thread of its own, in its turn. The turn ends with the work, also
    /// if the client has gone.
    ///
    /// # Errors
    /// Fails if no turn comes, or as the work does.
    pub async fn run_in_turn<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.turns.clone().acquire_owned();
        let waiting = tokio::time::timeout(self.timeout, turn);
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

/// Runs work on a thread of its own. If you drop the future, for example because the client has
/// gone, the work ends where it next waits.
///
/// # Errors
/// Fails as the work does, or if it panics.
pub async fn run_aside<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let runtime = Handle::current();
    let (_waits, gone) = oneshot::channel::<()>();
    let work = async move {
        tokio::select! {
            done = work => done,
            _ = gone => Err(Problem::unexpected_failure("the client has gone")),
        }
    };
    let running = spawn_blocking(move || runtime.block_on(work));
    running.await.map_err(Problem::unexpected_failure)?
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn readers_take_turns_and_one_that_gets_none_is_told() {
        let turns = Arc::new(ReaderTurns::with_timeout(Duration::ZERO));
        let release = Arc::new(Semaphore::new(0));
        let (begin, mut begun) = mpsc::unbounded_channel();
        let ask = |number: usize| {
            let (turns, release, begin) = (turns.clone(), release.clone(), begin.clone());
            tokio::spawn(async move {
                let work = async move {
                    begin.send(number).expect("the test listens");
                    release.acquire().await.expect("it stays open").forget();
                    Ok(number)
                };
                turns.run_in_turn(work).await
            })
        };
        let mut asked = Vec::new();
        for number in 0..READERS_MAX {
            asked.push(ask(number));
            assert_eq!(begun.recv().await, Some(number));
        }
        // The runtime has one thread, which no work holds.
        let refused = ask(READERS_MAX).await.expect("it does not panic");
        assert_eq!(refused.unwrap_err().code, Code::TooMany);
        release.add_permits(READERS_MAX + 1);
        for (number, asked) in asked.into_iter().enumerate() {
            let ended = asked.await.expect("it does not panic");
            assert_eq!(ended.expect("it ends"), number);
        }
        let next = ask(READERS_MAX).await.expect("it does not panic");
        assert_eq!(next.expect("a turn is free"), READERS_MAX);
    }

    #[tokio::test]
    async fn work_ends_with_the_request_that_waits_for_it() {
        let held = Arc::new(());
        let (begin, begun) = oneshot::channel();
        let of_work = held.clone();
        let request = tokio::spawn(run_aside(async move {
            begin.send(()).expect("the test listens");
            std::future::pending::<()>().await;
            drop(of_work);
            Ok(())
        }));
        begun.await.expect("it begins");
        request.abort();
        assert!(request.await.is_err_and(|error| error.is_cancelled()));
        let ended = async {
            while Arc::strong_count(&held) > 1 {
                tokio::task::yield_now().await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        ended.expect("the work ends");
    }
}
