//! What one lease at work waits for of other providers, request by request.
//!
//! A provider further up the line may be ahead of the buyer's word: what it offers for a request
//! that is not open here yet is kept, for as many requests as may be under way and no more.

use std::collections::BTreeMap;

use libp2p::PeerId;
use souk_market::{AccountKey, LeaseId};
use souk_memory::ContentId;
use tokio::sync::oneshot;

use crate::folder::key;
use crate::protocols::lease::{Failure, Offer, Source, Start, Taken};

/// The tensors a lease waits for, by name.
pub(super) type Awaited = BTreeMap<String, Promised>;

/// A tensor that another provider will offer.
pub(super) struct Promised {
    /// Who will.
    pub(super) provider: AccountKey,
    /// What is offered.
    pub(super) offered: oneshot::Receiver<Offered>,
}

/// A tensor that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offered {
    /// Which.
    pub(super) tensor: ContentId,
    /// The peer that it is fetched from.
    pub(super) peer: PeerId,
}

/// The tensors that a lease is offered.
pub(super) struct Door {
    /// Hands on what a provider could not.
    buyer: PeerId,
    expected: BTreeMap<String, Maker>,
    /// By request and name, of requests from `first` on.
    places: BTreeMap<(u32, String), Place>,
    /// The first request that is not done.
    first: u32,
    /// Requests from `first` on that may be offered for.
    ahead: u32,
}

/// Who makes a tensor.
struct Maker {
    lease: LeaseId,
    provider: AccountKey,
    peer: PeerId,
}

/// Where a tensor of one request stands.
enum Place {
    /// It is waited for.
    Awaited(oneshot::Sender<Offered>),
    /// It was offered before its request was open.
    Early(Offered),
    /// It was offered, and who waits for it knows.
    Taken,
}

impl Door {
    /// Nothing is waited for yet; tensors may be offered for `ahead` requests.
    pub(super) fn new(start: &Start, buyer: PeerId, ahead: u32) -> Result<Door, Failure> {
        let mut expected = BTreeMap::new();
        for input in start.parts.iter().flat_map(|part| &part.inputs) {
            let Source::Lease { lease, provider } = input.source else {
                continue;
            };
            let peer = key::peer_of(&provider.0);
            let peer = peer.map_err(|error| Failure::Input(error.to_string()))?;
            let maker = Maker {
                lease,
                provider,
                peer,
            };
            expected.entry(input.name.clone()).or_insert(maker);
        }
        Ok(Door {
            buyer,
            expected,
            places: BTreeMap::new(),
            first: 0,
            ahead,
        })
    }

    /// The tensors that a request waits for.
    pub(super) fn open(&mut self, request: u32) -> Awaited {
        let mut awaited = Awaited::new();
        for (name, maker) in &self.expected {
            let (tell, offered) = oneshot::channel();
            let slot = (request, name.clone());
            let place = match self.places.remove(&slot) {
                None => Place::Awaited(tell),
                Some(Place::Early(offered)) => {
                    // It is received below, whenever that is asked for.
                    let _ = tell.send(offered);
                    Place::Taken
                }
                Some(known) => known,
            };
            self.places.insert(slot, place);
            let promised = Promised {
                provider: maker.provider,
                offered,
            };
            awaited.insert(name.clone(), promised);
        }
        awaited
    }

    /// Requests before this one are done.
    pub(super) fn done_before(&mut self, request: u32) {
        self.first = self.first.max(request);
        let first = self.first;
        self.places.retain(|(request, _), _| *request >= first);
    }

    /// Takes what is expected of that peer, once. The buyer may hand on what did not come, or
    /// what did and was not known to have.
    pub(super) fn on_offer(&mut self, peer: PeerId, request: u32, offer: Offer) -> Taken {
        let maker = self.expected.get(&offer.name);
        let from_buyer = peer == self.buyer;
        let of_maker = |maker: &Maker| maker.lease == offer.from;
        let may = |maker: &Maker| of_maker(maker) && (from_buyer || maker.peer == peer);
        let expected = maker.is_some_and(may);
        let near = request >= self.first && request - self.first < self.ahead;
        if !expected || !near {
            return Taken::No;
        }
        let slot = (request, offer.name);
        let offered = Offered {
            tensor: offer.tensor,
            peer,
        };
        match self.places.remove(&slot) {
            None => {
                self.places.insert(slot, Place::Early(offered));
                Taken::Yes
            }
            Some(Place::Awaited(tell)) => {
                self.places.insert(slot, Place::Taken);
                match tell.send(offered) {
                    Ok(()) => Taken::Yes,
                    Err(_) => Taken::No,
                }
            }
            Some(known) => {
                self.places.insert(slot, known);
                match from_buyer {
                    true => Taken::Yes,
                    false => Taken::No,
                }
            }
        }
    }
}
