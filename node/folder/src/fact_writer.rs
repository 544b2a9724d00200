//! Writes the facts (records) of a journal on a thread of its own, for a task that must not wait
//! for the disk. The thread writes all waiting facts in one batch, and answers each write when it
//! is done. The journals of buyers and providers use such a writer.

use std::collections::BTreeSet;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The most writes, and answers, that can wait: a few facts of each of some hundred leases.
const WAITING_MAX: usize = 4_096;

/// The most writes in one batch, which share one sync of the file.
const TOGETHER_MAX: usize = 256;

/// A handle on the writing thread: each write has a ticket, under which the thread answers. The
/// thread ends with the handle.
#[derive(Debug)]
pub struct FactWriter<T, W, A> {
    writes: mpsc::Sender<(T, W)>,
    answers: mpsc::Receiver<(T, A)>,
    /// Tickets that await an answer.
    waiting: BTreeSet<T>,
    thread: JoinHandle<()>,
    ended: Option<WriterEnded>,
}

/// The writer ended before it answered a write, which may or may not be on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the writer of the journal has ended: {why}")]
pub struct WriterEnded {
    why: String,
}

/// The queue is full until the thread has written something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the writer of the journal is far behind")]
pub struct WriterBehind;

impl<T, W, A> FactWriter<T, W, A>
where
    T: Copy + Ord + Send + 'static,
    W: Send + 'static,
    A: Send + 'static,
{
    /// Starts a thread that writes everything that waits in one batch.
    pub fn start_thread(
        mut write: impl FnMut(Vec<(T, W)>) -> Vec<(T, A)> + Send + 'static,
    ) -> Self {
        let (writes, mut put) = mpsc::channel(WAITING_MAX);
        let (tell, answers) = mpsc::channel(WAITING_MAX);
        let thread = tokio::task::spawn_blocking(move || {
            while let Some(first) = put.blocking_recv() {
                let rest = std::iter::from_fn(|| put.try_recv().ok());
                let waiting = std::iter::once(first).chain(rest).take(TOGETHER_MAX);
                for told in write(waiting.collect()) {
                    if tell.blocking_send(told).is_err() {
                        return;
                    }
                }
            }
        });
        FactWriter {
            writes,
            answers,
            waiting: BTreeSet::new(),
            thread,
            ended: None,
        }
    }

    /// Waits until everything is written and the thread has ended, with the locks that it held.
    pub async fn close(self) {
        let Self {
            writes,
            mut answers,
            thread,
            ..
        } = self;
        drop(writes);
        while answers.recv().await.is_some() {}
        // A panic was reported by the answers that did not come.
        let _ended = thread.await;
    }

    /// Submits a write under a ticket; if the writer has ended, the answer says so.
    pub fn submit_write(&mut self, ticket: T, what: W) -> Result<(), WriterBehind> {
        match self.writes.try_send((ticket, what)) {
            Err(mpsc::error::TrySendError::Full(_)) => return Err(WriterBehind),
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
        }
        self.waiting.insert(ticket);
        Ok(())
    }

    /// Waits for the next answer; every write gets exactly one. You can drop this future before it
    /// completes without losing an answer.
    pub async fn next_answer(&mut self) -> (T, Result<A, WriterEnded>) {
        if let Some((ticket, answer)) = self.answers.recv().await {
            self.waiting.remove(&ticket);
            return (ticket, Ok(answer));
        }
        let ended = match &self.ended {
            Some(ended) => ended.clone(),
            None => {
                let why = match (&mut self.thread).await {
                    Ok(()) => "it was not told to".to_owned(),
                    Err(panic) => panic.to_string(),
                };
                self.ended.insert(WriterEnded { why }).clone()
            }
        };
        match self.waiting.pop_first() {
            Some(ticket) => (ticket, Err(ended)),
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_waits_is_written_in_its_order() {
        let (held, gone) = oneshot::channel::<()>();
        let mut writer = FactWriter::start_thread(move |waiting: Vec<(u8, u8)>| {
            let _ = &held;
            waiting
        });
        for number in 0..9 {
            writer.submit_write(number, number).unwrap();
        }
        for number in 0..9 {
            assert_eq!(writer.next_answer().await, (number, Ok(number)));
        }
        drop(writer);
        assert!(gone.await.is_err(), "its thread ends with it");
    }

    #[tokio::test]
    async fn all_that_waits_for_a_writer_that_panicked_is_told_why() {
        let mut writer = FactWriter::start_thread(|waiting: Vec<(u8, &str)>| {
            assert!(waiting.iter().all(|(_, word)| *word != "bad"), "a bad word");
            waiting
        });
        writer.submit_write(0, "good").unwrap();
        assert_eq!(writer.next_answer().await, (0, Ok("good")));
        writer.submit_write(1, "bad").unwrap();
        let (ticket, ended) = writer.next_answer().await;
        let ended = ended.unwrap_err();
        assert_eq!(ticket, 1);
        assert!(ended.to_string().contains("a bad word"), "{ended}");
        writer.submit_write(2, "good").unwrap();
        writer.submit_write(3, "good").unwrap();
        assert_eq!(writer.next_answer().await, (2, Err(ended.clone())));
        assert_eq!(writer.next_answer().await, (3, Err(ended)));
    }
}
