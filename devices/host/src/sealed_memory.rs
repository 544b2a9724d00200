//! Shares bytes between processes without a copy, in memory that no process can change any more.
//!
//! A provider passes weights to the process of a job this way. The kernel seals the memory, so
//! neither side can write to it or cut it short, and any number of processes see one copy.

#![expect(
    unsafe_code,
    reason = "mapping memory is unsafe; each block says why it is sound"
)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use bytes::Bytes;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Seals that the memory must have before this process can read it as immutable bytes.
const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Memory whose bytes and length can never change, held by its file descriptor.
#[derive(Debug)]
pub struct SealedMemory {
    file: OwnedFd,
    length: usize,
}

/// A mapping of a sealed memory into this process's address space.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl SealedMemory {
    /// Creates memory with these pieces one after the other, and copies each once.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new(pieces: &[&[u8]]) -> io::Result<SealedMemory> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("souk", flags)?);
        for piece in pieces {
            file.write_all(piece)?;
        }
        fcntl_add_seals(&file, SEALS)?;
        SealedMemory::from_fd(file.into())
    }

    /// Accepts memory that another process sent, if it is sealed.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidData`] if it is not sealed, otherwise the system's error.
    pub fn from_fd(file: OwnedFd) -> io::Result<SealedMemory> {
        if !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // The seals forbid growing and shrinking, so the length is final.
        let length = rustix::fs::fstat(&file)?.st_size;
        let length = usize::try_from(length).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(SealedMemory { file, length })
    }

    /// Returns the file descriptor to send to another process. That process should pass it to
    /// [`Self::from_fd`], which checks the seals.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Maps the bytes; they will stay valid even after this value is dropped.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn map_bytes(&self) -> io::Result<Bytes> {
        if self.length == 0 {
            return Ok(Bytes::new());
        }
        // SAFETY: a null hint lets the kernel choose unused addresses, so no memory of Rust's is
        // touched, and the length is not zero.
        let start = unsafe {
            let (read, shared) = (ProtFlags::READ, MapFlags::SHARED);
            mmap(
                std::ptr::null_mut(),
                self.length,
                read,
                shared,
                &self.file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let length = self.length;
        Ok(Bytes::from_owner(Mapping { start, length }))
    }
}

// SAFETY: every thread only reads the memory, and no process can write to it.
unsafe impl Send for Mapping {}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `map_bytes` mapped `length` bytes at `start` for reading, and they stay mapped
        // until this is dropped. The constructors checked the seals: no process writes to the bytes
        // or removes them. `length` came from a file size, which is below `isize::MAX`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map_bytes` created the mapping with this start and length, and nothing refers to
        // it any more: a borrower of the bytes borrows this value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_read_whole_and_cannot_be_changed() {
        let sealed = SealedMemory::new(&[b"one ", b"two"]).unwrap();
        let bytes = sealed.map_bytes().unwrap();
        assert_eq!((&bytes[..], sealed.length()), (&b"one two"[..], 7));
        let mut file = File::from(sealed.file().try_clone_to_owned().unwrap());
        assert!(file.write_all(b"x").is_err());
        assert!(file.set_len(0).is_err());
        drop((sealed, file));
        assert_eq!(&bytes[..], b"one two", "the bytes outlive the handle");
    }

    #[test]
    fn empty_memory_maps_to_empty_bytes() {
        assert!(
            SealedMemory::new(&[])
                .unwrap()
                .map_bytes()
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn memory_that_could_still_change_is_refused() {
        let open = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        let refused = SealedMemory::from_fd(open).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
