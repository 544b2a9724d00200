//! Questions that many ask alike are put to the state once for all of them.
//!
//! Who asks takes part in the next time its question is put, which is after it was asked: so the
//! answer holds all that was acknowledged before, as if it had been put for this one alone. One
//! question is put again after a pause at the soonest, whoever asks how often.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// From one time that a question is put to the next: nobody notices, and a thousand who ask every
/// two seconds cost as much as ten.
const PAUSE: Duration = Duration::from_millis(100);

/// What is answered, once it is; none where nobody answered.
type AnswerReceiver<T> = watch::Receiver<Option<T>>;

/// One question.
struct Turn<T> {
    /// Those that take part in the next time it is put.
    next: Option<AnswerReceiver<T>>,
    put_at: Instant,
}

/// The questions that were asked lately.
pub(super) struct Sharing<T>(Arc<Mutex<HashMap<Vec<u8>, Turn<T>>>>);

impl<T> Default for Sharing<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Sharing<T> {
    /// The answer to a question, which `put` gets for all who wait for it. None where that was
    /// stopped.
    pub(super) async fn ask<F>(&self, question: Vec<u8>, put: F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut answered = self.join(question, put);
        let answer = answered.wait_for(Option::is_some).await.ok()?;
        answer.clone()
    }

    fn join<F>(&self, question: Vec<u8>, put: F) -> AnswerReceiver<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let now = Instant::now();
        let mut turns = lock(&self.0);
        let begins_at = match turns.get(&question) {
            Some(Turn {
                next: Some(next), ..
            }) => return next.clone(),
            Some(turn) => now.max(turn.put_at + PAUSE),
            None => now,
        };
        turns.retain(|_, turn| turn.next.is_some() || turn.put_at + PAUSE > now);
        let (answer, answered) = watch::channel(None);
        let turn = Turn {
            next: Some(answered.clone()),
            put_at: begins_at,
        };
        turns.insert(question.clone(), turn);
        drop(turns);
        let turns = self.0.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(begins_at).await;
            if let Some(turn) = lock(&turns).get_mut(&question) {
                (turn.next, turn.put_at) = (None, Instant::now());
            }
            answer.send_replace(Some(put.await));
        });
        answered
    }
}

fn lock<K, V>(turns: &Mutex<HashMap<K, V>>) -> MutexGuard<'_, HashMap<K, V>> {
    // Each change under this lock is whole before anything can panic.
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// A question whose answer is how often it was put, and for which it takes leave.
    struct Desk {
        sharing: Sharing<u64>,
        put: Arc<AtomicU64>,
        leave: Arc<Semaphore>,
    }

    impl Desk {
        fn join(&self) -> AnswerReceiver<u64> {
            let (put, leave) = (self.put.clone(), self.leave.clone());
            self.sharing.join(b"question".to_vec(), async move {
                let number = put.fetch_add(1, Ordering::SeqCst) + 1;
                leave.acquire().await.expect("it stays open").forget();
                number
            })
        }
    }

    async fn answer(mut answered: AnswerReceiver<u64>) -> u64 {
        let answer = answered.wait_for(Option::is_some).await.expect("it is put");
        answer.expect("it was waited for")
    }

    #[tokio::test]
    async fn who_asks_alike_shares_an_answer_that_was_got_after_the_question() {
        let desk = Desk {
            sharing: Sharing::default(),
            put: Arc::default(),
            leave: Arc::new(Semaphore::new(0)),
        };
        let first = desk.join();
        while desk.put.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // It is being put: who comes now must not be told what it finds.
        let later: Vec<_> = (0..100).map(|_| desk.join()).collect();
        desk.leave.add_permits(2);
        assert_eq!(answer(first).await, 1);
        for one in later {
            assert_eq!(answer(one).await, 2, "all of them by one");
        }
        assert_eq!(desk.put.load(Ordering::SeqCst), 2);
    }
}
