//! Passes contents from the provider into its sandboxes: it sends small ones as bytes and shares
//! large ones as memory.
//!
//! The provider creates shared memory once for each content and keeps it for later sandboxes. The
//! store then holds the same memory, so a weight is in memory once, however many leases use it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_host::sealed_memory::SealedMemory;
use souk_memory::{ContentId, Store, Tensor};

use super::SandboxFault;

/// The size from which content is shared: below it, creating shared memory costs more than sending.
const SHARED_BYTES_MIN: usize = 128 << 10;

/// The most memory shared with sandboxes; the least recently used goes first.
const SHARED_BYTES_MAX: usize = 2 << 30;

/// Pieces of shared memory in one message; the kernel allows 253.
const FILES_MAX: usize = 64;

/// Bytes of small content in one message.
const PARCEL_BYTES_MAX: usize = 4 << 20;

/// Memory that is shared with a sandbox.
pub(super) type SealedCopy = Arc<SealedMemory>;

/// One content in the form in which a sandbox receives it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum SharedContent {
    /// The bytes of the content.
    Here(Bytes),
    /// The next piece of shared memory that arrives with the message.
    SharedContents,
}

/// The contents of one message.
#[derive(Debug, Default)]
pub(super) struct Parcel {
    pub(super) contents: Vec<(ContentId, SharedContent)>,
    pub(super) sealed: Vec<SealedCopy>,
    bytes: usize,
}

/// The content that is shared with the sandboxes of a provider.
#[derive(Debug, Default)]
pub struct SharedContents {
    inner: Mutex<SharedInner>,
}

#[derive(Debug, Default)]
struct SharedInner {
    kept: BTreeMap<ContentId, (SealedCopy, u64)>,
    bytes: usize,
    uses: u64,
}

impl SharedContent {
    /// Returns a tensor's blob, to send or to share.
    pub(super) fn from_tensor(
        tensor: &Tensor,
        sealed: &mut Vec<SealedCopy>,
    ) -> io::Result<SharedContent> {
        let blob = tensor.to_blob();
        if blob.len() < SHARED_BYTES_MIN || sealed.len() == FILES_MAX {
            return Ok(SharedContent::Here(blob));
        }
        sealed.push(Arc::new(SealedMemory::new(&[&blob])?));
        Ok(SharedContent::SharedContents)
    }

    /// Returns the bytes; `shared` must be the shared memory of the message, in order.
    pub(super) fn into_bytes(
        self,
        shared: &mut impl Iterator<Item = SealedMemory>,
    ) -> io::Result<Bytes> {
        match self {
            SharedContent::Here(bytes) => Ok(bytes),
            SharedContent::SharedContents => {
                shared.next().ok_or(io::ErrorKind::InvalidData)?.map_bytes()
            }
        }
    }
}

impl SharedContents {
    /// Returns the contents with these ids, in as many messages as necessary. It leaves out a
    /// content that the store does not have: the sandbox will report it as missing.
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
            let last = parcels.last().expect("there is one from the start");
            if last.sealed.len() == FILES_MAX || last.bytes > PARCEL_BYTES_MAX {
                parcels.push(Parcel::default());
            }
            let last = parcels.last_mut().expect("there is one from the start");
            if bytes.len() < SHARED_BYTES_MIN {
                last.bytes += bytes.len();
                last.contents.push((*id, SharedContent::Here(bytes)));
            } else {
                last.sealed.push(self.share_content(store, *id, &bytes)?);
                last.contents.push((*id, SharedContent::SharedContents));
            }
        }
        Ok(parcels)
    }

    fn share_content(
        &self,
        store: &Store,
        id: ContentId,
        bytes: &Bytes,
    ) -> Result<SealedCopy, SandboxFault> {
        if let Some(kept) = self.lock_inner().touch_content(&id) {
            return Ok(kept);
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
    fn touch_content(&mut self, id: &ContentId) -> Option<SealedCopy> {
        self.uses += 1;
        let (kept, used) = self.kept.get_mut(id)?;
        *used = self.uses;
        Some(kept.clone())
    }

    fn insert_copy(&mut self, id: ContentId, sealed: SealedCopy) {
        while self.bytes + sealed.length() > SHARED_BYTES_MAX {
            let oldest = self.kept.iter().min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(id, _)| *id) else {
                break;
            };
            self.remove_copy(&oldest);
        }
        self.remove_copy(&id);
        self.uses += 1;
        self.bytes += sealed.length();
        self.kept.insert(id, (sealed, self.uses));
    }

    fn remove_copy(&mut self, id: &ContentId) {
        if let Some((gone, _)) = self.kept.remove(id) {
            self.bytes -= gone.length();
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
            matches!(&first[0].contents[1].1, SharedContent::Here(bytes) if &bytes[..] == b"small")
        );
        assert_eq!(store.get(&ids[0]).unwrap().unwrap(), large);
    }
}
