//! A content-addressed store: bytes under their BLAKE3 id, in memory and, optionally, in a folder.
//!
//! Several processes can share the folder: they write files aside and rename them, so a reader sees
//! a whole file or none. The store hashes each file that it reads, so it finds and removes a
//! damaged one. It flushes nothing to disk, because content can be fetched again and a torn file
//! fails its hash. A folder at its limit removes the oldest files, and a node that still needs one
//! must fetch it again. Without a folder memory has the only copy, so the store evicts only content
//! that its owner has released.

mod folder;
mod held;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use thiserror::Error;

use crate::room::SparePages;
use crate::{Arrival, ContentId, Outline, Tensor, TensorError, VerifiedContent};
pub(crate) use folder::Folder;
pub use folder::FolderError;
pub use held::HeldContent;

/// Spare pages of dropped content can take the memory limit divided by this, in addition to the
/// limit.
const SPARE_SHARE: u64 = 4;

/// The limits and folder of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The most bytes of content in memory.
    pub memory_bytes_max: u64,
    /// The folder for content on disk; `None` means memory only.
    pub folder: Option<PathBuf>,
    /// The most bytes of content in the folder, by all processes that share it.
    pub folder_bytes_max: u64,
}

/// Why a store cannot be opened.
#[derive(Debug, Error)]
pub enum StoreConfigError {
    /// The memory limit is zero, so no content fits.
    #[error("the store's memory limit is zero")]
    NoMemory,
    /// The folder is not usable.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Why content cannot be stored or read.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The memory limit is reached and the store can evict nothing.
    #[error(
        "the store's memory limit of {limit} bytes is reached: {held} held, {wanted} more wanted"
    )]
    MemoryFull {
        /// The limit, `memory_bytes_max`.
        limit: u64,
        /// Bytes that memory holds.
        held: u64,
        /// Bytes to add.
        wanted: u64,
    },
    /// The folder failed.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The content is not a tensor.
    #[error("content {id}: {cause}")]
    Tensor {
        /// The id of the content.
        id: ContentId,
        /// The fault in it.
        cause: TensorError,
    },
    /// The bytes do not match the stated id.
    #[error("the content does not have the id {stated}: its id is {found}")]
    Changed {
        /// The id stated.
        stated: ContentId,
        /// The id of the bytes.
        found: ContentId,
    },
}

/// The use of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreUse {
    /// Bytes that memory can hold.
    pub memory_bytes_max: u64,
    /// Bytes of content in memory.
    pub memory_bytes: u64,
    /// Items in memory.
    pub memory_items: usize,
    /// Pinned items, which the store cannot evict.
    pub pinned_items: usize,
    /// Bytes of spare pages of dropped content, in addition to `memory_bytes`.
    pub spare_bytes: u64,
    /// Reads from the folder for which a caller had to wait, so far.
    pub awaited_reads: u64,
}

/// The store. Threads share it by reference; it holds its lock for bookkeeping, never for hashing
/// or file access.
#[derive(Debug)]
pub struct Store {
    folder: Option<Folder>,
    memory: Mutex<Memory>,
    spare: Arc<SparePages>,
}

/// The part of the store in memory.
#[derive(Debug, Default)]
struct Memory {
    /// Bytes that it can hold; pinned items can exceed them after a resize.
    bytes_max: u64,
    items: BTreeMap<ContentId, MemoryEntry>,
    /// Items by their last use: the first is the first to go.
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
    /// Whether its last owner can provide it again.
    is_released: bool,
}

/// Content that a store holds, with the hashes that a fetching peer gets in advance.
#[derive(Clone, Debug)]
pub struct StoredContent {
    /// The bytes of the content.
    pub bytes: Bytes,
    /// The hashes of its frames.
    pub outline: Arc<Outline>,
}

impl StoredContent {
    fn from_bytes(bytes: Bytes) -> Self {
        let outline = Arc::new(Outline::from_bytes(&bytes));
        Self { bytes, outline }
    }
}

impl Store {
    /// Opens a store and creates the folder if it does not exist.
    ///
    /// # Errors
    /// [`StoreConfigError`] if the memory limit is zero or the folder is not usable.
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

    /// Creates a store in memory only.
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

    /// Sets the most bytes of content in memory. If it shrinks, the store evicts content that is
    /// also in the folder until the rest fits, the longest unused first. Pinned content stays and,
    /// without a folder, all content does; the store then accepts no new content until it fits.
    ///
    /// # Panics
    /// If `memory_bytes_max` is zero.
    pub fn set_memory_limit(&self, memory_bytes_max: u64) {
        assert!(memory_bytes_max > 0, "a store without room holds nothing");
        let mut memory = self.lock_memory();
        memory.bytes_max = memory_bytes_max;
        if self.folder.is_some() {
            memory.make_room(0, |_| true);
        }
    }

    /// Creates an arrival for content to store here later; it does not count against the limit yet.
    #[must_use]
    pub fn new_arrival(&self, outline: Outline) -> Arrival {
        Arrival::with_spare(outline, self.spare.clone())
    }

    /// Returns spare pages to the system that no content has used since the previous call. The
    /// owner of a store should call it periodically.
    pub fn age_spare_pages(&self) {
        self.spare.drop_idle();
    }

    /// Stores bytes and returns their id. Bytes already held are not stored again.
    ///
    /// # Errors
    /// [`StoreError::MemoryFull`] or [`StoreError::Folder`].
    pub fn put(&self, bytes: Bytes) -> Result<ContentId, StoreError> {
        let held = StoredContent::from_bytes(bytes);
        let id = held.outline.id();
        self.insert(id, held)?;
        Ok(id)
    }

    /// Stores bytes under an id that another party stated, if the id matches.
    ///
    /// # Errors
    /// [`StoreError::Changed`] if it does not, otherwise as for [`Store::put`].
    pub fn put_as(&self, stated: ContentId, bytes: Bytes) -> Result<(), StoreError> {
        let held = StoredContent::from_bytes(bytes);
        let found = held.outline.id();
        if found != stated {
            return Err(StoreError::Changed { stated, found });
        }
        self.insert(stated, held)
    }

    /// Stores bytes for a short time in memory alone, after checking the stated id, if there is
    /// one. The store can evict them like content that is also in the folder.
    ///
    /// # Errors
    /// [`StoreError::MemoryFull`] if pinned content fills the memory, otherwise as for
    /// [`Store::put_as`].
    pub fn put_passing(
        &self,
        stated: Option<ContentId>,
        bytes: Bytes,
    ) -> Result<ContentId, StoreError> {
        let content = StoredContent::from_bytes(bytes);
        let found = content.outline.id();
        if let Some(stated) = stated.filter(|stated| *stated != found) {
            return Err(StoreError::Changed { stated, found });
        }
        let mut memory = self.lock_memory();
        if self.folder.is_some() {
            memory.make_room(content.bytes.len() as u64, |_| true);
        }
        memory.take_in(found, content)?;
        Ok(found)
    }

    /// Stores content that was checked on arrival, without hashing it again.
    ///
    /// # Errors
    /// As for [`Store::put`].
    pub fn put_arrived(&self, arrived: VerifiedContent) -> Result<(), StoreError> {
        let (outline, bytes) = arrived.into_parts();
        let outline = Arc::new(outline);
        self.insert(outline.id(), StoredContent { bytes, outline })
    }

    /// Stores a tensor as its blob.
    ///
    /// # Errors
    /// As for [`Store::put`].
    pub fn put_tensor(&self, tensor: &Tensor) -> Result<ContentId, StoreError> {
        self.put(tensor.to_blob())
    }

    /// Returns the bytes of an id, if the store holds them; it verifies bytes from the folder.
    ///
    /// # Errors
    /// [`StoreError::Folder`] if a file is damaged (the store removes it) or cannot be read.
    pub fn get(&self, id: &ContentId) -> Result<Option<Bytes>, StoreError> {
        Ok(self.get_with_outline(id)?.map(|held| held.bytes))
    }

    /// Returns the bytes of an id with the hashes of their frames, otherwise like [`Store::get`].
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn get_with_outline(&self, id: &ContentId) -> Result<Option<StoredContent>, StoreError> {
        if let Some(held) = self.in_reach(id) {
            return Ok(Some(held));
        }
        let held = self.read_back(id)?;
        if held.is_some() {
            self.lock_memory().awaited_reads += 1;
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
        self.lock_memory().keep_if_room(*id, held.clone());
        Ok(Some(held))
    }

    /// Brings content from the folder into memory in advance, in this order, up to half of the
    /// memory limit. Returns the bytes brought. Content in memory counts toward that half.
    pub fn preload_content(&self, ids: &[ContentId]) -> u64 {
        let (mut room, mut came) = (self.lock_memory().bytes_max / 2, 0);
        for id in ids {
            let here = self.in_reach(id).map(|held| held.bytes.len() as u64);
            let folder = self.folder.as_ref();
            let Some(bytes) = here.or_else(|| folder?.item_length(id)) else {
                continue;
            };
            if bytes > room {
                break;
            }
            room -= bytes;
            // An unreadable file is no fault yet: a caller that needs it gets the error.
            if here.is_none() && matches!(self.read_back(id), Ok(Some(_))) {
                came += bytes;
            }
        }
        came
    }

    /// Returns content in memory, without waiting for a disk.
    #[must_use]
    pub fn in_reach(&self, id: &ContentId) -> Option<StoredContent> {
        self.lock_memory().mark_used(id)
    }

    /// Returns whether writing or reading can have to wait for a disk.
    #[must_use]
    pub fn has_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// Returns the tensor of an id, if the store holds it.
    ///
    /// # Errors
    /// As for [`Store::get`], and [`StoreError::Tensor`] if the content is not a tensor.
    pub fn get_tensor(&self, id: &ContentId) -> Result<Option<Tensor>, StoreError> {
        let Some(blob) = self.get(id)? else {
            return Ok(None);
        };
        let tensor = Tensor::from_blob(&blob);
        tensor
            .map(Some)
            .map_err(|cause| StoreError::Tensor { id: *id, cause })
    }

    /// Returns whether the store holds content, in memory or in the folder.
    #[must_use]
    pub fn contains(&self, id: &ContentId) -> bool {
        let held = self.lock_memory().items.contains_key(id);
        held || self
            .folder
            .as_ref()
            .is_some_and(|folder| folder.contains(id))
    }

    /// Replaces the memory of content by other memory with the same bytes; does nothing if the
    /// content is not in memory.
    ///
    /// # Panics
    /// If the bytes differ.
    pub fn replace_memory(&self, id: &ContentId, bytes: Bytes) {
        let held = self
            .lock_memory()
            .items
            .get(id)
            .map(|item| item.held.bytes.clone());
        let Some(held) = held else {
            return;
        };
        // It compares without the lock: content never changes, so the comparison stays valid.
        assert!(held == bytes, "content is moved, not changed");
        if let Some(item) = self.lock_memory().items.get_mut(id) {
            item.held.bytes = bytes;
        }
    }

    /// Keeps content, in memory and in the folder, until you have called [`Store::unpin`] as often.
    /// Other processes that share the folder do not see the pin and can still remove the file.
    pub fn pin(&self, id: ContentId) {
        *self.lock_memory().pins.entry(id).or_insert(0) += 1;
    }

    /// Reverts one [`Store::pin`].
    ///
    /// # Panics
    /// If the content is not pinned.
    pub fn unpin(&self, id: &ContentId) {
        let mut memory = self.lock_memory();
        let count = memory
            .pins
            .get_mut(id)
            .expect("only what is pinned is unpinned");
        *count -= 1;
        if *count == 0 {
            memory.pins.remove(id);
        }
    }

    /// Reverts one [`Store::pin`] of content that its owner can provide again. The store keeps it
    /// for the next owner, and evicts it when other content needs the room.
    ///
    /// # Panics
    /// If the content is not pinned.
    pub fn release(&self, id: &ContentId) {
        self.unpin(id);
        if let Some(item) = self.lock_memory().items.get_mut(id) {
            item.is_released = true;
        }
    }

    /// Removes content from memory and from the folder, unless it is pinned. Returns whether it was
    /// removed.
    ///
    /// # Errors
    /// [`StoreError::Folder`] if the file cannot be removed.
    pub fn remove(&self, id: &ContentId) -> Result<bool, StoreError> {
        {
            let mut memory = self.lock_memory();
            if memory.pins.contains_key(id) {
                return Ok(false);
            }
            memory.remove_entry(id);
        }
        if let Some(folder) = &self.folder {
            folder.remove(id)?;
        }
        Ok(true)
    }

    /// Returns the use of the store's memory.
    #[must_use]
    pub fn usage(&self) -> StoreUse {
        let memory = self.lock_memory();
        StoreUse {
            memory_bytes_max: memory.bytes_max,
            memory_bytes: memory.bytes,
            memory_items: memory.items.len(),
            pinned_items: memory.pins.len(),
            spare_bytes: self.spare.spare_bytes(),
            awaited_reads: memory.awaited_reads,
        }
    }

    fn insert(&self, id: ContentId, content: StoredContent) -> Result<(), StoreError> {
        if let Some(folder) = &self.folder {
            let pinned: BTreeSet<ContentId> = self.lock_memory().pins.keys().copied().collect();
            folder.write(&id, &content.bytes, |held| pinned.contains(held))?;
            self.lock_memory().keep_if_room(id, content);
            return Ok(());
        }
        self.lock_memory().take_in(id, content)
    }

    fn lock_memory(&self) -> MutexGuard<'_, Memory> {
        // Every change below is complete before anything can panic, so a poisoned lock is sound.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn mark_used(&mut self, id: &ContentId) -> Option<StoredContent> {
        self.uses += 1;
        let item = self.items.get_mut(id)?;
        self.by_use.remove(&item.used);
        item.used = self.uses;
        self.by_use.insert(self.uses, *id);
        Some(item.held.clone())
    }

    /// Keeps content that is nowhere else.
    fn take_in(&mut self, id: ContentId, content: StoredContent) -> Result<(), StoreError> {
        if let Some(item) = self.items.get_mut(&id) {
            item.is_released = false;
            return Ok(());
        }
        let wanted = content.bytes.len() as u64;
        if wanted <= self.bytes_max {
            self.make_room(wanted, |item| item.is_released);
        }
        let (limit, held) = (self.bytes_max, self.bytes);
        if held.saturating_add(wanted) > limit {
            return Err(StoreError::MemoryFull {
                limit,
                held,
                wanted,
            });
        }
        self.insert_entry(id, content);
        Ok(())
    }

    /// Keeps content that is also on disk, evicting the longest unused content.
    fn keep_if_room(&mut self, id: ContentId, held: StoredContent) {
        let wanted = held.bytes.len() as u64;
        if wanted > self.bytes_max || self.items.contains_key(&id) {
            return;
        }
        if self.make_room(wanted, |_| true) {
            self.insert_entry(id, held);
        }
    }

    /// Evicts the longest unused content of that which `may_go` allows, until `wanted` more bytes
    /// fit; returns false if no more can go. Pinned content always stays.
    fn make_room(&mut self, wanted: u64, may_go: impl Fn(&MemoryEntry) -> bool) -> bool {
        while self.bytes.saturating_add(wanted) > self.bytes_max {
            let can_go = |id: &&ContentId| !self.pins.contains_key(id) && may_go(&self.items[*id]);
            let Some(evicted) = self.by_use.values().find(can_go).copied() else {
                return false;
            };
            self.remove_entry(&evicted);
        }
        true
    }

    fn insert_entry(&mut self, id: ContentId, held: StoredContent) {
        self.uses += 1;
        self.bytes += held.bytes.len() as u64;
        self.by_use.insert(self.uses, id);
        let used = self.uses;
        let entry = MemoryEntry {
            held,
            used,
            is_released: false,
        };
        let before = self.items.insert(id, entry);
        assert!(before.is_none(), "content is kept once");
        assert_eq!(
            self.items.len(),
            self.by_use.len(),
            "every item has one place in the order"
        );
    }

    fn remove_entry(&mut self, id: &ContentId) {
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
