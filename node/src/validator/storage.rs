//! Runs the thread that owns a validator's log and snapshots on disk. The validator's task sends it
//! one job at a time and waits until the work is durable.
//!
//! While the task waits, the network runs on, so that a leader's entries travel while its own disk
//! still writes them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use souk_consensus::disk::FolderDisk;
use souk_consensus::replica::RoundWork;
use souk_consensus::wal::WalError;
use souk_consensus::{LogIndex, ReplicaId, Snapshot, Store};
use tokio::sync::oneshot;

use super::ValidatorFailure;

/// Jobs that can wait for the thread: its only caller waits for each.
const JOBS_MAX: usize = 1;

/// A job for the thread.
enum DiskJob {
    /// Make the work of a round durable.
    Persist {
        work: Box<RoundWork>,
        reply: oneshot::Sender<Result<Box<RoundWork>, WalError>>,
    },
    /// Keep a snapshot and release the entries that it covers.
    Keep {
        snapshot: Box<Snapshot>,
        reply: oneshot::Sender<Result<(Box<Snapshot>, LogIndex), WalError>>,
    },
}

/// The handle of the thread.
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
                run_jobs(store, &inbox);
                // This tells `close` that the thread has ended.
                drop(open);
            })?;
        Ok(Self { jobs, closed })
    }

    /// Makes `work` durable with one sync, and returns it.
    pub(super) async fn persist_work(
        &mut self,
        work: Box<RoundWork>,
    ) -> Result<Box<RoundWork>, ValidatorFailure> {
        self.run_job(|reply| DiskJob::Persist { work, reply }).await
    }

    /// Makes a snapshot durable and releases the entries it covers. Returns the first entry kept.
    pub(super) async fn keep_snapshot(
        &mut self,
        snapshot: Box<Snapshot>,
    ) -> Result<(Box<Snapshot>, LogIndex), ValidatorFailure> {
        self.run_job(|reply| DiskJob::Keep { snapshot, reply })
            .await
    }

    /// Waits until the thread has released the folder.
    pub(super) async fn close(self) {
        drop(self.jobs);
        // The wait ends when the sender is dropped.
        let _closed = self.closed.await;
    }

    async fn run_job<T>(
        &mut self,
        job: impl FnOnce(oneshot::Sender<Result<T, WalError>>) -> DiskJob,
    ) -> Result<T, ValidatorFailure> {
        let (reply, answer) = oneshot::channel();
        // There is room, because the only caller has waited for the last answer.
        let _sent = self.jobs.try_send(job(reply));
        Ok(answer.await.map_err(|_| ValidatorFailure::Panicked)??)
    }
}

fn run_jobs(mut store: Store<FolderDisk>, inbox: &Receiver<DiskJob>) {
    while let Ok(job) = inbox.recv() {
        // The send fails only if the caller is stopping.
        match job {
            DiskJob::Persist { work, reply } => {
                let kept = store.store_parts(&work.parts);
                let persisted = kept.and_then(|()| store.persist(&work.persist));
                let _gone = reply.send(persisted.map(|()| work));
            }
            DiskJob::Keep { snapshot, reply } => {
                let _gone = reply.send(save_and_release(&mut store, snapshot));
            }
        }
    }
}

fn save_and_release(
    store: &mut Store<FolderDisk>,
    snapshot: Box<Snapshot>,
) -> Result<(Box<Snapshot>, LogIndex), WalError> {
    store.save_snapshot(&snapshot)?;
    let keep_from = store.remove_old_data()?;
    Ok((snapshot, keep_from))
}
