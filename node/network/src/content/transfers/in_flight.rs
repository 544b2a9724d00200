//! Makes sure that this node fetches a content only once at a time: of the callers that need it,
//! one fetches it, and the others must wait for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use souk_memory::ContentId;
use souk_memory::transfers::Urgency;
use tokio::sync::watch;

use super::lock;

/// All contents that callers need.
pub(super) type Contents = Mutex<HashMap<ContentId, Arc<WantedContent>>>;

/// A caller's need of a content. Dropping the last `InFlight` of a content removes its entry.
pub(super) struct InFlight<'a> {
    contents: &'a Contents,
    id: ContentId,
    pub(super) wanted: Arc<WantedContent>,
}

/// A content that callers need.
pub(super) struct WantedContent {
    /// Held by the caller that fetches it; the others wait.
    pub(super) alone: tokio::sync::Mutex<()>,
    /// The highest urgency of all callers.
    pub(super) urgency: watch::Sender<Urgency>,
}

impl WantedContent {
    pub(super) fn raise_urgency(&self, urgency: Urgency) {
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

impl InFlight<'_> {
    pub(super) fn new(contents: &Contents, id: ContentId) -> InFlight<'_> {
        let wanted = lock(contents).entry(id).or_default().clone();
        InFlight {
            contents,
            id,
            wanted,
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut coming = lock(self.contents);
        // One reference belongs to the map and one to this value.
        if Arc::strong_count(&self.wanted) <= 2 {
            coming.remove(&self.id);
        }
    }
}
