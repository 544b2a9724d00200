//! Runs the thread that owns a validator's log and snapshots on disk. The validator's task sends it
//! one job at a time and waits until the work is durable.
//!
//! The network's tasks continue while the validator's task waits, so a leader's entries travel
//! while its own disk still writes them.

use souk_consensus::disk::FolderDisk;
use souk_consensus::replica::RoundWork;
use souk_consensus::wal::WalError;
use souk_consensus::{LogIndex, ReplicaId, Snapshot, Store, Tile};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::ValidatorFailure;
use super::history_folder::HistoryFolder;

/// Jobs that can wait for the thread: its only caller waits for each but those with tiles.
const JOBS_MAX: usize = 16;

/// A job for the thread.
enum DiskJob {
    /// Write full tiles of the history.
    Tiles(Vec<Tile>),
    /// Make the work of a round durable.
    Persist {
        work: Box<RoundWork>,
        reply: oneshot::Sender<Result<Box<RoundWork>, WalError>>,
    },
    /// Keep a snapshot and release the entries that it covers.
    Keep {
        tiles: Vec<Tile>,
        snapshot: Box<Snapshot>,
        reply: oneshot::Sender<Result<(Box<Snapshot>, LogIndex), WalError>>,
    },
}

/// The handle of the thread that owns the log and the snapshots on disk.
pub(super) struct Storage {
    jobs: mpsc::Sender<DiskJob>,
    /// Tiles of the history for which the queue had no room.
    tiles: Vec<Tile>,
    closed: oneshot::Receiver<()>,
}

impl Storage {
    /// Starts the thread.
    pub(super) fn start(
        id: ReplicaId,
        store: Store<FolderDisk>,
        history: HistoryFolder,
    ) -> std::io::Result<Self> {
        let (jobs, mut inbox) = mpsc::channel(JOBS_MAX);
        let (open, closed) = oneshot::channel();
        std::thread::Builder::new()
            .name(format!("storage-{id}"))
            .spawn(move || {
                run_jobs(store, &history, &mut inbox);
                // This tells `close` that the thread has ended.
                drop(open);
            })?;
        Ok(Self {
            jobs,
            tiles: Vec::new(),
            closed,
        })
    }

    /// Makes `work` durable with one sync, and returns it.
    pub(super) async fn persist_work(
        &mut self,
        work: Box<RoundWork>,
    ) -> Result<Box<RoundWork>, ValidatorFailure> {
        self.run_job(|reply| DiskJob::Persist { work, reply }).await
    }

    /// Writes full tiles of the history while the caller continues, but always before the next
    /// snapshot.
    pub(super) fn submit_tiles(&mut self, tiles: Vec<Tile>) {
        self.tiles.extend(tiles);
        if self.tiles.is_empty() {
            return;
        }
        let job = DiskJob::Tiles(std::mem::take(&mut self.tiles));
        if let Err(TrySendError::Full(DiskJob::Tiles(tiles))) = self.jobs.try_send(job) {
            self.tiles = tiles;
        }
    }

    /// Makes a snapshot durable and releases the entries it covers. Returns the first entry kept.
    pub(super) async fn keep_snapshot(
        &mut self,
        snapshot: Box<Snapshot>,
    ) -> Result<(Box<Snapshot>, LogIndex), ValidatorFailure> {
        let tiles = std::mem::take(&mut self.tiles);
        let job = |reply| DiskJob::Keep {
            tiles,
            snapshot,
            reply,
        };
        self.run_job(job).await
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
        // The send fails only if the thread panicked, which the answer shows.
        let _sent = self.jobs.send(job(reply)).await;
        Ok(answer.await.map_err(|_| ValidatorFailure::Panicked)??)
    }
}

fn run_jobs(
    mut store: Store<FolderDisk>,
    history: &HistoryFolder,
    inbox: &mut mpsc::Receiver<DiskJob>,
) {
    // The first error of a write of tiles, for the next job that can tell it.
    let mut failed = None;
    while let Some(job) = inbox.blocking_recv() {
        // The send fails only if the caller is stopping.
        match job {
            DiskJob::Tiles(tiles) => {
                failed = failed.or(write_tiles(history, &tiles).err());
            }
            DiskJob::Persist { work, reply } => {
                let written = failed.take().map_or(Ok(()), Err);
                let kept = written.and_then(|()| store.store_parts(&work.parts));
                let persisted = kept.and_then(|()| store.persist(&work.persist));
                let _gone = reply.send(persisted.map(|()| work));
            }
            DiskJob::Keep {
                tiles,
                snapshot,
                reply,
            } => {
                let written = failed.take().map_or(Ok(()), Err);
                let written = written.and_then(|()| write_tiles(history, &tiles));
                let saved = written.and_then(|()| save_and_release(&mut store, snapshot));
                let _gone = reply.send(saved);
            }
        }
    }
}

fn write_tiles(history: &HistoryFolder, tiles: &[Tile]) -> Result<(), WalError> {
    history.write_tiles(tiles).map_err(|cause| WalError {
        action: "write",
        name: "a tile of the history".to_owned(),
        cause,
    })
}

fn save_and_release(
    store: &mut Store<FolderDisk>,
    snapshot: Box<Snapshot>,
) -> Result<(Box<Snapshot>, LogIndex), WalError> {
    store.save_snapshot(&snapshot)?;
    let keep_from = store.remove_old_data()?;
    Ok((snapshot, keep_from))
}
