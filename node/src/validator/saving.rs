//! Backup and restore: the whole state as one file that verifies itself.
//!
//! A backup is not a replica. One that came back under its old id would have forgotten promises it
//! made since, so a restore always begins a new group, or the replica joins the old one as new.

use std::fs;
use std::path::{Path, PathBuf};

use souk_consensus::snapshot::SnapshotError;
use souk_consensus::store::StoreOpenError;
use souk_consensus::wal::WalError;
use souk_consensus::{FolderDisk, LogIndex, ReplicaId, Snapshot, StateMachine, Store, StoreConfig};
use tokio::sync::oneshot;

use super::thread::Event;
use super::{QueryError, Validator};

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The validator does not answer.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The file.
    #[error("cannot write {}: {cause}", file.display())]
    Write {
        /// Which.
        file: PathBuf,
        /// What the system says.
        #[source]
        cause: std::io::Error,
    },
}

/// Why a backup was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreBackupError {
    /// The file can't be read.
    #[error("cannot read {}: {cause}", file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// What the system says.
        #[source]
        cause: std::io::Error,
    },
    /// The file is no backup.
    #[error("{} is no backup: {cause}", file.display())]
    Backup {
        /// Which.
        file: PathBuf,
        /// What is wrong.
        #[source]
        cause: SnapshotError,
    },
    /// The folder is in use.
    #[error("{} holds a replica already: restore into an empty folder", .0.display())]
    Used(PathBuf),
    /// The folder can't be opened.
    #[error(transparent)]
    Open(#[from] StoreOpenError),
    /// The folder can't be made.
    #[error("cannot make the folder: {0}")]
    Folder(#[from] std::io::Error),
    /// The folder can't be written.
    #[error(transparent)]
    Write(#[from] WalError),
}

impl<M: StateMachine + Send + 'static> Validator<M> {
    /// Saves the state as it stands here to a file, durably. Returns the last entry in it.
    ///
    /// # Errors
    /// When the validator does not answer or the file can't be written.
    pub async fn backup(&self, file: &Path) -> Result<LogIndex, BackupError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Event::Backup { reply })?;
        let snapshot = answer.await.map_err(|_| QueryError::Stopped)?;
        let index = snapshot.index;
        write_durably(file, &snapshot.bytes).map_err(|cause| BackupError::Write {
            file: file.to_path_buf(),
            cause,
        })?;
        Ok(index)
    }
}

/// Makes `folder` the beginning of a new group of `members` with the state of a backup. Every
/// member is restored from the same file with the same list. Returns the last entry in it.
///
/// # Errors
/// When the file is no backup, or the folder is in use.
pub fn restore_backup(
    file: &Path,
    folder: &Path,
    members: &[ReplicaId],
) -> Result<LogIndex, RestoreBackupError> {
    let named = || file.to_path_buf();
    let bytes = fs::read(file).map_err(|cause| RestoreBackupError::Read {
        file: named(),
        cause,
    })?;
    let snapshot = Snapshot::decode(bytes.into()).map_err(|cause| RestoreBackupError::Backup {
        file: named(),
        cause,
    })?;
    let disk = FolderDisk::open(folder)?;
    let (mut store, found) = Store::open(disk, StoreConfig::default())?;
    if found.is_some() {
        return Err(RestoreBackupError::Used(folder.to_path_buf()));
    }
    store.bootstrap(snapshot.refounded(members))?;
    Ok(snapshot.index)
}

/// Under another name first, so that a crash leaves the old file or the new one.
fn write_durably(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
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
