//! Gives each node of the chaos test a clock of its own, which the test can set wrong or make jump.
//! A node reads the offset of its clock from a file that its environment names.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use souk_folder::clock::CLOCK_VARIABLE;

/// The files that hold the clocks' offsets.
#[derive(Debug)]
pub(super) struct Clocks {
    folder: PathBuf,
}

/// Why a clock could not be set.
#[derive(Debug, thiserror::Error)]
#[error("the clock {path}: {cause}")]
pub struct ClockError {
    /// The clock's file.
    path: PathBuf,
    /// The system's error.
    cause: io::Error,
}

impl Clocks {
    pub(super) fn new(folder: &Path) -> Clocks {
        let folder = folder.to_owned();
        Clocks { folder }
    }

    /// Returns the command that starts a program under a node's clock.
    pub(super) fn clock_command(&self, node: &str) -> Vec<String> {
        let variable = format!("{CLOCK_VARIABLE}={}", self.clock_file(node).display());
        vec!["env".to_owned(), variable]
    }

    /// Sets how far a node's clock is ahead; a negative value sets it behind.
    pub(super) fn set_ahead(&self, node: &str, ahead_ms: i64) -> Result<(), ClockError> {
        let path = self.clock_file(node);
        // The change must be atomic, because half a number would be a different one.
        let (next, text) = (path.with_extension("next"), ahead_ms.to_string());
        let set = fs::write(&next, text).and_then(|()| fs::rename(&next, &path));
        set.map_err(|cause| ClockError { path, cause })
    }

    fn clock_file(&self, node: &str) -> PathBuf {
        self.folder.join(format!("{node}.clock"))
    }
}
