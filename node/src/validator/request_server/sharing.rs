//! Answers all callers that ask the same question at the same time with one query of the state.
//!
//! A question joins the next query, which must begin after the question arrived, so the answer
//! holds everything acknowledged before, as if the query were for this caller alone. Equal queries
//! are at least a pause apart, however often callers ask.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The least time between two equal queries: too short to notice, and with it a thousand callers
/// that ask every two seconds cost as much as ten.
const PAUSE: Duration = Duration::from_millis(100);

/// Receives the answer; it is none until the query has completed.
type AnswerReceiver<T> = watch::Receiver<Option<T>>;

/// The state of one question.
struct SharedQuestion<T> {
    /// The answer that new callers join, while the next query has not begun.
    next: Option<AnswerReceiver<T>>,
    put_at: Instant,
}

/// The questions that wait for a query, or whose last query began less than a pause ago.
pub(super) struct SharedQuestions<T>(Arc<Mutex<HashMap<Vec<u8>, SharedQuestion<T>>>>);

impl<T> Default for SharedQuestions<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + Sync + 'static> SharedQuestions<T> {
    /// Returns the answer to a question, or none if the task of the query was stopped. `put` is the
    /// query, which runs once for all who wait for its answer.
    pub(super) async fn ask_shared<F>(&self, question: Vec<u8>, put: F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut answered = self.join_turn(question, put);
        let answer = answered.wait_for(Option::is_some).await.ok()?;
        answer.clone()
    }

    fn join_turn<F>(&self, question: Vec<u8>, put: F) -> AnswerReceiver<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let now = Instant::now();
        let mut turns = lock(&self.0);
        let begins_at = match turns.get(&question) {
            Some(SharedQuestion {
                next: Some(next), ..
            }) => return next.clone(),
            Some(turn) => now.max(turn.put_at + PAUSE),
            None => now,
        };
        turns.retain(|_, turn| turn.next.is_some() || turn.put_at + PAUSE > now);
        let (answer, answered) = watch::channel(None);
        let turn = SharedQuestion {
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
    // No code under this lock panics half-way through a change.
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// A question whose answer is how often it was put, and for which it takes leave.
    struct Desk {
        sharing: SharedQuestions<u64>,
        put: Arc<AtomicU64>,
        leave: Arc<Semaphore>,
    }

    impl Desk {
        fn join(&self) -> AnswerReceiver<u64> {
            let (put, leave) = (self.put.clone(), self.leave.clone());
            self.sharing.join_turn(b"question".to_vec(), async move {
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
            sharing: SharedQuestions::default(),
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
