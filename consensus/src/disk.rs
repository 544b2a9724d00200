//! The disk as the store sees it: named files in one folder, written in place and synced.
//!
//! Two implementations: [`FolderDisk`] is real files; the simulator's loses what was not synced,
//! tears writes and fails on command.

mod folder;

use std::io;

pub use folder::FolderDisk;

/// Files in one folder, by name. A write is durable after [`Disk::sync`] of its file and, if the
/// file is new or renamed, [`Disk::sync_names`].
pub trait Disk {
    /// The names of all files, in order.
    ///
    /// # Errors
    /// What the system says.
    fn list(&mut self) -> io::Result<Vec<String>>;

    /// A file's length in bytes.
    ///
    /// # Errors
    /// What the system says, `NotFound` if there is no such file.
    fn length(&mut self, name: &str) -> io::Result<u64>;

    /// A whole file.
    ///
    /// # Errors
    /// What the system says, `NotFound` if there is no such file.
    fn read(&mut self, name: &str) -> io::Result<Vec<u8>>;

    /// Writes all of `bytes` at `offset`, making the file and extending it if needed.
    ///
    /// # Errors
    /// What the system says, `StorageFull` if there is no room.
    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's content and length durable (`fdatasync`).
    ///
    /// # Errors
    /// After an error nothing is known about what was written before: the caller must stop.
    fn sync(&mut self, name: &str) -> io::Result<()>;

    /// Gives a file another name, replacing a file that has it.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&mut self, name: &str) -> io::Result<()>;

    /// Makes new, changed and removed names durable (`fsync` of the folder).
    ///
    /// # Errors
    /// As [`Disk::sync`].
    fn sync_names(&mut self) -> io::Result<()>;
}

/// A whole file. A read that came back short would look like the end of a log, or like damage.
///
/// # Errors
/// What the system says, `UnexpectedEof` if the read came back short.
pub fn read_whole(disk: &mut impl Disk, name: &str) -> io::Result<Vec<u8>> {
    let bytes = disk.read(name)?;
    if bytes.len() as u64 != disk.length(name)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}
