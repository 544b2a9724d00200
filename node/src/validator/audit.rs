//! Audits a stopped validator's folder for `souk audit`: it replays the log and compares the
//! results with every digest that the validator recorded.

use std::path::Path;

use souk_consensus::audit::{Audit, AuditError};
use souk_consensus::replica::StartError;
use souk_consensus::{FolderDisk, LogIndex, StateMachine};
use souk_roles::validator::exchange::is_for_later_build;

use super::ViewsError;
use super::views::compare_checkpoints;

/// The result of an audit that found every recorded digest correct.
#[derive(Clone, Debug)]
pub struct ValidatorAudit {
    /// The result of the replay.
    pub replay: Audit,
    /// Snapshots whose bytes match.
    pub snapshots: Vec<LogIndex>,
    /// The number of checkpoints in the views that match.
    pub views: u64,
}

/// Why an audit failed.
#[derive(Debug, thiserror::Error)]
pub enum ValidatorAuditError {
    /// The log or a snapshot is damaged.
    #[error(transparent)]
    Log(#[from] AuditError),
    /// The folder cannot be opened.
    #[error("cannot open the folder: {0}")]
    Folder(#[from] std::io::Error),
    /// The views cannot be opened: a running validator holds them, or they are damaged.
    #[error("{0}; stop the validator first, or remove the folder, which can be rebuilt")]
    ViewsOpen(ViewsError),
    /// The views open, but their rows are damaged.
    #[error("{0}; the log is not touched by it: remove the folder, which is rebuilt")]
    ViewsSpoiled(ViewsError),
    /// The views are intact, but hold another digest than the replay.
    #[error("the views' digest for entry {index} differs from the replay's")]
    Views {
        /// The entry at which they differ.
        index: LogIndex,
    },
}

impl ValidatorAuditError {
    /// Returns whether a later release of souk can audit the folder, while this one cannot replay
    /// all of its log.
    #[must_use]
    pub fn is_for_later_build(&self) -> bool {
        match self {
            ValidatorAuditError::Log(
                AuditError::Apply(error) | AuditError::Start(StartError::Apply(error)),
            ) => is_for_later_build(error),
            _ => false,
        }
    }
}

/// Audits a stopped validator's folder, which has a checkpoint every `checkpoint_entries` entries.
/// `machine` must return a machine at its beginning.
///
/// # Errors
/// The first part that is damaged, or that does not match the recorded digest.
pub fn audit_folder<M: StateMachine>(
    folder: &Path,
    checkpoint_entries: u64,
    machine: impl Fn() -> M,
) -> Result<ValidatorAudit, ValidatorAuditError> {
    let mut disk = FolderDisk::open(folder)?;
    let replay = souk_consensus::audit::audit(&mut disk, checkpoint_entries, machine)?;
    let views = folder.join("views");
    let compared = if views.exists() {
        compare_checkpoints(&views, &replay.checkpoints).map_err(|error| match error {
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

#[cfg(test)]
mod tests {
    use souk_consensus::Digest;
    use souk_consensus::replica::ApplyError;
    use souk_roles::validator::exchange::UnsupportedVersion;

    use super::*;

    #[test]
    fn a_log_of_later_rules_is_no_fault_of_the_folder() {
        let (version, supported) = (2, 1);
        let cause = souk_consensus::MachineFailure {
            cause: Box::new(UnsupportedVersion { version, supported }),
        };
        let index = LogIndex(7);
        let later = ApplyError::Unable { index, cause };
        let later = ValidatorAuditError::Log(AuditError::Apply(later));
        assert!(later.is_for_later_build());
        let (wanted, found) = (Digest::default(), Digest([1; 32]));
        let other = ApplyError::Differs {
            index,
            wanted,
            found,
        };
        let other = StartError::Apply(other);
        let other = ValidatorAuditError::Log(AuditError::Start(other));
        assert!(!other.is_for_later_build());
        assert!(!ValidatorAuditError::Views { index }.is_for_later_build());
    }
}
