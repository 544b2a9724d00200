//! Stores a validator's *views* in a sled database: the digests of state and history at each
//! checkpoint, which `souk audit` compares with the log.
//!
//! A validator can start without them, because they can be rebuilt. If sled does not open, if its
//! rows are damaged, or if one disagrees with the log, the validator will delete everything and
//! begin again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use souk_consensus::Checkpoint;
use souk_consensus::LogIndex;
use souk_consensus::views::{self, Row, Rows, RowsError, SeenCheckpoint};

/// Bytes of sled's cache.
const CACHE_BYTES: u64 = 8 << 20;
/// How long to wait for a lock: sled's writers hold it for a moment after the last handle is gone,
/// and a child process does until it has begun its own program.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Why the views cannot be used even after they were deleted.
#[derive(Debug, thiserror::Error)]
pub enum ViewsError {
    /// sled cannot open them.
    #[error("cannot open the views in {}: {cause}", folder.display())]
    Open {
        /// The folder of the views.
        folder: PathBuf,
        /// The error of sled.
        #[source]
        cause: sled::Error,
    },
    /// The folder of damaged views cannot be removed.
    #[error("cannot remove the damaged views in {}: {cause}", folder.display())]
    Remove {
        /// The folder of the views.
        folder: PathBuf,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },
    /// The rows cannot even be deleted, or an audit found them damaged.
    #[error("the views in {}: {cause}", folder.display())]
    Rows {
        /// The folder of the views.
        folder: PathBuf,
        /// The fault of the rows.
        #[source]
        cause: RowsError,
    },
}

/// The rows in sled.
struct SledRows(sled::Db);

impl Rows for SledRows {
    fn scan_prefix(&self, prefix: &[u8]) -> Result<Vec<Row>, RowsError> {
        let rows = self.0.scan_prefix(prefix).map(|row| {
            let (key, row) = row.map_err(rows_error)?;
            Ok((key.to_vec(), row.to_vec()))
        });
        rows.collect()
    }

    fn insert(&mut self, rows: Vec<Row>) -> Result<(), RowsError> {
        let mut batch = sled::Batch::default();
        for (key, row) in rows {
            batch.insert(key, row);
        }
        self.0.apply_batch(batch).map_err(rows_error)
    }

    fn clear(&mut self) -> Result<(), RowsError> {
        self.0.clear().map_err(rows_error)
    }
}

fn rows_error(cause: sled::Error) -> RowsError {
    RowsError {
        cause: Box::new(cause),
    }
}

/// A validator's open views, and their folder.
pub(super) struct Views {
    folder: PathBuf,
    views: views::Views<SledRows>,
}

impl Views {
    /// Opens the views of a folder; deletes them and begins again if they cannot be trusted.
    pub(super) fn open_folder(folder: &Path) -> Result<Self, ViewsError> {
        let db = open_anew(folder)?;
        let views = views::Views::open(SledRows(db)).map_err(|cause| ViewsError::Rows {
            folder: folder.to_path_buf(),
            cause,
        })?;
        if views.rebuild_count() > 0 {
            tracing::warn!("the stored views were changed or damaged; rebuilding them");
        }
        Ok(Self {
            folder: folder.to_path_buf(),
            views,
        })
    }

    /// Records checkpoints, in one batch per round. Rounds between checkpoints are not recorded: a
    /// batch wakes sled's writers, which costs more than replicating the round did.
    pub(super) fn on_checkpoints(&mut self, checkpoints: &[Checkpoint]) {
        let before = self.views.rebuild_count();
        // An error of sled costs only a rebuild at the next start.
        if let Err(error) = self.views.on_checkpoints(checkpoints) {
            tracing::warn!(%error, "the views could not be written");
        }
        if self.views.rebuild_count() > before {
            tracing::warn!("the views disagree with the log; rebuilding them");
        }
    }

    /// Makes the views durable: sled's own flush leaves the data in the kernel.
    pub(super) fn sync_disk(&self) {
        let flushed = self.views.rows().0.flush();
        let synced = flushed.map_err(|error| error.to_string()).and_then(|_| {
            let file = File::open(self.folder.join("db")).map_err(|error| error.to_string())?;
            file.sync_data().map_err(|error| error.to_string())
        });
        if let Err(error) = synced {
            tracing::warn!(error, "the views could not be made durable");
        }
    }
}

/// Compares checkpoints with those in the views of a stopped validator. Returns how many it could
/// compare, or the index of the first that differs.
pub(super) fn compare_checkpoints(
    folder: &Path,
    checkpoints: &[Checkpoint],
) -> Result<Result<u64, LogIndex>, ViewsError> {
    let db = open_database(folder).map_err(|cause| ViewsError::Open {
        folder: folder.to_path_buf(),
        cause,
    })?;
    let seen = views::read(&SledRows(db)).map_err(|cause| ViewsError::Rows {
        folder: folder.to_path_buf(),
        cause,
    })?;
    let mut compared = 0;
    for checkpoint in checkpoints {
        if let Ok(place) = seen
            .0
            .binary_search_by_key(&checkpoint.index, |it| it.index)
        {
            if seen.0[place] != SeenCheckpoint::from(checkpoint) {
                return Ok(Err(checkpoint.index));
            }
            compared += 1;
        }
    }
    Ok(Ok(compared))
}

/// Opens the database; waits if one that was just closed still holds its lock.
pub(super) fn open_database(folder: &Path) -> sled::Result<sled::Db> {
    let config = sled::Config::new()
        .path(folder)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(None);
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match config.open() {
            // A held lock has no error of its own.
            Err(sled::Error::Io(_)) if Instant::now() < deadline => thread::sleep(LOCK_PAUSE),
            opened => return opened,
        }
    }
}

/// Opens the database, or begins a new one if it does not open.
pub(super) fn open_anew(folder: &Path) -> Result<sled::Db, ViewsError> {
    match open_database(folder) {
        Ok(db) => return Ok(db),
        Err(error) => tracing::warn!(%error, "the views could not be opened; starting new ones"),
    }
    let named = folder.to_path_buf();
    fs::remove_dir_all(folder).map_err(|cause| ViewsError::Remove {
        folder: named,
        cause,
    })?;
    open_database(folder).map_err(|cause| ViewsError::Open {
        folder: folder.to_path_buf(),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_outlives_its_handle_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let before = open_database(folder.path()).unwrap();
        before.insert("kept", "row").unwrap();
        before.flush().unwrap();
        let late = thread::spawn(move || {
            thread::sleep(LOCK_PAUSE * 20);
            drop(before);
        });
        let after = open_database(folder.path()).unwrap();
        assert_eq!(after.get("kept").unwrap().unwrap(), "row");
        late.join().unwrap();
    }
}
