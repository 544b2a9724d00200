//! Lists the reasons why content did not arrive: the error of every fetch, with the texts that
//! users see.

use libp2p::PeerId;
use souk_memory::{ContentId, OutlineError, StoreError};

use super::{RESUMES_MAX, TooManyTransfers};
use crate::OpenError;
use crate::wire::WireError;

/// Why content did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The peer is not reachable.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stream broke, and resuming it failed.
    #[error("the transfer of {id} broke {RESUMES_MAX} times, last: {cause}")]
    Broken {
        /// The id of the content.
        id: ContentId,
        /// The error of the last attempt.
        cause: WireError,
    },
    /// The peer does not hold the content.
    #[error("peer {peer} does not hold {id}")]
    Missing {
        /// The peer that answered.
        peer: PeerId,
        /// The id of the content.
        id: ContentId,
    },
    /// The peer sent wrong bytes.
    #[error("peer {peer} sent other bytes than {id}: the BLAKE3 of frame {frame} differs")]
    Corrupt {
        /// The peer that sent them.
        peer: PeerId,
        /// The id of the content.
        id: ContentId,
        /// The number of the wrong frame, from 0.
        frame: u64,
    },
    /// The outline that a peer states belongs to other content.
    #[error("peer {peer} describes other content than {id}: {cause}")]
    Outline {
        /// The peer that stated it.
        peer: PeerId,
        /// The id of the content.
        id: ContentId,
        /// The fault of the outline.
        cause: Box<OutlineError>,
    },
    /// The content exceeds this node's limit.
    #[error("{id} has {length} bytes, but this node holds at most {limit} for one job")]
    TooLong {
        /// The id of the content.
        id: ContentId,
        /// The length of the content in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The caller named no peer that can hold the content.
    #[error("no peer is known to hold {id}")]
    Nobody {
        /// The id of the content.
        id: ContentId,
    },
    /// Too many transfers wait: the caller can try again once some of them have ended.
    #[error(transparent)]
    Full(#[from] TooManyTransfers),
    /// The store did not accept the content.
    #[error("cannot store the received content: {0}")]
    Store(#[from] StoreError),
}
