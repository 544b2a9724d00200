//! The production implementation of the store's disk: real files in a real folder, which only one
//! process can use at a time.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::Disk;

/// The file that a process locks while it uses the folder; the system releases it with the process.
const LOCK: &str = "lock";

/// A folder of real files that only one process can open at a time: two processes that write one
/// log would destroy it. Files stay open, so a write costs one system call.
#[derive(Debug)]
pub struct FolderDisk {
    folder: PathBuf,
    open: BTreeMap<String, File>,
    /// Keeps the lock as long as this value lives.
    _lock: File,
}

impl FolderDisk {
    /// Opens a folder and creates it if it does not exist.
    ///
    /// # Errors
    /// The system's error, `ResourceBusy` if another process uses the folder.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let lock = File::create(folder.join(LOCK))?;
        lock.try_lock().map_err(|refused| match refused {
            TryLockError::WouldBlock => {
                let cause = format!("another process uses {}: stop it first", folder.display());
                io::Error::new(io::ErrorKind::ResourceBusy, cause)
            }
            TryLockError::Error(cause) => cause,
        })?;
        Ok(Self {
            folder: folder.to_path_buf(),
            open: BTreeMap::new(),
            _lock: lock,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn open_file(&mut self, name: &str) -> io::Result<&File> {
        if !self.open.contains_key(name) {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(self.path(name))?;
            self.open.insert(name.to_owned(), file);
        }
        Ok(&self.open[name])
    }
}

impl Disk for FolderDisk {
    fn list_files(&mut self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for item in fs::read_dir(&self.folder)? {
            let item = item?;
            if item.file_type()?.is_file()
                && let Ok(name) = item.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn file_length(&mut self, name: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path(name))?.len())
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(name))
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        write_all_at(self.open_file(name)?, bytes, offset)
    }

    fn sync_file(&mut self, name: &str) -> io::Result<()> {
        self.open_file(name)?.sync_data()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.open.remove(from);
        self.open.remove(to);
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.open.remove(name);
        fs::remove_file(self.path(name))
    }

    fn sync_names(&mut self) -> io::Result<()> {
        // On other systems a folder is no file: the file system keeps names in its own journal.
        #[cfg(unix)]
        File::open(&self.folder)?.sync_all()?;
        Ok(())
    }
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_used_by_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderDisk::open(folder.path()).unwrap();
        let refused = FolderDisk::open(folder.path()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        assert!(refused.to_string().contains("stop it first"), "{refused}");
        drop(first);
        FolderDisk::open(folder.path()).unwrap();
    }
}
