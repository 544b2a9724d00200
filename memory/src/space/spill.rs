//! Content moved to disk for want of memory: one file for each content, removed with its last user.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::ContentId;
use crate::holdings::Handle;
use crate::store::{Folder, FolderError};

/// A folder of spilled content, used by one process.
#[derive(Debug)]
pub(super) struct Spill {
    folder: Arc<Folder>,
    written: BTreeMap<Handle, ContentId>,
    users: BTreeMap<ContentId, usize>,
    /// What the disk refused: kept in memory, since it has no other copy.
    refused: BTreeMap<Handle, Bytes>,
}

impl Spill {
    pub fn open(path: PathBuf, bytes_max: u64) -> Result<Self, FolderError> {
        let folder = Folder::open(path, bytes_max)?;
        // What a process that ended left behind belongs to nobody.
        folder.clear()?;
        Ok(Self {
            folder: Arc::new(folder),
            written: BTreeMap::new(),
            users: BTreeMap::new(),
            refused: BTreeMap::new(),
        })
    }

    /// Writes content. If the disk refuses, nothing is lost: it is read from memory then.
    pub fn write(&mut self, handle: Handle, bytes: &Bytes) -> Result<(), FolderError> {
        let content = ContentId::of(bytes);
        if let Err(error) = self.folder.write(&content, bytes, |_| true) {
            self.refused.insert(handle, bytes.clone());
            return Err(error);
        }
        let before = self.written.insert(handle, content);
        assert!(before.is_none(), "content is spilled once");
        *self.users.entry(content).or_insert(0) += 1;
        Ok(())
    }

    /// Reads what was spilled.
    pub fn read(&self, handle: Handle) -> Result<Bytes, FolderError> {
        if let Some(bytes) = self.refused.get(&handle) {
            return Ok(bytes.clone());
        }
        let content = self.written.get(&handle).expect("it was spilled");
        let bytes = self.folder.read(content)?;
        bytes.ok_or(FolderError::Gone { id: *content })
    }

    /// What reads it without holding up anyone; none if the disk refused it.
    pub fn reading(&self, handle: Handle) -> Option<Restore> {
        let content = *self.written.get(&handle)?;
        let folder = self.folder.clone();
        Some(Restore { folder, content })
    }

    pub fn remove(&mut self, handle: Handle) -> Result<(), FolderError> {
        self.refused.remove(&handle);
        // Room that was never written to was never spilled.
        let Some(content) = self.written.remove(&handle) else {
            return Ok(());
        };
        let users = self
            .users
            .get_mut(&content)
            .expect("what is spilled is used");
        *users -= 1;
        if *users > 0 {
            return Ok(());
        }
        self.users.remove(&content);
        self.folder.remove(&content)
    }
}

/// Content on its way back from disk.
#[derive(Debug)]
pub struct Restore {
    folder: Arc<Folder>,
    content: ContentId,
}

impl Restore {
    /// Reads it, and checks that it is what was written.
    ///
    /// # Errors
    /// [`FolderError`]: it is gone, damaged, or the disk fails.
    pub fn read(&self) -> Result<Bytes, FolderError> {
        let bytes = self.folder.read(&self.content)?;
        bytes.ok_or(FolderError::Gone { id: self.content })
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        // The next process that opens the folder clears it as well.
        let _ = self.folder.clear();
    }
}
