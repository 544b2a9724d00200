//! The part of the store on disk: one file an item, named by its id.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use thiserror::Error;

use crate::ContentId;

/// Written aside under this ending, then renamed.
const ASIDE: &str = "part";

/// Why the folder of a store failed.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The system refused.
    #[error("cannot {action} {}: {cause}", path.display())]
    System {
        /// What was tried: a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The limit is reached.
    #[error(
        "the store's folder limit of {limit} bytes is reached: {held} held, {wanted} more wanted"
    )]
    Full {
        /// `folder_bytes_max`.
        limit: u64,
        /// Bytes held.
        held: u64,
        /// Bytes that should be added.
        wanted: u64,
    },
    /// A file's bytes are not what its name says; it was removed.
    #[error("the stored content {expected} is damaged: its bytes are {found}; it was removed")]
    Damaged {
        /// The file's name.
        expected: ContentId,
        /// The id of its bytes.
        found: ContentId,
    },
}

/// The folder: `ab/abcdef…`, so that no directory grows large.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    bytes_max: u64,
    /// Bytes in the folder when last counted, and what this process wrote since.
    bytes: AtomicU64,
    /// Numbers the files this process writes aside.
    written: AtomicU64,
}

impl Folder {
    pub fn open(path: PathBuf, bytes_max: u64) -> Result<Self, FolderError> {
        system("make", &path, fs::create_dir_all(&path))?;
        let folder = Self {
            path,
            bytes_max,
            bytes: AtomicU64::new(0),
            written: AtomicU64::new(0),
        };
        folder.bytes.store(folder.count()?, Ordering::Relaxed);
        Ok(folder)
    }

    pub fn contains(&self, id: &ContentId) -> bool {
        self.path_of(id).is_file()
    }

    pub fn write(&self, id: &ContentId, bytes: &[u8]) -> Result<(), FolderError> {
        let path = self.path_of(id);
        if path.is_file() {
            return Ok(());
        }
        let wanted = bytes.len() as u64;
        self.reserve(wanted)?;
        let parent = path.parent().expect("an item lies in a folder");
        system("make", parent, fs::create_dir_all(parent))?;
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let aside = path.with_extension(format!("{}-{number}.{ASIDE}", std::process::id()));
        let written = system("write", &aside, fs::write(&aside, bytes))
            .and_then(|()| system("rename", &aside, fs::rename(&aside, &path)));
        if written.is_err() {
            let _ = fs::remove_file(&aside);
            self.bytes.fetch_sub(wanted, Ordering::Relaxed);
        }
        written
    }

    pub fn read(&self, id: &ContentId) -> Result<Option<Bytes>, FolderError> {
        let path = self.path_of(id);
        let bytes = match fs::read(&path) {
            Ok(bytes) => Bytes::from(bytes),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => {
                return Err(FolderError::System {
                    action: "read",
                    path,
                    cause,
                });
            }
        };
        let found = ContentId::of(&bytes);
        if found == *id {
            return Ok(Some(bytes));
        }
        self.remove(id)?;
        Err(FolderError::Damaged {
            expected: *id,
            found,
        })
    }

    pub fn remove(&self, id: &ContentId) -> Result<(), FolderError> {
        let path = self.path_of(id);
        let length = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        match fs::remove_file(&path) {
            Ok(()) => {
                let less = |bytes: u64| Some(bytes.saturating_sub(length));
                let _ = self
                    .bytes
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                Ok(())
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(FolderError::System {
                action: "remove",
                path,
                cause,
            }),
        }
    }

    /// Counts `wanted` in, unless it goes over the limit even after counting the files anew.
    fn reserve(&self, wanted: u64) -> Result<(), FolderError> {
        let limit = self.bytes_max;
        let add = |held: u64| held.checked_add(wanted).filter(|&sum| sum <= limit);
        let try_add = || {
            self.bytes
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
        };
        if try_add().is_ok() {
            return Ok(());
        }
        self.bytes.store(self.count()?, Ordering::Relaxed);
        match try_add() {
            Ok(_) => Ok(()),
            Err(held) => Err(FolderError::Full {
                limit,
                held,
                wanted,
            }),
        }
    }

    /// Bytes of all files, those of other processes included.
    fn count(&self) -> Result<u64, FolderError> {
        let mut bytes = 0;
        for shelf in system("list", &self.path, fs::read_dir(&self.path))? {
            let shelf = system("list", &self.path, shelf)?.path();
            if !shelf.is_dir() {
                continue;
            }
            for file in system("list", &shelf, fs::read_dir(&shelf))? {
                let file = system("list", &shelf, file)?;
                // A file may be renamed or removed by another process between the two calls.
                bytes += file.metadata().map_or(0, |metadata| metadata.len());
            }
        }
        Ok(bytes)
    }

    fn path_of(&self, id: &ContentId) -> PathBuf {
        let name = id.to_string();
        self.path.join(&name[..2]).join(name)
    }
}

fn system<T>(action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, FolderError> {
    result.map_err(|cause| FolderError::System {
        action,
        path: path.to_owned(),
        cause,
    })
}
