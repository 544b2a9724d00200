//! The thread that owns the store: what is to be durable goes in, and comes back when it is.
//!
//! The task that waits for it lets the network run meanwhile, so that a leader's entries are on
//! their way while its own disk still writes them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use souk_consensus::disk::FolderDisk;
use souk_consensus::replica::Work;
use souk_consensus::wal::WalError;
use souk_consensus::{LogIndex, ReplicaId, Snapshot, Store};
use tokio::sync::oneshot;

use super::ValidatorFailure;

/// Jobs that wait for the thread: its only caller waits for each.
const JOBS_MAX: usize = 1;

/// What the thread is to do.
enum DiskJob {
    /// Make durable what a round brought.
    Persist {
        work: Box<Work>,
        reply: oneshot::Sender<Result<Box<Work>, WalError>>,
    },
    /// Keep a snapshot and give up what it makes superfluous.
    Keep {
        snapshot: Box<Snapshot>,
        reply: oneshot::Sender<Result<(Box<Snapshot>, LogIndex), WalError>>,
    },
}

/// The way to the thread.
pub(super) struct Storage {
    jobs: SyncSender<DiskJob>,
    closed: oneshot::Receiver<()>,
}

impl Storage {
    /// Starts the thread.
    pub(super) fn start(id: ReplicaId, store: Store<FolderDisk>) -> std::io::Result<Self> {
        let (jobs, inbox) = sync_channel(JOBS_MAX);
        let (open, closed) = oneshot::channel();
        std::thread::Builder::new()
            .name(format!("storage-{id}"))
            .spawn(move || {
                serve(store, &inbox);
                // Whoever waits for the end learns it by this.
                drop(open);
            })?;
        Ok(Self { jobs, closed })
    }

    /// Makes durable what `work` says, with one sync, and gives the work back.
    pub(super) async fn persist(&mut self, work: Box<Work>) -> Result<Box<Work>, ValidatorFailure> {
        self.ask(|reply| DiskJob::Persist { work, reply }).await
    }

    /// Makes a snapshot durable and releases what it covers. Returns the first entry kept.
    pub(super) async fn keep(
        &mut self,
        snapshot: Box<Snapshot>,
    ) -> Result<(Box<Snapshot>, LogIndex), ValidatorFailure> {
        self.ask(|reply| DiskJob::Keep { snapshot, reply }).await
    }

    /// Waits until the thread has let go of the folder.
    pub(super) async fn close(self) {
        drop(self.jobs);
        // It is the end of the sender that is awaited.
        let _closed = self.closed.await;
    }

    async fn ask<T>(
        &mut self,
        job: impl FnOnce(oneshot::Sender<Result<T, WalError>>) -> DiskJob,
    ) -> Result<T, ValidatorFailure> {
        let (reply, answer) = oneshot::channel();
        // There is room: the one caller has waited for the last answer.
        let _sent = self.jobs.try_send(job(reply));
        Ok(answer.await.map_err(|_| ValidatorFailure::Panicked)??)
    }
}

fn serve(mut store: Store<FolderDisk>, inbox: &Receiver<DiskJob>) {
    while let Ok(job) = inbox.recv() {
        // A caller that no longer waits is stopping.
        match job {
            DiskJob::Persist { work, reply } => {
                let kept = store.keep_parts(&work.parts);
                let persisted = kept.and_then(|()| store.persist(&work.persist));
                let _gone = reply.send(persisted.map(|()| work));
            }
            DiskJob::Keep { snapshot, reply } => {
                let _gone = reply.send(keep(&mut store, snapshot));
            }
        }
    }
}

fn keep(
    store: &mut Store<FolderDisk>,
    snapshot: Box<Snapshot>,
) -> Result<(Box<Snapshot>, LogIndex), WalError> {
    store.save_snapshot(&snapshot)?;
    let keep_from = store.release()?;
    Ok((snapshot, keep_from))
}
