//! A content-addressed store: bytes under their BLAKE3 id, in memory and, if wanted, in a folder.
//!
//! The folder may be shared by several processes: files are written aside and renamed, so a reader
//! sees a whole file or none, and what is read is hashed, so a damaged file is found and removed
//! rather than used. Nothing is flushed to the disk: content can be fetched again, and a torn file
//! fails its hash. A folder at its limit lets go of what was written longest ago, and whoever still
//! wants that fetches it again. Without a folder nothing is evicted, since memory is then the only
//! copy.

mod folder;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use thiserror::Error;

use crate::room::SparePages;
use crate::{Arrival, ContentId, Outline, Tensor, TensorError, VerifiedContent};
pub(crate) use folder::Folder;
pub use folder::FolderError;

/// The part of the memory limit that pages of content that went may take beside it.
const SPARE_SHARE: u64 = 4;

/// Limits and place of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Bytes of content kept in memory.
    pub memory_bytes_max: u64,
    /// Where content is kept on disk; `None` keeps it in memory only.
    pub folder: Option<PathBuf>,
    /// Bytes of content kept in the folder, by all processes that share it.
    pub folder_bytes_max: u64,
}

/// Why a store could not be opened.
#[derive(Debug, Error)]
pub enum StoreConfigError {
    /// No content fits.
    #[error("the store's memory limit is zero")]
    NoMemory,
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Why content could not be stored or read.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The memory limit is reached and nothing can be evicted.
    #[error(
        "the store's memory limit of {limit} bytes is reached: {held} held, {wanted} more wanted"
    )]
    MemoryFull {
        /// `memory_bytes_max`.
        limit: u64,
        /// Bytes held.
        held: u64,
        /// Bytes that should be added.
        wanted: u64,
    },
    /// The folder failed.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Content that was asked for as a tensor is none.
    #[error("content {id}: {cause}")]
    Tensor {
        /// The content.
        id: ContentId,
        /// Why it is no tensor.
        cause: TensorError,
    },
    /// The bytes are not what the id names.
    #[error("content given as {stated} is {found}")]
    Changed {
        /// The id stated.
        stated: ContentId,
        /// The id of the bytes.
        found: ContentId,
    },
}

/// What a store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreUse {
    /// Bytes that memory may hold.
    pub memory_bytes_max: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Items in memory.
    pub memory_items: usize,
    /// Items that may not be evicted.
    pub pinned_items: usize,
    /// Bytes of content that went, kept for content that comes; beside `memory_bytes`.
    pub spare_bytes: u64,
    /// Contents that somebody waited for while they were read from the folder, so far.
    pub awaited_reads: u64,
}

/// The store. Threads share it by reference; the lock is held for bookkeeping, never for hashing or
/// for files.
#[derive(Debug)]
pub struct Store {
    folder: Option<Folder>,
    memory: Mutex<Memory>,
    spare: Arc<SparePages>,
}

/// The part of the store in memory.
#[derive(Debug, Default)]
struct Memory {
    /// Bytes that it may hold; more while what is over it is pinned.
    bytes_max: u64,
    items: BTreeMap<ContentId, MemoryEntry>,
    /// Items by when they were last used: the first is the first to go.
    by_use: BTreeMap<u64, ContentId>,
    pins: BTreeMap<ContentId, usize>,
    bytes: u64,
    uses: u64,
    awaited_reads: u64,
}

#[derive(Debug)]
struct MemoryEntry {
    held: StoredContent,
    used: u64,
}

/// Content that a store holds, with what whoever fetches it is told beforehand.
#[derive(Clone, Debug)]
pub struct StoredContent {
    /// The bytes.
    pub bytes: Bytes,
    /// The hashes of their frames.
    pub outline: Arc<Outline>,
}

impl StoredContent {
    fn of(bytes: Bytes) -> Self {
        let outline = Arc::new(Outline::of(&bytes));
        Self { bytes, outline }
    }
}

impl Store {
    /// Opens a store; the folder is made if it is not there.
    ///
    /// # Errors
    /// [`StoreConfigError`] where a limit is zero or the folder cannot be used.
    pub fn open(config: StoreConfig) -> Result<Self, StoreConfigError> {
        if config.memory_bytes_max == 0 {
            return Err(StoreConfigError::NoMemory);
        }
        let open = |path| Folder::open(path, config.folder_bytes_max);
        let folder = config.folder.map(open).transpose()?;
        Ok(Self {
            folder,
            ..Self::in_memory(config.memory_bytes_max)
        })
    }

    /// A store in memory only.
    ///
    /// # Panics
    /// If `memory_bytes_max` is zero.
    #[must_use]
    pub fn in_memory(memory_bytes_max: u64) -> Self {
        assert!(memory_bytes_max > 0, "a store without room holds nothing");
        Self {
            folder: None,
            memory: Mutex::new(Memory {
                bytes_max: memory_bytes_max,
                ..Memory::default()
            }),
            spare: Arc::new(SparePages::new(memory_bytes_max / SPARE_SHARE)),
        }
    }

    /// Sets how many bytes of content memory may hold. It grows, or shrinks: what lies in the
    /// folder too is let go of until the rest fits, what was used longest ago first. What is pinned
    /// stays, and without a folder everything does; then nothing more is taken in until it fits.
    ///
    /// # Panics
    /// If `memory_bytes_max` is zero.
    pub fn resize(&self, memory_bytes_max: u64) {
        assert!(memory_bytes_max > 0, "a store without room holds nothing");
        let mut memory = self.memory();
        memory.bytes_max = memory_bytes_max;
        if self.folder.is_some() {
            memory.make_room(0);
        }
    }

    /// Room for content that is to be stored here once it came; nothing is taken of the limit yet.
    #[must_use]
    pub fn awaits(&self, outline: Outline) -> Arrival {
        Arrival::with_spare(outline, self.spare.clone())
    }

    /// Gives pages of content that went back to the system, those that were not wanted since this
    /// was called before. Whoever keeps a store calls it now and then.
    pub fn age_spare_pages(&self) {
        self.spare.age();
    }

    /// Stores bytes and gives their id. Bytes already held are not stored again.
    ///
    /// # Errors
    /// [`StoreError::MemoryFull`] or [`StoreError::Folder`].
    pub fn put(&self, bytes: Bytes) -> Result<ContentId, StoreError> {
        let held = StoredContent::of(bytes);
        let id = held.outline.id();
        self.insert(id, held)?;
        Ok(id)
    }

    /// Stores bytes under an id another party stated, if it is theirs.
    ///
    /// # Errors
    /// [`StoreError::Changed`] if it is not, else as [`Store::put`].
    pub fn put_as(&self, stated: ContentId, bytes: Bytes) -> Result<(), StoreError> {
        let held = StoredContent::of(bytes);
        let found = held.outline.id();
        if found != stated {
            return Err(StoreError::Changed { stated, found });
        }
        self.insert(stated, held)
    }

    /// Stores bytes that are wanted for a moment, under an id that another party stated if one did:
    /// in memory alone, which lets go of them as it does of what lies in the folder too.
    ///
    /// # Errors
    /// [`StoreError::MemoryFull`] where what is pinned fills it, and as [`Store::put_as`].
    pub fn put_passing(
        &self,
        stated: Option<ContentId>,
        bytes: Bytes,
    ) -> Result<ContentId, StoreError> {
        let content = StoredContent::of(bytes);
        let found = content.outline.id();
        if let Some(stated) = stated.filter(|stated| *stated != found) {
            return Err(StoreError::Changed { stated, found });
        }
        let mut memory = self.memory();
        if self.folder.is_some() {
            memory.make_room(content.bytes.len() as u64);
        }
        memory.take_in(found, content)?;
        Ok(found)
    }

    /// Stores content that was checked as it came; it is not hashed again.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_arrived(&self, arrived: VerifiedContent) -> Result<(), StoreError> {
        let (outline, bytes) = arrived.into_parts();
        let outline = Arc::new(outline);
        self.insert(outline.id(), StoredContent { bytes, outline })
    }

    /// Stores a tensor as its blob.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_tensor(&self, tensor: &Tensor) -> Result<ContentId, StoreError> {
        self.put(tensor.to_blob())
    }

    /// The bytes of an id, if they are held; read from the folder, they are verified.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when a file is damaged (it is removed) or cannot be read.
    pub fn get(&self, id: &ContentId) -> Result<Option<Bytes>, StoreError> {
        Ok(self.held(id)?.map(|held| held.bytes))
    }

    /// The bytes of an id with the hashes of their frames; else as [`Store::get`].
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn held(&self, id: &ContentId) -> Result<Option<StoredContent>, StoreError> {
        if let Some(held) = self.in_reach(id) {
            return Ok(Some(held));
        }
        let held = self.read_back(id)?;
        if held.is_some() {
            self.memory().awaited_reads += 1;
        }
        Ok(held)
    }

    fn read_back(&self, id: &ContentId) -> Result<Option<StoredContent>, StoreError> {
        let Some(folder) = &self.folder else {
            return Ok(None);
        };
        let Some((bytes, outline)) = folder.read_outlined(id)? else {
            return Ok(None);
        };
        let outline = Arc::new(outline);
        let held = StoredContent { bytes, outline };
        self.memory().keep_if_room(*id, held.clone());
        Ok(Some(held))
    }

    /// Brings content from the folder into memory before somebody wants it, as far as it takes half
    /// of the memory at most; says how many bytes came. What is there already counts with it.
    pub fn recall(&self, ids: &[ContentId]) -> u64 {
        let (mut room, mut came) = (self.memory().bytes_max / 2, 0);
        for id in ids {
            let here = self.in_reach(id).map(|held| held.bytes.len() as u64);
            let folder = self.folder.as_ref();
            let Some(bytes) = here.or_else(|| folder?.length(id)) else {
                continue;
            };
            if bytes > room {
                break;
            }
            room -= bytes;
            // What cannot be read is nobody's loss yet: who wants it is told.
            if here.is_none() && matches!(self.read_back(id), Ok(Some(_))) {
                came += bytes;
            }
        }
        came
    }

    /// What is held in memory: never waits for a disk.
    #[must_use]
    pub fn in_reach(&self, id: &ContentId) -> Option<StoredContent> {
        self.memory().touch(id)
    }

    /// Whether writing or reading may have to wait for a disk.
    #[must_use]
    pub fn has_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// The tensor of an id, if it is held.
    ///
    /// # Errors
    /// As [`Store::get`], and [`StoreError::Tensor`] if the content is no tensor.
    pub fn tensor(&self, id: &ContentId) -> Result<Option<Tensor>, StoreError> {
        let Some(blob) = self.get(id)? else {
            return Ok(None);
        };
        let tensor = Tensor::from_blob(&blob);
        tensor
            .map(Some)
            .map_err(|cause| StoreError::Tensor { id: *id, cause })
    }

    /// Whether content is held, in memory or in the folder.
    #[must_use]
    pub fn contains(&self, id: &ContentId) -> bool {
        let held = self.memory().items.contains_key(id);
        held || self
            .folder
            .as_ref()
            .is_some_and(|folder| folder.contains(id))
    }

    /// Has content that is held in memory lie in other memory, with the same bytes; nothing happens
    /// if it is not held there.
    ///
    /// # Panics
    /// If the bytes are others.
    pub fn rehouse(&self, id: &ContentId, bytes: Bytes) {
        let held = self
            .memory()
            .items
            .get(id)
            .map(|item| item.held.bytes.clone());
        let Some(held) = held else {
            return;
        };
        // Compared without the lock: content does not change, so it still is what it was.
        assert!(held == bytes, "content is moved, not changed");
        if let Some(item) = self.memory().items.get_mut(id) {
            item.held.bytes = bytes;
        }
    }

    /// Keeps content, in memory and in the folder, until [`Store::unpin`] was called as often.
    pub fn pin(&self, id: ContentId) {
        *self.memory().pins.entry(id).or_insert(0) += 1;
    }

    /// Takes back one [`Store::pin`].
    ///
    /// # Panics
    /// If the content is not pinned.
    pub fn unpin(&self, id: &ContentId) {
        let mut memory = self.memory();
        let count = memory
            .pins
            .get_mut(id)
            .expect("only what is pinned is unpinned");
        *count -= 1;
        if *count == 0 {
            memory.pins.remove(id);
        }
    }

    /// Forgets content, in memory and in the folder. Pinned content stays; says whether it went.
    ///
    /// # Errors
    /// [`StoreError::Folder`] if the file cannot be removed.
    pub fn remove(&self, id: &ContentId) -> Result<bool, StoreError> {
        {
            let mut memory = self.memory();
            if memory.pins.contains_key(id) {
                return Ok(false);
            }
            memory.forget(id);
        }
        if let Some(folder) = &self.folder {
            folder.remove(id)?;
        }
        Ok(true)
    }

    /// What the store holds in memory.
    #[must_use]
    pub fn usage(&self) -> StoreUse {
        let memory = self.memory();
        StoreUse {
            memory_bytes_max: memory.bytes_max,
            memory_bytes: memory.bytes,
            memory_items: memory.items.len(),
            pinned_items: memory.pins.len(),
            spare_bytes: self.spare.bytes(),
            awaited_reads: memory.awaited_reads,
        }
    }

    fn insert(&self, id: ContentId, content: StoredContent) -> Result<(), StoreError> {
        if let Some(folder) = &self.folder {
            let pinned: BTreeSet<ContentId> = self.memory().pins.keys().copied().collect();
            folder.write(&id, &content.bytes, |held| pinned.contains(held))?;
            self.memory().keep_if_room(id, content);
            return Ok(());
        }
        self.memory().take_in(id, content)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Every change below is whole before anything can panic, so a poisoned lock is sound.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn touch(&mut self, id: &ContentId) -> Option<StoredContent> {
        self.uses += 1;
        let item = self.items.get_mut(id)?;
        self.by_use.remove(&item.used);
        item.used = self.uses;
        self.by_use.insert(self.uses, *id);
        Some(item.held.clone())
    }

    /// Keeps content that is nowhere else.
    fn take_in(&mut self, id: ContentId, content: StoredContent) -> Result<(), StoreError> {
        if self.items.contains_key(&id) {
            return Ok(());
        }
        let (limit, held) = (self.bytes_max, self.bytes);
        let wanted = content.bytes.len() as u64;
        if held.saturating_add(wanted) > limit {
            return Err(StoreError::MemoryFull {
                limit,
                held,
                wanted,
            });
        }
        self.keep(id, content);
        Ok(())
    }

    /// Keeps content that is also on disk, evicting what was used longest ago.
    fn keep_if_room(&mut self, id: ContentId, held: StoredContent) {
        let wanted = held.bytes.len() as u64;
        if wanted > self.bytes_max || self.items.contains_key(&id) {
            return;
        }
        if self.make_room(wanted) {
            self.keep(id, held);
        }
    }

    /// Evicts what was used longest ago until so many bytes more fit; false where what is left is
    /// pinned.
    fn make_room(&mut self, wanted: u64) -> bool {
        while self.bytes + wanted > self.bytes_max {
            let unpinned = self.by_use.values().find(|id| !self.pins.contains_key(id));
            let Some(evicted) = unpinned.copied() else {
                return false;
            };
            self.forget(&evicted);
        }
        true
    }

    fn keep(&mut self, id: ContentId, held: StoredContent) {
        self.uses += 1;
        self.bytes += held.bytes.len() as u64;
        self.by_use.insert(self.uses, id);
        let used = self.uses;
        let before = self.items.insert(id, MemoryEntry { held, used });
        assert!(before.is_none(), "content is kept once");
        assert_eq!(
            self.items.len(),
            self.by_use.len(),
            "every item has one place in the order"
        );
    }

    fn forget(&mut self, id: &ContentId) {
        let Some(item) = self.items.remove(id) else {
            return;
        };
        self.by_use.remove(&item.used);
        self.bytes -= item.held.bytes.len() as u64;
        assert_eq!(
            self.items.len(),
            self.by_use.len(),
            "every item has one place in the order"
        );
    }
}

#[cfg(test)]
mod tests;
