//! The disk as the store sees it: named files in one folder, written in place and synced.
//!
//! There are two implementations: [`FolderDisk`] uses real files; the simulator's disk loses
//! unsynced writes, tears writes and fails on command.

mod folder;

use std::io;

pub use folder::FolderDisk;

/// Files in one folder, by name. To make a write durable, you must call [`Disk::sync_file`] for its
/// file and, if the file is new or renamed, [`Disk::sync_names`].
pub trait Disk {
    /// Returns the names of all files, in order.
    ///
    /// # Errors
    /// The system's error.
    fn list_files(&mut self) -> io::Result<Vec<String>>;

    /// Returns a file's length in bytes.
    ///
    /// # Errors
    /// The system's error, `NotFound` if there is no such file.
    fn file_length(&mut self, name: &str) -> io::Result<u64>;

    /// Reads a whole file.
    ///
    /// # Errors
    /// The system's error, `NotFound` if there is no such file.
    fn read(&mut self, name: &str) -> io::Result<Vec<u8>>;

    /// Writes all of `bytes` at `offset`, creating the file and extending it if needed.
    ///
    /// # Errors
    /// The system's error, `StorageFull` if there is no space.
    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's content and length durable (`fdatasync`).
    ///
    /// # Errors
    /// After an error the state of earlier writes is unknown, so the caller must stop.
    fn sync_file(&mut self, name: &str) -> io::Result<()>;

    /// Renames a file, replacing any file with the new name.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&mut self, name: &str) -> io::Result<()>;

    /// Makes new, changed and removed names durable (`fsync` of the folder).
    ///
    /// # Errors
    /// As for [`Disk::sync_file`].
    fn sync_names(&mut self) -> io::Result<()>;
}

/// Reads a whole file and checks its length, because a short read would look like the end of a log,
/// or like damage.
///
/// # Errors
/// The system's error, `UnexpectedEof` if the read is short.
pub fn read_whole(disk: &mut impl Disk, name: &str) -> io::Result<Vec<u8>> {
    let bytes = disk.read(name)?;
    if bytes.len() as u64 != disk.file_length(name)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}
