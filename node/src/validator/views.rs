//! What is kept in sled because it can be rebuilt: the digests at each checkpoint.
//!
//! Nothing here is needed to start. When sled does not open, or a row disagrees with what the log
//! gives, everything is deleted and begun anew.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use souk_consensus::LogIndex;
use souk_consensus::codec::Writer;
use souk_consensus::replica::Checkpoint;

/// Bytes of sled's cache.
const CACHE_BYTES: u64 = 8 << 20;

/// The key of the row that names the last checkpoint.
const STATE: &[u8] = b"state";

/// Before the index in the keys of checkpoints.
const CHECKPOINT: &[u8] = b"checkpoint/";

/// Why there are no views even after they were deleted.
#[derive(Debug, thiserror::Error)]
pub enum ViewsError {
    /// sled.
    #[error("cannot open the views in {}: {cause}", folder.display())]
    Open {
        /// The folder.
        folder: PathBuf,
        /// What sled says.
        #[source]
        cause: sled::Error,
    },
    /// The folder of damaged views can't be removed.
    #[error("cannot remove the damaged views in {}: {cause}", folder.display())]
    Remove {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        #[source]
        cause: std::io::Error,
    },
}

/// The open views.
pub(super) struct Views {
    folder: PathBuf,
    db: sled::Db,
}

impl Views {
    /// Opens the views of a folder; deletes them and begins anew if they don't open.
    pub(super) fn open(folder: &Path) -> Result<Self, ViewsError> {
        let db = match open(folder) {
            Ok(db) => db,
            Err(error) => {
                tracing::warn!(%error, "the views do not open and are rebuilt");
                reopen(folder)?
            }
        };
        Ok(Self {
            folder: folder.to_path_buf(),
            db,
        })
    }

    /// Takes note of checkpoints, one batch for a round. A row that an earlier life left for the
    /// same index must say the same, or everything is begun anew. Rounds between checkpoints are
    /// not noted: a batch wakes sled's writers, which cost more than replicating the round did.
    pub(super) fn on_checkpoints(&self, checkpoints: &[Checkpoint]) {
        let Some(last) = checkpoints.last() else {
            return;
        };
        if !checkpoints.iter().all(|checkpoint| self.agrees(checkpoint)) {
            tracing::warn!(index = %last.index, "the views disagree with the log and are rebuilt");
            self.rebuild();
        }
        let mut batch = sled::Batch::default();
        batch.insert(STATE, &last.index.0.to_be_bytes());
        for checkpoint in checkpoints {
            batch.insert(checkpoint_key(checkpoint.index), checkpoint_row(checkpoint));
        }
        // An error of sled only costs a rebuild at the next start.
        if let Err(error) = self.db.apply_batch(batch) {
            tracing::warn!(%error, "the views could not be written");
        }
    }

    fn agrees(&self, checkpoint: &Checkpoint) -> bool {
        match self.db.get(checkpoint_key(checkpoint.index)) {
            Ok(Some(row)) => row == checkpoint_row(checkpoint),
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Makes the views durable: sled's own flush leaves the data in the kernel.
    pub(super) fn sync(&self) {
        let flushed = self.db.flush().map_err(|error| error.to_string());
        let synced = flushed.and_then(|_| {
            let file = File::open(self.folder.join("db")).map_err(|error| error.to_string())?;
            file.sync_data().map_err(|error| error.to_string())
        });
        if let Err(error) = synced {
            tracing::warn!(error, "the views could not be made durable");
        }
    }

    fn rebuild(&self) {
        if let Err(error) = self.db.clear() {
            tracing::warn!(%error, "the views could not be cleared");
        }
    }
}

fn checkpoint_key(index: LogIndex) -> Vec<u8> {
    let mut key = CHECKPOINT.to_vec();
    key.extend_from_slice(&index.0.to_be_bytes());
    key
}

fn checkpoint_row(checkpoint: &Checkpoint) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u64(checkpoint.size);
    writer.raw(&checkpoint.history.0);
    writer.raw(&checkpoint.state.0);
    writer.finish()
}

/// Compares checkpoints with those the views of a stopped validator hold. Returns how many were
/// there to compare, or the index of the first that differs.
pub(super) fn compare(
    folder: &Path,
    checkpoints: &[Checkpoint],
) -> Result<Result<u64, LogIndex>, ViewsError> {
    let db = open(folder).map_err(|cause| ViewsError::Open {
        folder: folder.to_path_buf(),
        cause,
    })?;
    let mut compared = 0;
    for checkpoint in checkpoints {
        if let Ok(Some(row)) = db.get(checkpoint_key(checkpoint.index)) {
            if row != checkpoint_row(checkpoint) {
                return Ok(Err(checkpoint.index));
            }
            compared += 1;
        }
    }
    Ok(Ok(compared))
}

fn open(folder: &Path) -> sled::Result<sled::Db> {
    sled::Config::new()
        .path(folder)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(None)
        .open()
}

fn reopen(folder: &Path) -> Result<sled::Db, ViewsError> {
    let named = folder.to_path_buf();
    fs::remove_dir_all(folder).map_err(|cause| ViewsError::Remove {
        folder: named,
        cause,
    })?;
    open(folder).map_err(|cause| ViewsError::Open {
        folder: folder.to_path_buf(),
        cause,
    })
}
