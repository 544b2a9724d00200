//! Writes a validator's whole state as a backup, one file that verifies itself, and restores it.
//!
//! A backup cannot continue as the replica that it came from: it lacks the votes and
//! acknowledgements that the replica gave later. A restore must therefore either begin a new group,
//! or give a new member of the old group a state to start from.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use souk_consensus::snapshot::SnapshotError;
use souk_consensus::store::StoreOpenError;
use souk_consensus::wal::WalError;
use souk_consensus::{FolderDisk, LogIndex, ReplicaId, Snapshot, Store, StoreConfig};
use souk_folder::durable_file::write_durably;
use souk_roles::validator::questions::AnsweringMachine;
use tokio::sync::oneshot;

use super::backup_file::{self, BackupFault};
use super::task::Input;
use super::{QueryError, Validator};

/// Why a backup could not be written.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The received bytes are no backup, or were damaged on the way.
    #[error("the received backup: {0}")]
    Damaged(#[from] BackupFault),
    /// The backup holds no state.
    #[error("the received backup: {0}")]
    State(#[from] SnapshotError),
    /// The file cannot be written.
    #[error("cannot write {}: {cause}", file.display())]
    Write {
        /// The backup's file.
        file: PathBuf,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },
}

/// Why a backup could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreBackupError {
    /// The file cannot be read.
    #[error("cannot read {}: {cause}", file.display())]
    Read {
        /// The backup's file.
        file: PathBuf,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },
    /// The file is damaged, or not a backup.
    #[error("{}: {cause}", file.display())]
    Damaged {
        /// The backup's file.
        file: PathBuf,
        /// The damage, with its position.
        #[source]
        cause: BackupFault,
    },
    /// The file holds no state of a validator.
    #[error("{} holds no state of a validator: {cause}", file.display())]
    Backup {
        /// The backup's file.
        file: PathBuf,
        /// The fault of the state.
        #[source]
        cause: SnapshotError,
    },
    /// The folder is in use.
    #[error("{} holds a replica already: restore into an empty folder", .0.display())]
    Used(PathBuf),
    /// The folder cannot be opened.
    #[error(transparent)]
    Open(#[from] StoreOpenError),
    /// The folder cannot be created.
    #[error("cannot make the folder: {0}")]
    Folder(#[from] std::io::Error),
    /// The folder cannot be written.
    #[error(transparent)]
    Write(#[from] WalError),
}

impl<M: AnsweringMachine<Command: Send> + Send + 'static> Validator<M> {
    /// Returns this validator's current state as the bytes of a backup, and the index of its last
    /// entry.
    ///
    /// # Errors
    /// If the validator does not answer.
    pub async fn create_backup(&self) -> Result<(LogIndex, Bytes), QueryError> {
        let (reply, answer) = oneshot::channel();
        self.send_input(Input::Backup { reply })?;
        let snapshot = answer.await.map_err(|_| QueryError::Stopped)?;
        Ok((snapshot.index, backup_file::encode_backup(&snapshot.bytes)))
    }
}

/// Checks the bytes of a backup and writes them durably to a file. Returns the index of the last
/// entry.
///
/// # Errors
/// If the bytes are not a backup, or the file cannot be written.
pub fn write_backup(file: &Path, bytes: &Bytes) -> Result<LogIndex, BackupError> {
    let snapshot = Snapshot::decode(backup_file::decode_backup(bytes)?)?;
    write_durably(file, bytes).map_err(|cause| BackupError::Write {
        file: file.to_path_buf(),
        cause,
    })?;
    Ok(snapshot.index)
}

/// Reads the state in a backup.
///
/// # Errors
/// If the file is not a backup, or is damaged; the error names the byte.
pub fn read_backup(file: &Path) -> Result<Snapshot, RestoreBackupError> {
    let named = || file.to_path_buf();
    let bytes = fs::read(file).map_err(|cause| RestoreBackupError::Read {
        file: named(),
        cause,
    })?;
    let state =
        backup_file::decode_backup(&bytes.into()).map_err(|cause| RestoreBackupError::Damaged {
            file: named(),
            cause,
        })?;
    Snapshot::decode(state).map_err(|cause| RestoreBackupError::Backup {
        file: named(),
        cause,
    })
}

/// Stores a state as the beginning of a replica in `folder`, which must not hold one yet. Returns
/// the index of its last entry.
///
/// # Errors
/// If the folder is in use or cannot be written.
pub fn place_state(folder: &Path, state: Snapshot) -> Result<LogIndex, RestoreBackupError> {
    let disk = FolderDisk::open(folder)?;
    let (mut store, found) = Store::open(disk, StoreConfig::default())?;
    if found.is_some() {
        return Err(RestoreBackupError::Used(folder.to_path_buf()));
    }
    let index = state.index;
    store.bootstrap(state)?;
    Ok(index)
}

/// Stores the state of a backup in `folder` as the beginning of a new group of `members`. You must
/// restore every member from the same file with the same list. Returns the index of the last entry.
///
/// # Errors
/// If the file is not a backup, or the folder is in use.
pub fn restore_backup(
    file: &Path,
    folder: &Path,
    members: &[ReplicaId],
) -> Result<LogIndex, RestoreBackupError> {
    place_state(folder, read_backup(file)?.start_group(members))
}
