//! The program that runs.

use std::path::PathBuf;

use crate::failure::{Failure, Kind};

/// Returns the path of this program, which every node runs.
pub fn program_path() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| {
        let cause = format!("cannot tell where this program is: {error}");
        Failure::new(Kind::Unexpected, cause, "")
    })
}
