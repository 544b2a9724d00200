//! What is said on `/souk/tensor/2`, over libp2p and on a direct channel alike.
//!
//! The receiver asks for some contents of one job at once; the sender answers each in turn: its
//! head, and then, if wanted, its bytes from the frame wanted to the end, without anything between.

use serde::{Deserialize, Serialize};
use souk_memory::{ContentId, FrameHash, Store, StoredContent};
use souk_roles::access::Scope;

/// Contents asked for at once.
pub(super) const WANTS_MAX: usize = 256;

/// The longest request: as many wants of some fifty bytes each, and room to spare.
pub(super) const REQUEST_BYTES_MAX: usize = 32 << 10;

/// The receiver's word.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ContentRequest {
    /// The job that it wants them for.
    pub(super) scope: Scope,
    /// What it wants, at most [`WANTS_MAX`].
    pub(super) wants: Vec<Want>,
}

/// One content that is wanted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Want {
    pub(super) id: ContentId,
    /// The first frame that is not there yet.
    pub(super) frame: u64,
    /// Whether the hashes of the frames are wanted.
    pub(super) outline: bool,
    /// Of longer content only the head is wanted.
    pub(super) body_bytes_max: u64,
}

/// The sender's word about one content.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ContentAnswer {
    /// It is here.
    Content {
        /// Length of the whole in bytes.
        length: u64,
        /// The hashes of its frames, if they were wanted.
        frames: Vec<FrameHash>,
        /// Whether the bytes follow.
        follows: bool,
    },
    /// The sender does not hold it, or not for this peer under this job: which, it does not say.
    Missing,
}

impl Want {
    /// The answer to it, and the bytes that follow.
    pub(super) fn answered(&self, held: Option<StoredContent>) -> (ContentAnswer, bytes::Bytes) {
        let Some(StoredContent { bytes, outline }) = held else {
            return (ContentAnswer::Missing, bytes::Bytes::new());
        };
        let length = outline.length();
        let follows = length <= self.body_bytes_max;
        let frames = match self.outline {
            true => outline.frames().to_vec(),
            false => Vec::new(),
        };
        let start = self.frame.saturating_mul(souk_memory::FRAME_BYTES as u64);
        let start = if follows { start.min(length) } else { length };
        let start = usize::try_from(start).expect("it is a place in bytes that are in memory");
        let answer = ContentAnswer::Content {
            length,
            frames,
            follows,
        };
        (answer, bytes.slice(start..))
    }
}

/// What a store holds of an id. A file that is damaged or does not read is not held.
pub(super) fn look_up(store: &Store, id: &ContentId) -> Option<StoredContent> {
    match store.held(id) {
        Ok(held) => held,
        Err(error) => {
            tracing::warn!(%id, %error, "content that is asked for cannot be read");
            None
        }
    }
}

/// The same without waiting for a disk on the runtime's threads.
pub(super) async fn look_up_aside(
    store: &std::sync::Arc<Store>,
    id: ContentId,
) -> Option<StoredContent> {
    if let Some(held) = store.in_reach(&id) {
        return Some(held);
    }
    if !store.has_folder() {
        return None;
    }
    let store = store.clone();
    let looking = tokio::task::spawn_blocking(move || look_up(&store, &id)).await;
    looking.ok().flatten()
}

#[cfg(test)]
mod tests {
    use souk_market::{AccountKey, JobId};

    use super::*;
    use crate::protocols::fuzzed;

    fn wants(count: usize) -> ContentRequest {
        let want = Want {
            id: ContentId::of(b"weights"),
            frame: u64::MAX,
            outline: true,
            body_bytes_max: u64::MAX,
        };
        let scope = Scope {
            buyer: AccountKey([1; 32]),
            job: JobId([2; 32]),
        };
        ContentRequest {
            scope,
            wants: vec![want; count],
        }
    }

    #[test]
    fn the_longest_request_is_within_its_limit() {
        let bytes = postcard::to_allocvec(&wants(WANTS_MAX)).unwrap();
        assert!(bytes.len() <= REQUEST_BYTES_MAX, "{} bytes", bytes.len());
    }

    #[test]
    fn damaged_requests_and_answers_do_no_harm() {
        fuzzed::try_messages(8, &[wants(3)]);
        fuzzed::try_messages::<ContentAnswer>(9, &[ContentAnswer::Missing]);
    }
}
