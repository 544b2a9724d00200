//! Which leases run here, and which tensors they wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libp2p::PeerId;
use souk_market::LeaseId;

use crate::protocols::lease::{Failure, Finished, Offer, Start, Taken};
use crate::provider::inbox::{Awaited, Door};

/// Leases at work at a time. One device does one thing; the others fetch what they need.
const RUNNING_MAX: usize = 16;

/// Leases remembered as started. The market ends a lease long before it is forgotten here.
const STARTED_MAX: usize = 100_000;

/// Results remembered for buyers that come back; each is a receipt and a few spans.
const FINISHED_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Sessions {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    running: BTreeMap<LeaseId, Door>,
    started: BTreeSet<LeaseId>,
    finished: BTreeMap<LeaseId, Finished>,
}

/// How a lease stands that its buyer asks about again.
pub(super) enum Standing {
    /// It is at work.
    Running,
    /// It is done.
    Finished(Box<Finished>),
    /// Nothing is known of it.
    Unknown,
}

/// A lease at work; it is forgotten when this is dropped.
pub(super) struct Running<'a> {
    sessions: &'a Sessions,
    lease: LeaseId,
}

impl Sessions {
    /// Begins the work of a buyer's lease, once. Tensors may be offered for `ahead` requests at a
    /// time, the first included.
    pub(super) fn begin(
        &self,
        start: &Start,
        buyer: PeerId,
        ahead: u32,
    ) -> Result<(Running<'_>, Awaited), Failure> {
        let mut door = Door::new(start, buyer, ahead)?;
        let awaited = door.open(0);
        let mut inner = self.inner();
        if inner.running.len() >= RUNNING_MAX {
            return Err(Failure::Full);
        }
        if !inner.started.insert(start.lease) {
            return Err(Failure::Started);
        }
        if inner.started.len() > STARTED_MAX {
            inner.started.pop_first();
        }
        inner.running.insert(start.lease, door);
        Ok((
            Running {
                sessions: self,
                lease: start.lease,
            },
            awaited,
        ))
    }

    /// Remembers the result of a lease for a buyer that lost its stream.
    pub(super) fn finished(&self, finished: &Finished) {
        let mut inner = self.inner();
        inner
            .finished
            .insert(finished.receipt.body.lease, finished.clone());
        if inner.finished.len() > FINISHED_MAX {
            inner.finished.pop_first();
        }
    }

    /// How a lease stands, for its buyer and nobody else.
    pub(super) fn standing(&self, lease: LeaseId, buyer: Option<[u8; 32]>) -> Standing {
        let inner = self.inner();
        match inner.finished.get(&lease) {
            Some(finished) if Some(finished.receipt.body.buyer.0) == buyer => {
                Standing::Finished(Box::new(finished.clone()))
            }
            Some(_) => Standing::Unknown,
            None if inner.running.contains_key(&lease) => Standing::Running,
            None => Standing::Unknown,
        }
    }

    /// Takes a tensor another provider offers, if a lease here waits for it from that peer, or that
    /// the lease's buyer hands on.
    pub(super) fn on_offer(&self, peer: PeerId, request: u32, offer: Offer) -> Taken {
        let mut inner = self.inner();
        let door = inner.running.get_mut(&offer.to);
        door.map_or(Taken::No, |door| door.on_offer(peer, request, offer))
    }

    /// How many leases are at work.
    pub(super) fn running(&self) -> usize {
        self.inner().running.len()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // No code in here panics half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running<'_> {
    /// The tensors that one more request waits for.
    pub(super) fn open(&self, request: u32) -> Awaited {
        let mut inner = self.sessions.inner();
        let door = inner.running.get_mut(&self.lease);
        door.map_or_else(Awaited::new, |door| door.open(request))
    }

    /// Requests before this one are done: later ones may be offered for.
    pub(super) fn done_before(&self, request: u32) {
        if let Some(door) = self.sessions.inner().running.get_mut(&self.lease) {
            door.done_before(request);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.sessions.inner().running.remove(&self.lease);
    }
}

#[cfg(test)]
mod tests {
    use souk_market::{AccountKey, JobId};
    use souk_memory::ContentId;

    use super::*;
    use crate::folder::key::NodeKey;
    use crate::protocols::lease::{Input, Part, Source};
    use crate::provider::inbox::Offered;

    fn start(lease: u64, provider: &NodeKey) -> Start {
        let source = Source::Lease {
            lease: LeaseId(1),
            provider: AccountKey(provider.public()),
        };
        Start {
            lease: LeaseId(lease),
            job: JobId([0; 32]),
            parts: vec![Part {
                name: String::new(),
                graph: ContentId::of(b"graph"),
                weights: Vec::new(),
                inputs: vec![Input {
                    name: "x".to_owned(),
                    source,
                }],
                outputs: Vec::new(),
                flops: 0,
                expected: std::time::Duration::ZERO,
            }],
            peers: Vec::new(),
            priority: 0,
        }
    }

    fn buyer() -> PeerId {
        NodeKey::generate().peer_id()
    }

    fn offered(by: &NodeKey) -> Offered {
        Offered {
            tensor: ContentId::of(b"tensor"),
            peer: by.peer_id(),
        }
    }

    fn offer(to: u64) -> Offer {
        let (from, tensor) = (LeaseId(1), ContentId::of(b"tensor"));
        Offer {
            from,
            to: LeaseId(to),
            name: "x".to_owned(),
            tensor,
        }
    }

    #[test]
    fn an_offer_is_taken_once_and_only_from_the_peer_expected() {
        let (sessions, key) = (Sessions::default(), NodeKey::generate());
        let (_running, mut awaited) = sessions.begin(&start(2, &key), buyer(), 1).unwrap();
        assert_eq!(
            sessions.on_offer(NodeKey::generate().peer_id(), 0, offer(2)),
            Taken::No
        );
        assert_eq!(sessions.on_offer(key.peer_id(), 0, offer(3)), Taken::No);
        assert_eq!(sessions.on_offer(key.peer_id(), 0, offer(2)), Taken::Yes);
        assert_eq!(sessions.on_offer(key.peer_id(), 0, offer(2)), Taken::No);
        let promised = awaited.get_mut("x").unwrap();
        assert_eq!(promised.offered.try_recv().unwrap(), offered(&key));
    }

    #[test]
    fn requests_are_offered_for_as_far_ahead_as_the_window_goes() {
        let (sessions, key) = (Sessions::default(), NodeKey::generate());
        let (running, mut first) = sessions.begin(&start(2, &key), buyer(), 2).unwrap();
        let put = |request| sessions.on_offer(key.peer_id(), request, offer(2));
        // The second is not open yet, and the third is too far ahead.
        assert_eq!((put(1), put(2)), (Taken::Yes, Taken::No));
        assert_eq!(put(1), Taken::No, "nothing is offered twice");
        let mut second = running.open(1);
        let id = offered(&key);
        let second = second.get_mut("x").unwrap();
        assert_eq!(second.offered.try_recv().unwrap(), id);
        assert!(first.get_mut("x").unwrap().offered.try_recv().is_err());
        assert_eq!(put(0), Taken::Yes);
        assert_eq!(first.get_mut("x").unwrap().offered.try_recv().unwrap(), id);
        running.done_before(1);
        assert_eq!((put(0), put(2), put(3)), (Taken::No, Taken::Yes, Taken::No));
    }

    #[test]
    fn a_buyer_hands_on_what_did_not_come_and_from_then_on_it_comes_from_there() {
        let (sessions, key, buyer) = (
            Sessions::default(),
            NodeKey::generate(),
            NodeKey::generate(),
        );
        let begun = sessions.begin(&start(2, &key), buyer.peer_id(), 1);
        let (_running, mut awaited) = begun.unwrap();
        let of_another = Offer {
            from: LeaseId(7),
            ..offer(2)
        };
        let hands_on = |offer| sessions.on_offer(buyer.peer_id(), 0, offer);
        assert_eq!(hands_on(of_another), Taken::No, "nobody waits for that");
        assert_eq!(hands_on(offer(2)), Taken::Yes);
        let promised = awaited.get_mut("x").unwrap();
        assert_eq!(promised.offered.try_recv().unwrap(), offered(&buyer));
        // Its maker's word may have come, and its answer been lost.
        assert_eq!(hands_on(offer(2)), Taken::Yes);
        assert_eq!(sessions.on_offer(key.peer_id(), 0, offer(2)), Taken::No);
    }

    #[test]
    fn a_lease_is_never_run_twice() {
        let (sessions, key) = (Sessions::default(), NodeKey::generate());
        drop(sessions.begin(&start(2, &key), buyer(), 1).unwrap());
        assert_eq!(
            sessions.begin(&start(2, &key), buyer(), 1).err(),
            Some(Failure::Started)
        );
    }
}
