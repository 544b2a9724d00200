//! A conversation with a provider whose work is done.

use std::collections::BTreeSet;

use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_market::AccountKey;
use souk_memory::ContentId;
use tokio::sync::Mutex;

use crate::protocols::lease::{Finished, Start};

/// A provider that was reached and whose work is done; it waits for the signature.
pub(super) struct Session {
    pub(super) provider: AccountKey,
    pub(super) peer: PeerId,
    pub(super) start: Start,
    /// What it was given beside what the start names: of further requests, the buyer's inputs and
    /// what others made.
    pub(super) given: BTreeSet<ContentId>,
    /// Tensors of one name that another provider may have given it and told nobody of.
    pub(super) untold_max: usize,
    /// In a lock that nobody waits for: a stream may be sent between threads but not shared, and
    /// sessions are read by several steps.
    pub(super) stream: Mutex<Stream>,
    pub(super) finished: Finished,
}

impl Session {
    pub(super) fn new(
        (provider, peer): (AccountKey, PeerId),
        start: Start,
        stream: Stream,
        finished: Finished,
    ) -> Session {
        Session {
            provider,
            peer,
            start,
            given: BTreeSet::new(),
            untold_max: 1,
            stream: Mutex::new(stream),
            finished,
        }
    }
}
