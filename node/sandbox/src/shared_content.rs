//! Passes contents (such as weights and models) from the provider into its sandboxes: sends small
//! ones as bytes and shares large ones as memory.
//!
//! The provider creates shared memory once for each content and keeps it for later sandboxes. Its
//! store then holds the same memory, so a weight is in memory once, however many leases use it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_host::sealed_memory::SealedMemory;
use souk_memory::{ContentId, Store, Tensor};

use super::SandboxFault;

/// Minimum bytes of shared content: below it, to create shared memory costs more than to send the
/// bytes.
const SHARED_BYTES_MIN: usize = 128 << 10;

/// Maximum bytes of shared memory that the provider keeps. It drops the least recently used first.
const SHARED_BYTES_MAX: usize = 2 << 30;

/// Maximum pieces of shared memory in one message; the kernel allows 253.
const FILES_MAX: usize = 64;

/// Bytes of small content after which a message takes no more content.
const PARCEL_BYTES_MAX: usize = 4 << 20;

/// Memory that is shared with a sandbox.
pub(super) type SealedCopy = Arc<SealedMemory>;

/// One content in the form in which a sandbox receives it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum SharedContent {
    /// The bytes of the content.
    Bytes(Bytes),
    /// The next piece of shared memory that arrives with the message.
    NextMemory,
}

/// The contents of one message.
#[derive(Debug, Default)]
pub(super) struct Parcel {
    pub(super) contents: Vec<(ContentId, SharedContent)>,
    /// The memory of each [`SharedContent::NextMemory`], in order.
    pub(super) sealed: Vec<SealedCopy>,
    /// Bytes of the small contents.
    bytes: usize,
}

/// The content that is shared with the sandboxes of a provider.
#[derive(Debug, Default)]
pub struct SharedContents {
    inner: Mutex<SharedInner>,
}

#[derive(Debug, Default)]
struct SharedInner {
    /// The shared memory of each content, and the number of its last use.
    copies: BTreeMap<ContentId, (SealedCopy, u64)>,
    /// Bytes of all copies.
    bytes: usize,
    /// The number of uses so far.
    uses: u64,
}

impl SharedContent {
    /// Converts a tensor to content. If its blob is large, puts it into shared memory, which it
    /// adds to `sealed`.
    pub(super) fn from_tensor(
        tensor: &Tensor,
        sealed: &mut Vec<SealedCopy>,
    ) -> io::Result<SharedContent> {
        let blob = tensor.to_blob();
        if blob.len() < SHARED_BYTES_MIN || sealed.len() == FILES_MAX {
            return Ok(SharedContent::Bytes(blob));
        }
        sealed.push(Arc::new(SealedMemory::new(&[&blob])?));
        Ok(SharedContent::NextMemory)
    }

    /// Returns the bytes; `shared` must be the shared memory of the message, in order.
    pub(super) fn into_bytes(
        self,
        shared: &mut impl Iterator<Item = SealedMemory>,
    ) -> io::Result<Bytes> {
        match self {
            SharedContent::Bytes(bytes) => Ok(bytes),
            SharedContent::NextMemory => {
                shared.next().ok_or(io::ErrorKind::InvalidData)?.map_bytes()
            }
        }
    }
}

impl SharedContents {
    /// Returns the contents with these ids, in as many messages as necessary. It omits contents
    /// that the store does not have; the sandbox will report them as missing.
    pub(super) fn gather_parcels(
        &self,
        store: &Store,
        ids: &[ContentId],
    ) -> Result<Vec<Parcel>, SandboxFault> {
        let mut parcels = vec![Parcel::default()];
        for id in ids {
            let Some(bytes) = store.get(id)? else {
                continue;
            };
            let last = parcels.last().expect("the list is never empty");
            if last.sealed.len() == FILES_MAX || last.bytes > PARCEL_BYTES_MAX {
                parcels.push(Parcel::default());
            }
            let last = parcels.last_mut().expect("the list is never empty");
            if bytes.len() < SHARED_BYTES_MIN {
                last.bytes += bytes.len();
                last.contents.push((*id, SharedContent::Bytes(bytes)));
            } else {
                last.sealed.push(self.share_content(store, *id, &bytes)?);
                last.contents.push((*id, SharedContent::NextMemory));
            }
        }
        Ok(parcels)
    }

    /// Returns the shared memory of a content, and creates it if necessary.
    fn share_content(
        &self,
        store: &Store,
        id: ContentId,
        bytes: &Bytes,
    ) -> Result<SealedCopy, SandboxFault> {
        if let Some(copy) = self.lock_inner().touch_content(&id) {
            return Ok(copy);
        }
        let sealed = Arc::new(SealedMemory::new(&[bytes]).map_err(SandboxFault::Memory)?);
        store.replace_memory(&id, sealed.map_bytes().map_err(SandboxFault::Memory)?);
        self.lock_inner().insert_copy(id, sealed.clone());
        Ok(sealed)
    }

    fn lock_inner(&self) -> MutexGuard<'_, SharedInner> {
        // No code here panics half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedInner {
    /// Returns the copy of a content, if there is one, and records the use.
    fn touch_content(&mut self, id: &ContentId) -> Option<SealedCopy> {
        self.uses += 1;
        let (copy, last_use) = self.copies.get_mut(id)?;
        *last_use = self.uses;
        Some(copy.clone())
    }

    fn insert_copy(&mut self, id: ContentId, sealed: SealedCopy) {
        while self.bytes + sealed.length() > SHARED_BYTES_MAX {
            let oldest = self
                .copies
                .iter()
                .min_by_key(|(_, (_, last_use))| *last_use);
            let Some(oldest) = oldest.map(|(id, _)| *id) else {
                break;
            };
            self.remove_copy(&oldest);
        }
        self.remove_copy(&id);
        self.uses += 1;
        self.bytes += sealed.length();
        self.copies.insert(id, (sealed, self.uses));
    }

    fn remove_copy(&mut self, id: &ContentId) {
        if let Some((removed, _)) = self.copies.remove(id) {
            self.bytes -= removed.length();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_content_is_shared_once_and_small_content_sent() {
        let (store, shared) = (Store::in_memory(1 << 30), SharedContents::default());
        let large = Bytes::from(vec![7; SHARED_BYTES_MIN]);
        let ids = [&large, &Bytes::from_static(b"small")].map(|b| store.put(b.clone()).unwrap());
        let missing = ContentId::for_content(b"nobody has it");
        let wanted = [ids[0], ids[1], missing];
        let first = shared.gather_parcels(&store, &wanted).unwrap();
        let again = shared.gather_parcels(&store, &wanted).unwrap();
        assert_eq!((first.len(), first[0].contents.len()), (1, 2));
        assert!(Arc::ptr_eq(&first[0].sealed[0], &again[0].sealed[0]));
        assert!(
            matches!(&first[0].contents[1].1, SharedContent::Bytes(bytes) if &bytes[..] == b"small")
        );
        assert_eq!(store.get(&ids[0]).unwrap().unwrap(), large);
    }
}
