//! Writes the file with the spending of API keys: a thread appends all facts that wait, with one
//! sync.

use souk_folder::facts::FactLog;
use souk_roles::tokens::keys::KeyFact;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// The most writes that can wait: some for each of the most requests at once.
const WAITING_MAX: usize = 4_096;

/// Writes that share a sync.
const TOGETHER_MAX: usize = 512;

/// Tells who wrote a fact whether it is on disk.
type WriteAnswer = oneshot::Sender<Result<(), String>>;

#[derive(Debug)]
enum UsageWrite {
    Append(KeyFact, WriteAnswer),
    /// Writes these facts in place of all others.
    Replace(Vec<KeyFact>),
}

/// A handle on the writing thread, which ends with it.
#[derive(Debug)]
pub(super) struct UsageWriter {
    writes: mpsc::Sender<UsageWrite>,
    thread: JoinHandle<()>,
}

impl UsageWriter {
    /// Starts the thread.
    pub fn start(log: FactLog) -> UsageWriter {
        let (writes, waiting) = mpsc::channel(WAITING_MAX);
        let thread = tokio::task::spawn_blocking(move || write_all(log, waiting));
        UsageWriter { writes, thread }
    }

    /// Writes a fact after all before it.
    pub fn write(&self, fact: KeyFact, written: WriteAnswer) {
        let sent = self.writes.try_send(UsageWrite::Append(fact, written));
        if let Err(mpsc::error::TrySendError::Full(UsageWrite::Append(_, written))) = sent {
            let _ = written.send(Err("its disk is far behind".to_owned()));
        }
    }

    /// Writes facts in place of all before. Returns whether there was room for that.
    pub fn replace(&self, facts: Vec<KeyFact>) -> bool {
        self.writes.try_send(UsageWrite::Replace(facts)).is_ok()
    }

    /// Ends the thread after all writes.
    pub async fn close(self) {
        drop(self.writes);
        if let Err(error) = self.thread.await {
            tracing::error!(%error, "the thread that writes the keys' usage failed");
        }
    }
}

fn write_all(mut log: FactLog, mut waiting: mpsc::Receiver<UsageWrite>) {
    while let Some(first) = waiting.blocking_recv() {
        let rest = std::iter::from_fn(|| waiting.try_recv().ok());
        let (mut facts, mut writers) = (Vec::new(), Vec::new());
        for write in std::iter::once(first).chain(rest.take(TOGETHER_MAX)) {
            match write {
                UsageWrite::Append(fact, written) => {
                    facts.push(fact);
                    writers.push(written);
                }
                UsageWrite::Replace(all) => {
                    append(&mut log, &mut facts, &mut writers);
                    if let Err(error) = log.replace_facts(&all) {
                        tracing::warn!(%error, "the keys' usage is not shortened");
                    }
                }
            }
        }
        append(&mut log, &mut facts, &mut writers);
    }
}

fn append(log: &mut FactLog, facts: &mut Vec<KeyFact>, writers: &mut Vec<WriteAnswer>) {
    if facts.is_empty() {
        return;
    }
    let written = log.append_facts(facts).map_err(|error| error.to_string());
    if let Err(error) = &written {
        tracing::error!(error, "the keys' usage is not written");
    }
    facts.clear();
    for writer in writers.drain(..) {
        // One that does not wait for it needs no answer.
        let _ = writer.send(written.clone());
    }
}
