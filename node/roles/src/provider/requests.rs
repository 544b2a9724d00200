//! The requests of a lease that are under way, and what each has of what it needs.
//!
//! A provider further up may be ahead of the buyer's word: what it offers for a request that is not
//! open here yet is kept, for as many requests as may be under way and no more. So is what one
//! request leaves to the next of its sequence ([`super::feeds`]).

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use souk_market::{AccountKey, LeaseId};
use souk_memory::ContentId;

use super::feeds::Feeds;
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
    feeds: Feeds,
    pub(super) open: BTreeMap<u32, OpenRequest>,
    /// What was offered, and by whom, of requests that are open, may be, or feed one: each once.
    offered: BTreeMap<(u32, String), (ContentId, AccountKey)>,
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
            feeds: Feeds::new(start),
            open: BTreeMap::new(),
            offered: BTreeMap::new(),
            next: start.first.number,
            window,
            count: 0,
        }
    }

    /// Whether one more request may be opened.
    pub(super) fn has_room(&self, request: &Request) -> bool {
        request.number >= self.next && self.open.len() < self.window
    }

    /// Whether a request may leave out what is fed: another of its sequence came before it.
    pub(super) fn is_fed(&self, request: &Request) -> bool {
        self.feeds.has_begun(request.sequence)
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
        self.feeds.open(request);
        if let Some(before) = self.feeds.before(request.number) {
            self.feed(before);
        }
        self.forget_done();
    }

    /// A part of a request made this. What the request after it is fed is there; the contents are
    /// to be held until that is over.
    pub(super) fn on_made(&mut self, number: u32, made: &[(String, ContentId)]) -> Vec<ContentId> {
        let held = self.feeds.hold(number, made);
        self.feed(number);
        held
    }

    /// Gives the request after this one what is held of it.
    fn feed(&mut self, number: u32) {
        let after = self.feeds.after(number);
        let open = after.and_then(|after| self.open.get_mut(&after));
        let Some(open) = open else { return };
        for (input, id) in self.feeds.held(number) {
            if !open.given.contains_key(&input) {
                open.values.insert(input, id);
            }
        }
    }

    /// What was offered for a request: inputs, contents and who has them.
    pub(super) fn offered(&self, request: u32) -> Vec<(String, ContentId, AccountKey)> {
        let value = |request: u32, name: &str| self.offered.get(&(request, name.to_owned()));
        let makers = self.makers.keys();
        let of_it = makers.filter_map(|name| Some((name.as_str(), value(request, name)?)));
        let fed = self.feeds.before(request).into_iter().flat_map(|before| {
            let left_out = self.left_out(request);
            left_out.filter_map(move |(input, name)| Some((input, value(before, name)?)))
        });
        of_it
            .chain(fed)
            .map(|(input, (id, peer))| (input.to_owned(), *id, *peer))
            .collect()
    }

    /// The inputs that an open request leaves out and other leases feed, and what of theirs.
    fn left_out(&self, request: u32) -> impl Iterator<Item = (&str, &str)> {
        let given = &self.open[&request].given;
        let fed = self.feeds.made_elsewhere();
        fed.filter(move |(input, ..)| !given.contains_key(*input))
            .map(|(input, name, _)| (input, name))
    }

    /// Takes what is expected of that peer, once. The buyer may hand on what did not come, or what
    /// did and was not known to have. What open requests it is to be fetched for now is said too,
    /// and as which input.
    pub(super) fn on_offer(
        &mut self,
        peer: AccountKey,
        offer: &Offer,
    ) -> (OfferAnswer, Vec<(u32, String)>) {
        let from_buyer = peer == self.buyer;
        let is_maker = |(lease, provider): (LeaseId, AccountKey)| {
            lease == offer.from && (from_buyer || provider == peer)
        };
        let mut fed = self.feeds.made_elsewhere();
        let is_fed = fed.any(|(_, name, maker)| name == offer.name && is_maker(maker));
        let maker = self.makers.get(&offer.name);
        if !is_fed && !maker.is_some_and(|it| is_maker((it.lease, it.provider))) {
            return (OfferAnswer::No, Vec::new());
        }
        if !self.has_place(offer) {
            // What is over waits for nothing more, and what follows it has brought what it would
            // be fed: neither the buyer nor the maker may know.
            let is_late = (from_buyer || is_fed) && offer.request < self.next;
            return (answer(is_late), Vec::new());
        }
        let slot = (offer.request, offer.name.clone());
        if let Some(known) = self.offered.get(&slot) {
            // The maker says it again where the stream broke before it heard the answer.
            let is_again = from_buyer || *known == (offer.tensor, peer);
            return (answer(is_again), Vec::new());
        }
        self.offered.insert(slot, (offer.tensor, peer));
        (OfferAnswer::Yes, self.takers(offer))
    }

    /// What open requests wait for an offer, and as which input.
    fn takers(&self, offer: &Offer) -> Vec<(u32, String)> {
        let own = self.is_awaited(offer.request, &offer.name);
        let own = own.then(|| (offer.request, offer.name.clone()));
        let after = self.feeds.after(offer.request).into_iter();
        let fed = after.flat_map(|after| {
            let inputs = self.left_out(after);
            let inputs = inputs.filter(|(_, name)| *name == offer.name);
            inputs.map(move |(input, _)| (after, input.to_owned()))
        });
        own.into_iter().chain(fed).collect()
    }

    /// Whether a request is open and reads this of another lease.
    fn is_awaited(&self, request: u32, name: &str) -> bool {
        self.makers.contains_key(name) && self.open.contains_key(&request)
    }

    /// Whether the request of an offer waits for it or feeds another by it, or may still be open
    /// and is near.
    fn has_place(&self, offer: &Offer) -> bool {
        let Offer { request, name, .. } = offer;
        if self.is_awaited(*request, name) || self.feeds.is_kept(*request, name) {
            return true;
        }
        if *request < self.next {
            return false;
        }
        let early = self.offered.keys().map(|(number, _)| *number);
        let mut early: BTreeSet<u32> = early.filter(|number| *number >= self.next).collect();
        early.insert(*request);
        self.open.len() + early.len() <= self.window
    }

    /// A request is over, done or not. What was held for it is pinned as its own.
    pub(super) fn remove(&mut self, number: u32) -> Option<OpenRequest> {
        let mut removed = self.open.remove(&number)?;
        removed.pins.extend(self.feeds.close(number));
        self.forget_done();
        Some(removed)
    }

    /// What is held for requests that do not come any more.
    pub(super) fn take_held(&mut self) -> Vec<ContentId> {
        self.feeds.take_held()
    }

    fn forget_done(&mut self) {
        let mut offered = std::mem::take(&mut self.offered);
        offered.retain(|(number, name), _| self.is_kept(*number, name));
        self.offered = offered;
    }

    /// Whether an offer may still be of use.
    fn is_kept(&self, request: u32, name: &str) -> bool {
        request >= self.next || self.is_awaited(request, name) || self.feeds.is_kept(request, name)
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

    /// Asserts what holds between two steps.
    pub(super) fn audit(&self) {
        self.feeds.audit();
        let mut offered = self.offered.keys();
        assert!(
            offered.all(|(number, name)| self.is_kept(*number, name)),
            "what is of no use is forgotten"
        );
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

fn answer(is_yes: bool) -> OfferAnswer {
    match is_yes {
        true => OfferAnswer::Yes,
        false => OfferAnswer::No,
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
