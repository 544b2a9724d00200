//! The result of a fetch: the bytes of a content, which peer sent them, and how fast.

use bytes::Bytes;
use libp2p::PeerId;

use crate::content::links::{Carrier, Sample};

/// Content that is now in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedContent {
    /// The bytes of the content.
    pub bytes: Bytes,
    /// Bytes that came over the network; 0 if the content was there already.
    pub moved: u64,
    /// The peer that sent the last frames, and the carrier; none if the content was there already.
    pub from: Option<(PeerId, Carrier)>,
    /// The measurement of the transfer.
    pub took: Option<Sample>,
}

impl FetchedContent {
    /// Describes content that was in the store already.
    pub(super) fn held_here(bytes: Bytes) -> FetchedContent {
        FetchedContent {
            bytes,
            moved: 0,
            from: None,
            took: None,
        }
    }
}
