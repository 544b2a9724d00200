//! `souk audit`: replays a stopped validator's log and compares every digest it ever wrote down.

use std::path::Path;

use souk_consensus::audit::{Audit, AuditError};
use souk_consensus::{FolderDisk, LogIndex, StateMachine};

use super::ViewsError;
use super::views::compare;

/// A folder in which every digest came out as written.
#[derive(Clone, Debug)]
pub struct ValidatorAudit {
    /// The replay.
    pub replay: Audit,
    /// Snapshots whose bytes came out as written.
    pub snapshots: Vec<LogIndex>,
    /// Checkpoints of the views that came out as written.
    pub views: u64,
}

/// What an audit found wrong.
#[derive(Debug, thiserror::Error)]
pub enum ValidatorAuditError {
    /// Log or snapshots.
    #[error(transparent)]
    Log(#[from] AuditError),
    /// The folder.
    #[error("cannot open the folder: {0}")]
    Folder(#[from] std::io::Error),
    /// The views do not open: a running validator holds them, or they are damaged.
    #[error("{0}; stop the validator first, or remove the folder, which can be rebuilt")]
    ViewsOpen(ViewsError),
    /// The views open, and are not what was written.
    #[error("{0}; the log is not touched by it: remove the folder, which is rebuilt")]
    ViewsSpoiled(ViewsError),
    /// The views are as they were written, and hold another digest.
    #[error("the views hold another digest for entry {index} than the replay comes to")]
    Views {
        /// The entry.
        index: LogIndex,
    },
}

/// Audits a stopped validator's folder, which has a checkpoint every `checkpoint_entries` entries.
/// `machine` makes a machine at its beginning.
///
/// # Errors
/// The first thing that is damaged or does not come out as written.
pub fn audit<M: StateMachine>(
    folder: &Path,
    checkpoint_entries: u64,
    machine: impl Fn() -> M,
) -> Result<ValidatorAudit, ValidatorAuditError> {
    let mut disk = FolderDisk::open(folder)?;
    let replay = souk_consensus::audit::audit(&mut disk, checkpoint_entries, machine)?;
    let views = folder.join("views");
    let compared = if views.exists() {
        compare(&views, &replay.checkpoints).map_err(|error| match error {
            ViewsError::Rows { .. } => ValidatorAuditError::ViewsSpoiled(error),
            error => ValidatorAuditError::ViewsOpen(error),
        })?
    } else {
        Ok(0)
    };
    let views = compared.map_err(|index| ValidatorAuditError::Views { index })?;
    Ok(ValidatorAudit {
        snapshots: replay.snapshots.clone(),
        replay,
        views,
    })
}
