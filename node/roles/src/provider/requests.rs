//! The requests of a lease that are under way, and what each has of what it needs.
//!
//! A provider further up may be ahead of the buyer's word: what it offers for a request that is not
//! open here yet is kept, for as many requests as may be under way and no more.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use souk_market::{AccountKey, LeaseId};
use souk_memory::ContentId;

use crate::lease::{Failure, Offer, OfferAnswer, Part, Request, Source, Start, WINDOW_MAX};

/// Who makes a tensor.
#[derive(Clone, Copy, Debug, Serialize)]
struct Maker {
    lease: LeaseId,
    provider: AccountKey,
}

/// The requests of one lease.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Requests {
    buyer: AccountKey,
    makers: BTreeMap<String, Maker>,
    pub(super) open: BTreeMap<u32, OpenRequest>,
    /// What was offered, and by whom, of requests from `first` on: each once.
    offered: BTreeMap<(u32, String), (ContentId, AccountKey)>,
    /// The first request that is not done.
    first: u32,
    /// The next request's number, at least.
    next: u32,
    /// Requests that may be under way, early offers included.
    window: usize,
    /// Requests that were ever open.
    pub(super) count: u32,
}

/// A request under way.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct OpenRequest {
    /// The sequence that it is a step of.
    pub(super) sequence: u32,
    /// What the buyer holds, by name.
    pub(super) given: BTreeMap<String, ContentId>,
    /// What is here, by name: what came, and what was made.
    pub(super) values: BTreeMap<String, ContentId>,
    /// What is on its way.
    pub(super) coming: BTreeMap<String, ContentId>,
    /// What did not come.
    pub(super) failed: BTreeMap<String, Failure>,
    /// The part that is run next.
    pub(super) part: u32,
    /// Whether that is on the device.
    pub(super) at_work: bool,
    /// Whether it is gone on with where the buyer is lost.
    pub(super) has_begun: bool,
    /// Bytes of what came for it.
    pub(super) bytes: u64,
    /// What is pinned for it.
    pub(super) pins: Vec<ContentId>,
}

impl Requests {
    pub(super) fn new(start: &Start, buyer: AccountKey) -> Requests {
        let mut makers = BTreeMap::new();
        for input in start.parts.iter().flat_map(|part| &part.inputs) {
            if let Source::Lease { lease, provider } = input.source {
                let maker = Maker { lease, provider };
                makers.entry(input.name.clone()).or_insert(maker);
            }
        }
        let window = if start.last { 1 } else { WINDOW_MAX as usize };
        Requests {
            buyer,
            makers,
            open: BTreeMap::new(),
            offered: BTreeMap::new(),
            first: start.first.number,
            next: start.first.number,
            window,
            count: 0,
        }
    }

    /// Whether one more request may be opened.
    pub(super) fn has_room(&self, request: &Request) -> bool {
        request.number >= self.next && self.open.len() < self.window
    }

    /// Opens a request.
    pub(super) fn open(&mut self, request: &Request) {
        assert!(self.has_room(request), "it was looked at");
        self.next = request.number.saturating_add(1);
        self.count += 1;
        let given = request.inputs.iter().cloned().collect();
        let open = OpenRequest {
            sequence: request.sequence,
            given,
            ..OpenRequest::default()
        };
        self.open.insert(request.number, open);
        self.forget_done();
    }

    /// What was offered for a request: names, contents and who has them.
    pub(super) fn offered(&self, request: u32) -> Vec<(String, ContentId, AccountKey)> {
        let offered = self.offered.iter();
        let of_it = offered.filter(|((number, _), _)| *number == request);
        of_it
            .map(|((_, name), (id, peer))| (name.clone(), *id, *peer))
            .collect()
    }

    /// Takes what is expected of that peer, once. The buyer may hand on what did not come, or what
    /// did and was not known to have. Whether it is to be fetched now is said too.
    pub(super) fn on_offer(&mut self, peer: AccountKey, offer: &Offer) -> (OfferAnswer, bool) {
        let from_buyer = peer == self.buyer;
        let maker = self.makers.get(&offer.name);
        let is_expected = maker.is_some_and(|maker| {
            maker.lease == offer.from && (from_buyer || maker.provider == peer)
        });
        if !is_expected || offer.request < self.first || !self.has_place(offer.request) {
            return (OfferAnswer::No, false);
        }
        let slot = (offer.request, offer.name.clone());
        if let Some(known) = self.offered.get(&slot) {
            // The maker says it again where the stream broke before it heard the answer.
            let is_again = from_buyer || *known == (offer.tensor, peer);
            let answer = match is_again {
                true => OfferAnswer::Yes,
                false => OfferAnswer::No,
            };
            return (answer, false);
        }
        self.offered.insert(slot, (offer.tensor, peer));
        (OfferAnswer::Yes, self.open.contains_key(&offer.request))
    }

    /// Whether a request is open, or may still be and is near.
    fn has_place(&self, request: u32) -> bool {
        if self.open.contains_key(&request) {
            return true;
        }
        if request < self.next {
            return false;
        }
        let early = self.offered.keys().map(|(number, _)| *number);
        let mut early: BTreeSet<u32> = early.filter(|number| *number >= self.next).collect();
        early.insert(request);
        self.open.len() + early.len() <= self.window
    }

    /// A request is over, done or not.
    pub(super) fn remove(&mut self, number: u32) -> Option<OpenRequest> {
        let removed = self.open.remove(&number);
        self.forget_done();
        removed
    }

    fn forget_done(&mut self) {
        self.first = self.open.keys().next().copied().unwrap_or(self.next);
        let first = self.first;
        self.offered.retain(|(number, _), _| *number >= first);
    }

    /// Bytes of what came for all that are open.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = self.open.values().map(|open| open.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Who makes an input of another lease.
    pub(super) fn is_made_elsewhere(&self, name: &str) -> bool {
        self.makers.contains_key(name)
    }
}

impl OpenRequest {
    /// Whether every input of a part is here.
    pub(super) fn is_ready(&self, part: &Part) -> bool {
        let mut names = part.inputs.iter().map(|input| &input.name);
        names.all(|name| self.values.contains_key(name))
    }

    /// The first input of a part that did not come.
    pub(super) fn failure(&self, part: &Part) -> Option<&Failure> {
        let mut names = part.inputs.iter().map(|input| &input.name);
        names.find_map(|name| self.failed.get(name))
    }

    /// The inputs of a part, all of which are here.
    pub(super) fn inputs(&self, part: &Part) -> Vec<(String, ContentId)> {
        let names = part.inputs.iter().map(|input| &input.name);
        let held = names.map(|name| {
            let id = self.values.get(name).expect("it was looked at");
            (name.clone(), *id)
        });
        held.collect()
    }
}

/// The first input of a part that no earlier part gives, though it is said to.
pub(super) fn without_source(start: &Start) -> Option<&str> {
    let mut made = BTreeSet::new();
    for part in &start.parts {
        let own = |input: &&crate::lease::Input| input.source == Source::Own;
        let mut own = part.inputs.iter().filter(own);
        if let Some(input) = own.find(|input| !made.contains(input.name.as_str())) {
            return Some(&input.name);
        }
        made.extend(part.outputs.iter().map(|output| output.name.as_str()));
    }
    None
}
