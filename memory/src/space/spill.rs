//! Stores content in files on disk while memory is full: one file for each content, which is
//! removed when its last user drops it.
//!
//! Writes and reads take time, so both are transfers that the owner carries out without holding the
//! space ([`Move::through_disk`](super::Move::through_disk)); this module does not need the space.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::ContentId;
use crate::store::{Folder, FolderError};

/// A folder of spilled content. It must belong to one process alone, because it is cleared when
/// opened and when dropped.
#[derive(Debug)]
pub(super) struct Spill {
    folder: Folder,
    /// The number of copies for each file.
    users: Mutex<BTreeMap<ContentId, usize>>,
}

impl Spill {
    pub fn open(path: PathBuf, bytes_max: u64) -> Result<Self, FolderError> {
        let folder = Folder::open(path, bytes_max)?;
        // Files of a process that ended have no user.
        folder.clear()?;
        let users = Mutex::default();
        Ok(Self { folder, users })
    }

    /// Writes content to a file.
    pub fn write(self: &Arc<Self>, bytes: &Bytes) -> Result<SpilledCopy, FolderError> {
        let content = ContentId::for_content(bytes);
        // It counts before it writes, so that no other thread removes the file meanwhile.
        *self.lock_users().entry(content).or_insert(0) += 1;
        let file = File {
            spill: self.clone(),
            content,
            is_lost: AtomicBool::new(false),
        };
        self.folder.write(&content, bytes, |_| true)?;
        Ok(SpilledCopy(Arc::new(file)))
    }

    fn lock_users(&self) -> MutexGuard<'_, BTreeMap<ContentId, usize>> {
        // Each change is complete before anything can panic, so a poisoned lock is sound.
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        // The next process that opens the folder will clear it as well.
        let _ = self.folder.clear();
    }
}

/// A copy on disk; dropping its last clone removes it.
#[derive(Clone, Debug)]
pub struct SpilledCopy(Arc<File>);

impl PartialEq for SpilledCopy {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SpilledCopy {}

impl SpilledCopy {
    /// Reads the file and checks its content.
    pub(super) fn read(&self) -> Result<Bytes, FolderError> {
        let id = self.0.content;
        let read = self.0.spill.folder.read(&id);
        let read = read.and_then(|bytes| bytes.ok_or(FolderError::Gone { id }));
        if let Err(FolderError::Damaged { .. } | FolderError::Gone { .. }) = &read {
            self.0.is_lost.store(true, Ordering::Relaxed);
        }
        read
    }

    /// Returns whether a read found the file damaged or gone.
    pub(super) fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Relaxed)
    }
}

/// One use of a file; the end of the last use removes the file.
#[derive(Debug)]
struct File {
    spill: Arc<Spill>,
    content: ContentId,
    is_lost: AtomicBool,
}

impl Drop for File {
    fn drop(&mut self) {
        let mut users = self.spill.lock_users();
        let left = users
            .get_mut(&self.content)
            .expect("whoever writes is counted");
        *left -= 1;
        if *left == 0 {
            users.remove(&self.content);
            // A file that cannot be removed will go when the folder is cleared.
            let _ = self.spill.folder.remove(&self.content);
        }
    }
}
