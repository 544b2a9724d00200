//! Why content did not arrive.

use libp2p::PeerId;
use souk_memory::{ContentId, OutlineError, StoreError};

use super::{RESUMES_MAX, TooManyTransfers};
use crate::network::OpenError;
use crate::network::wire::WireError;

/// Why content did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The peer could not be reached.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stream broke and did not come back.
    #[error("the transfer of {id} broke {RESUMES_MAX} times, last: {cause}")]
    Broken {
        /// What was wanted.
        id: ContentId,
        /// What the last attempt said.
        cause: WireError,
    },
    /// The peer does not hold it.
    #[error("peer {peer} does not hold {id}")]
    Missing {
        /// Who was asked.
        peer: PeerId,
        /// What was wanted.
        id: ContentId,
    },
    /// Other bytes came than were asked for.
    #[error("peer {peer} sent other bytes than {id}: the BLAKE3 of frame {frame} differs")]
    Corrupt {
        /// Who sent them.
        peer: PeerId,
        /// What was wanted.
        id: ContentId,
        /// Which frame is wrong, from 0.
        frame: u64,
    },
    /// What a peer says the content is made of is something else.
    #[error("peer {peer} describes other content than {id}: {cause}")]
    Outline {
        /// Who said it.
        peer: PeerId,
        /// What was wanted.
        id: ContentId,
        /// What is wrong with it.
        cause: Box<OutlineError>,
    },
    /// The content is over this node's limit.
    #[error("{id} has {length} bytes, and this node holds {limit} for one job")]
    TooLong {
        /// What was wanted.
        id: ContentId,
        /// Its length in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Nobody was named who may hold it.
    #[error("nobody is known who holds {id}")]
    Nobody {
        /// What was wanted.
        id: ContentId,
    },
    /// Too many transfers wait.
    #[error(transparent)]
    Full(#[from] TooManyTransfers),
    /// The store refused it.
    #[error("cannot keep what arrived: {0}")]
    Store(#[from] StoreError),
}
