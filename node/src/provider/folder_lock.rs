//! Locks a provider's folder while the provider runs, so that no second provider on the same folder
//! sells its device again. The command line tests the lock to find out whether the provider runs.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use souk_folder::facts::FactLogError;

use super::ProviderError;

/// The name of the file, in the provider's folder, that a running provider locks. The file stays
/// empty.
const LOCK_FILE: &str = "lock";

/// Returns whether a provider runs on this folder, by taking the lock for a moment. It creates the
/// folder and the file if they are missing; if it cannot, it returns `false`.
pub fn is_running(home: &Path) -> bool {
    matches!(lock_folder(home), Err(ProviderError::Running { .. }))
}

/// Locks the folder, and creates it if it is missing. A provider must keep the returned file open
/// while it runs, because closing it releases the lock.
///
/// # Errors
/// [`ProviderError::Running`] if another process holds the lock, and [`ProviderError::Journal`] if
/// the file system refuses.
pub(super) fn lock_folder(home: &Path) -> Result<File, ProviderError> {
    let path = home.join(LOCK_FILE);
    let failed = |source| {
        ProviderError::Journal(FactLogError::File {
            path: path.clone(),
            source,
        })
    };
    fs::create_dir_all(home).map_err(failed)?;
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ProviderError::Running {
            home: home.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}
