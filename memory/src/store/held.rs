//! Defines [`HeldContent`], a hold on some content: the store keeps the content only as long as
//! there is a hold on it.
//!
//! A store without a folder evicts only released content, so an owner of short-lived content must
//! remove it. Equal contents share an id, so several owners can hold one copy: the store removes it
//! when the last of them drops its [`HeldContent`].

use std::sync::Arc;

use bytes::Bytes;

use super::{Store, StoreError, StoredContent};
use crate::ContentId;

/// A hold on content. Dropping the last one of a content removes it from the store.
#[derive(Debug)]
pub struct HeldContent {
    store: Arc<Store>,
    id: ContentId,
}

impl HeldContent {
    /// Stores bytes, and holds them.
    ///
    /// # Errors
    /// As for [`Store::put`].
    pub fn put(store: &Arc<Store>, bytes: Bytes) -> Result<HeldContent, StoreError> {
        let content = StoredContent::from_bytes(bytes);
        // The hold comes first: another one that ends meanwhile must not remove the content.
        let held = HeldContent::for_id(store, content.outline.id());
        store.insert(held.id, content)?;
        Ok(held)
    }

    /// Holds the content of an id, which the store can receive later.
    #[must_use]
    pub fn for_id(store: &Arc<Store>, id: ContentId) -> HeldContent {
        store.pin(id);
        HeldContent {
            store: store.clone(),
            id,
        }
    }

    /// Returns the id of the content.
    #[must_use]
    pub fn id(&self) -> ContentId {
        self.id
    }
}

impl Drop for HeldContent {
    fn drop(&mut self) {
        self.store.unpin(&self.id);
        // The store refuses as long as another hold or pin is there. A file that cannot be removed
        // stays until the folder reaches its limit.
        let _ = self.store.remove(&self.id);
    }
}
