//! Defines the messages of `/souk/tensor/2`, the protocol of transfers. They are the same over
//! libp2p and on a direct channel.
//!
//! The receiver can request several contents of one job at once. The sender must answer each in
//! turn: its head and then, if requested, its bytes from the first missing frame to the end,
//! without anything between.

use serde::{Deserialize, Serialize};
use souk_memory::{ContentId, FrameHash, Store, StoredContent};
use souk_roles::access::Scope;

/// The most contents in one request.
pub(super) const WANTS_MAX: usize = 256;

/// The longest request: as many wants of some fifty bytes each, and some spare bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 32 << 10;

/// The receiver's message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ContentRequest {
    /// The job that needs the contents.
    pub(super) scope: Scope,
    /// The requested contents, at most [`WANTS_MAX`].
    pub(super) wants: Vec<Want>,
}

/// A request for one content.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Want {
    pub(super) id: ContentId,
    /// The number of the first missing frame.
    pub(super) frame: u64,
    /// Whether the answer must include the hashes of the frames.
    pub(super) outline: bool,
    /// The length in bytes above which the answer has only the head.
    pub(super) body_bytes_max: u64,
}

/// The sender's message about one content.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ContentAnswer {
    /// The sender holds the content.
    Content {
        /// The length of the whole content in bytes.
        length: u64,
        /// The hashes of its frames, if the receiver requested them.
        frames: Vec<FrameHash>,
        /// Whether the bytes follow.
        follows: bool,
    },
    /// The sender does not hold the content, or not for this peer under this job; it does not say
    /// which.
    Missing,
}

impl Want {
    /// Returns the answer to this request, and the bytes that follow it.
    pub(super) fn build_answer(
        &self,
        held: Option<StoredContent>,
    ) -> (ContentAnswer, bytes::Bytes) {
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

/// Returns the content of an id from the store. Treats a damaged or unreadable file as missing.
pub(super) fn look_up(store: &Store, id: &ContentId) -> Option<StoredContent> {
    match store.get_with_outline(id) {
        Ok(held) => held,
        Err(error) => {
            tracing::warn!(%id, %error, "requested content could not be read from the store");
            None
        }
    }
}

/// Looks up a content without blocking the runtime's threads.
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
    use souk_node_testing::fuzzed;

    use super::*;

    fn wants(count: usize) -> ContentRequest {
        let want = Want {
            id: ContentId::for_content(b"weights"),
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
        fuzzed::fuzz_decoder(8, &[wants(3)]);
        fuzzed::fuzz_decoder::<ContentAnswer>(9, &[ContentAnswer::Missing]);
    }
}
