//! Tests whether the provider's disk has room for the contents of jobs. After a write that failed,
//! the provider sells nothing until a test write succeeds.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use souk_memory::{FolderError, StoreError};
use souk_roles::lease::Failure;

/// The room that must be free again: as much as the contents of small jobs take together.
const PROBE_BYTES: usize = 16 << 20;

/// The file that tests for room and is then removed.
const PROBE_FILE: &str = ".room";

/// Records whether the disk of a provider's folder is full.
pub(super) struct DiskRoom {
    probe: PathBuf,
    is_short: AtomicBool,
}

impl DiskRoom {
    pub(super) fn new(home: &Path) -> DiskRoom {
        DiskRoom {
            probe: home.join(PROBE_FILE),
            is_short: AtomicBool::new(false),
        }
    }

    /// Notes that a content could not be stored and returns the failure for the buyer. The cause
    /// goes to the log.
    pub(super) fn not_kept(&self, error: &StoreError) -> Failure {
        tracing::error!(%error, "a content could not be stored");
        let room = "free some, or limits.outputs_mib lets leases make too much";
        match error {
            StoreError::Folder(FolderError::System { action, cause, .. }) => {
                if !self.is_short.swap(true, Ordering::AcqRel) {
                    tracing::error!("nothing is sold until the disk has room");
                }
                Failure::Disk(format!("it cannot {action} a content: {cause}"))
            }
            StoreError::Folder(FolderError::Full { held, wanted, .. })
            | StoreError::MemoryFull { held, wanted, .. } => Failure::Disk(format!(
                "{held} bytes are in use, and {wanted} more are wanted: {room}"
            )),
            error => Failure::Run(error.to_string()),
        }
    }

    /// Returns whether jobs can be sold; after a failed write, tests whether there is room again.
    pub(super) fn has_room(&self) -> bool {
        if !self.is_short.load(Ordering::Acquire) {
            return true;
        }
        let written = self.try_to_write();
        let is_there = written.is_ok();
        if is_there {
            self.is_short.store(false, Ordering::Release);
            tracing::info!("the disk has room again");
        }
        is_there
    }

    fn try_to_write(&self) -> io::Result<()> {
        let written = fs::write(&self.probe, vec![0; PROBE_BYTES]);
        let removed = fs::remove_file(&self.probe);
        written.and(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_sold_between_a_content_that_is_not_kept_and_room() {
        let home = tempfile::tempdir().unwrap();
        let room = DiskRoom::new(home.path());
        let full = StoreError::Folder(FolderError::System {
            action: "write",
            path: home.path().to_owned(),
            cause: io::ErrorKind::StorageFull.into(),
        });
        assert!(room.has_room());
        assert!(matches!(room.not_kept(&full), Failure::Disk(_)));
        // A folder in the file's place stands for a disk that takes nothing.
        fs::create_dir(home.path().join(PROBE_FILE)).unwrap();
        assert!(!room.has_room() && !room.has_room());
        fs::remove_dir(home.path().join(PROBE_FILE)).unwrap();
        assert!(room.has_room());
        let left = fs::read_dir(home.path()).unwrap().count();
        assert_eq!(left, 0, "what was tried is removed");
    }
}
