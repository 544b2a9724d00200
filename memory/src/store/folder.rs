//! The folder of the store on disk, with one file for each content, named by its id. Several
//! processes can use one folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use thiserror::Error;

use crate::{ContentId, Outline};

/// The ending of files in progress, which are renamed when complete.
const ASIDE: &str = "part";

/// A file in progress of this age was left by a process that ended during the write.
const ASIDE_FOR: Duration = Duration::from_secs(60 * 60);

/// Why the folder of a store failed.
#[derive(Debug, Error)]
pub enum FolderError {
    /// A system call failed.
    #[error("cannot {action} {}: {cause}", path.display())]
    System {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The path of the action.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The limit is reached.
    #[error(
        "the store's folder limit of {limit} bytes is reached: {held} held, {wanted} more wanted"
    )]
    Full {
        /// The limit, `folder_bytes_max`.
        limit: u64,
        /// Bytes that the folder holds.
        held: u64,
        /// Bytes to add.
        wanted: u64,
    },
    /// A file's bytes do not match its name; the store removed it, so the content must be fetched
    /// again.
    #[error("the stored content {expected} is damaged: its bytes are {found}; it was removed")]
    Damaged {
        /// The id in the file's name.
        expected: ContentId,
        /// The id of the file's bytes.
        found: ContentId,
    },
    /// A file that this process wrote and needs is missing.
    #[error("the spilled content {id} is gone: another program removed its file")]
    Gone {
        /// The id in the file's name.
        id: ContentId,
    },
}

/// An item of the folder.
struct FolderEntry {
    id: ContentId,
    bytes: u64,
    written: SystemTime,
}

impl FolderEntry {
    /// Returns the item of a directory entry; `None` for a file in progress, and for one that
    /// another process renamed or removed meanwhile.
    fn from_dir_entry(file: &fs::DirEntry) -> Option<Self> {
        let id = file.file_name().to_str()?.parse().ok()?;
        let metadata = file.metadata().ok()?;
        Some(Self {
            id,
            bytes: metadata.len(),
            written: metadata.modified().ok()?,
        })
    }
}

/// The folder, with paths `ab/abcdef…` so that no directory grows large.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    bytes_max: u64,
    /// The bytes in the folder at the last count, plus those that this process wrote since.
    bytes: AtomicU64,
    /// The number of files that this process began to write, which makes their names unique.
    written: AtomicU64,
}

impl Folder {
    pub fn open(path: PathBuf, bytes_max: u64) -> Result<Self, FolderError> {
        map_system_error("make", &path, fs::create_dir_all(&path))?;
        let folder = Self {
            path,
            bytes_max,
            bytes: AtomicU64::new(0),
            written: AtomicU64::new(0),
        };
        let held = folder.list_files()?.iter().map(|file| file.bytes).sum();
        folder.bytes.store(held, Ordering::Relaxed);
        folder.remove_left_behind()?;
        Ok(folder)
    }

    pub fn contains(&self, id: &ContentId) -> bool {
        self.path_of(id).is_file()
    }

    /// Returns the length of an item, if it exists.
    pub fn item_length(&self, id: &ContentId) -> Option<u64> {
        let metadata = fs::metadata(self.path_of(id)).ok()?;
        Some(metadata.len())
    }

    /// Writes an item if it does not exist, and removes others for space unless `keep` returns true
    /// for them. It writes an item again whose file has another length, because it was torn when
    /// the machine went down.
    pub fn write(
        &self,
        id: &ContentId,
        bytes: &[u8],
        keep: impl Fn(&ContentId) -> bool,
    ) -> Result<(), FolderError> {
        let path = self.path_of(id);
        let wanted = bytes.len() as u64;
        if self.item_length(id) == Some(wanted) {
            return Ok(());
        }
        self.reserve_bytes(wanted, keep)?;
        let parent = path.parent().expect("an item lies in a folder");
        map_system_error("make", parent, fs::create_dir_all(parent))?;
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let aside = path.with_extension(format!("{}-{number}.{ASIDE}", std::process::id()));
        let written = map_system_error("write", &aside, fs::write(&aside, bytes))
            .and_then(|()| map_system_error("rename", &aside, fs::rename(&aside, &path)));
        if written.is_err() {
            let _ = fs::remove_file(&aside);
            self.bytes.fetch_sub(wanted, Ordering::Relaxed);
        }
        written
    }

    pub fn read(&self, id: &ContentId) -> Result<Option<Bytes>, FolderError> {
        Ok(self.read_outlined(id)?.map(|(bytes, _)| bytes))
    }

    /// Reads an item with the hashes of its frames, which the check computes anyway.
    pub fn read_outlined(&self, id: &ContentId) -> Result<Option<(Bytes, Outline)>, FolderError> {
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
        let outline = Outline::from_bytes(&bytes);
        let found = outline.id();
        if found == *id {
            return Ok(Some((bytes, outline)));
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
        map_system_error("remove", &path, remove(&path))?;
        let less = |bytes: u64| Some(bytes.saturating_sub(length));
        let _ = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        Ok(())
    }

    /// Removes every item and all files in progress.
    pub fn clear(&self) -> Result<(), FolderError> {
        self.remove_aside(|_| true)?;
        self.list_files()?
            .iter()
            .try_for_each(|file| self.remove(&file.id))
    }

    /// Removes files in progress that are so old that no process writes them any more.
    fn remove_left_behind(&self) -> Result<(), FolderError> {
        if self.dir_entries()?.iter().all(|file| !is_aside(file)) {
            return Ok(());
        }
        let now = self.folder_time()?;
        self.remove_aside(|file| {
            let written = file.metadata().and_then(|metadata| metadata.modified());
            let age = |written| now.duration_since(written).unwrap_or_default();
            written.is_ok_and(|written| age(written) >= ASIDE_FOR)
        })
    }

    /// Returns the time of the clock that dates the folder's files, which can be another machine's.
    fn folder_time(&self) -> Result<SystemTime, FolderError> {
        let probe = self.path.join(format!("{}.{ASIDE}", std::process::id()));
        let file = map_system_error("write", &probe, fs::File::create(&probe))?;
        let written = file.metadata().and_then(|metadata| metadata.modified());
        map_system_error("remove", &probe, remove(&probe))?;
        map_system_error("date", &probe, written)
    }

    fn remove_aside(&self, is_left: impl Fn(&fs::DirEntry) -> bool) -> Result<(), FolderError> {
        for file in self.dir_entries()? {
            if is_aside(&file) && is_left(&file) {
                let path = file.path();
                map_system_error("remove", &path, remove(&path))?;
            }
        }
        Ok(())
    }

    /// Adds `wanted` to the count of bytes. Over the limit, removes the oldest items first, except
    /// those that `keep` protects.
    fn reserve_bytes(
        &self,
        wanted: u64,
        keep: impl Fn(&ContentId) -> bool,
    ) -> Result<(), FolderError> {
        let limit = self.bytes_max;
        let add = |held: u64| held.checked_add(wanted).filter(|&sum| sum <= limit);
        let try_add = || {
            self.bytes
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
        };
        if try_add().is_ok() {
            return Ok(());
        }
        let mut files = self.list_files()?;
        let mut held: u64 = files.iter().map(|file| file.bytes).sum();
        files.sort_by_key(|file| file.written);
        for file in files.iter().filter(|file| !keep(&file.id)) {
            if wanted > limit || held.saturating_add(wanted) <= limit {
                break;
            }
            map_system_error(
                "remove",
                &self.path_of(&file.id),
                remove(&self.path_of(&file.id)),
            )?;
            held -= file.bytes;
        }
        self.bytes.store(held, Ordering::Relaxed);
        match try_add() {
            Ok(_) => Ok(()),
            Err(held) => Err(FolderError::Full {
                limit,
                held,
                wanted,
            }),
        }
    }

    /// Returns all items, including those of other processes.
    fn list_files(&self) -> Result<Vec<FolderEntry>, FolderError> {
        Ok(self
            .dir_entries()?
            .iter()
            .filter_map(FolderEntry::from_dir_entry)
            .collect())
    }

    /// Returns all directory entries in the folder's subdirectories.
    fn dir_entries(&self) -> Result<Vec<fs::DirEntry>, FolderError> {
        let mut entries = Vec::new();
        for shelf in map_system_error("list", &self.path, fs::read_dir(&self.path))? {
            let shelf = map_system_error("list", &self.path, shelf)?.path();
            if !shelf.is_dir() {
                continue;
            }
            for file in map_system_error("list", &shelf, fs::read_dir(&shelf))? {
                entries.push(map_system_error("list", &shelf, file)?);
            }
        }
        Ok(entries)
    }

    fn path_of(&self, id: &ContentId) -> PathBuf {
        let name = id.to_string();
        self.path.join(&name[..2]).join(name)
    }
}

fn is_aside(file: &fs::DirEntry) -> bool {
    let path = file.path();
    path.extension().is_some_and(|ending| ending == ASIDE)
}

/// Removes a file; it is no error if another process has removed it.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn map_system_error<T>(
    action: &'static str,
    path: &Path,
    result: io::Result<T>,
) -> Result<T, FolderError> {
    result.map_err(|cause| FolderError::System {
        action,
        path: path.to_owned(),
        cause,
    })
}
