//! Writes whole files so that a crash leaves either the old file or the new one.

use std::fs;
use std::path::{Path, PathBuf};

/// Writes under another name first, so that a crash leaves either the old file or the new one.
///
/// # Errors
/// The system's error, after which the old file is there.
pub fn write_durably(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    fs::write(&unfinished, bytes)?;
    fs::File::open(&unfinished)?.sync_all()?;
    fs::rename(&unfinished, file)?;
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
