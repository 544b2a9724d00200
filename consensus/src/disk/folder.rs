//! Real files in a real folder.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Disk;

/// A folder of real files. Files stay open: a write costs one system call.
#[derive(Debug)]
pub struct FolderDisk {
    folder: PathBuf,
    open: BTreeMap<String, File>,
}

impl FolderDisk {
    /// Opens a folder, making it if it isn't there.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self {
            folder: folder.to_path_buf(),
            open: BTreeMap::new(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn file(&mut self, name: &str) -> io::Result<&File> {
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
    fn list(&mut self) -> io::Result<Vec<String>> {
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

    fn length(&mut self, name: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path(name))?.len())
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(name))
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all_at(bytes, offset)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_data()
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
        File::open(&self.folder)?.sync_all()
    }
}
