//! What is on its way to this node, and who wants it: one brings a content, the others wait for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use souk_memory::ContentId;
use souk_memory::transfers::Urgency;
use tokio::sync::watch;

use super::lock;

/// Everything that somebody wants.
pub(super) type Contents = Mutex<HashMap<ContentId, Arc<WantedContent>>>;

/// One of those who want a content; the last to leave turns off the light.
pub(super) struct WantedHere<'a> {
    contents: &'a Contents,
    id: ContentId,
    pub(super) wanted: Arc<WantedContent>,
}

/// A content that somebody wants.
pub(super) struct WantedContent {
    /// One brings it, and the others wait.
    pub(super) alone: tokio::sync::Mutex<()>,
    /// As urgently as any of them wants it.
    pub(super) urgency: watch::Sender<Urgency>,
}

impl WantedContent {
    pub(super) fn hurry(&self, urgency: Urgency) {
        self.urgency.send_if_modified(|before| {
            let more = urgency > *before;
            *before = urgency.max(*before);
            more
        });
    }
}

impl Default for WantedContent {
    fn default() -> WantedContent {
        WantedContent {
            alone: tokio::sync::Mutex::default(),
            urgency: watch::Sender::new(Urgency::Guessed),
        }
    }
}

impl WantedHere<'_> {
    pub(super) fn new(contents: &Contents, id: ContentId) -> WantedHere<'_> {
        let wanted = lock(contents).entry(id).or_default().clone();
        WantedHere {
            contents,
            id,
            wanted,
        }
    }
}

impl Drop for WantedHere<'_> {
    fn drop(&mut self) {
        let mut coming = lock(self.contents);
        // The map's and this one's.
        if Arc::strong_count(&self.wanted) <= 2 {
            coming.remove(&self.id);
        }
    }
}
