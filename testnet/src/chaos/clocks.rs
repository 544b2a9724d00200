//! A clock of its own for each node, which can be wrong and jump.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use souk_node::clock::CLOCK_VARIABLE;

/// The files that say how wrong clocks are.
#[derive(Debug)]
pub(super) struct Clocks {
    folder: PathBuf,
}

/// Why a clock was not set.
#[derive(Debug, thiserror::Error)]
#[error("the clock {path}: {cause}")]
pub struct ClockError {
    /// Its file.
    path: PathBuf,
    /// What the system said.
    cause: io::Error,
}

impl Clocks {
    pub(super) fn new(folder: &Path) -> Clocks {
        let folder = folder.to_owned();
        Clocks { folder }
    }

    /// What starts a program under a node's clock.
    pub(super) fn command(&self, node: &str) -> Vec<String> {
        let variable = format!("{CLOCK_VARIABLE}={}", self.file(node).display());
        vec!["env".to_owned(), variable]
    }

    /// Has a node's clock be ahead by so much from now on, behind where negative.
    pub(super) fn set(&self, node: &str, ahead_ms: i64) -> Result<(), ClockError> {
        let path = self.file(node);
        // Whole or not at all: half a number would be another one.
        let (next, text) = (path.with_extension("next"), ahead_ms.to_string());
        let set = fs::write(&next, text).and_then(|()| fs::rename(&next, &path));
        set.map_err(|cause| ClockError { path, cause })
    }

    fn file(&self, node: &str) -> PathBuf {
        self.folder.join(format!("{node}.clock"))
    }
}
