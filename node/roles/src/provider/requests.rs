//! The open requests of a lease at work, and for each the inputs that it has or awaits. The lease's
//! core opens and closes them.
//!
//! Another provider may send an offer before the buyer's message opens the request. This lease
//! keeps such offers, up to the number of requests that can be under way. The same holds for the
//! values that one request leaves to the next of its sequence (`state_feedback`).

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use souk_market::{AccountKey, LeaseId};
use souk_memory::ContentId;

use super::state_feedback::StateFeedback;
use crate::lease::{
    Failure, Offer, OfferAnswer, Part, REQUEST_NUMBER_MAX, Request, Source, Start, WINDOW_MAX,
};

/// The maker of a tensor.
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
    feedback: StateFeedback,
    pub(super) open: BTreeMap<u32, OpenRequest>,
    /// The offered tensors and their providers, once each, of requests that are open, may be, or
    /// feed one.
    offered: BTreeMap<(u32, String), (ContentId, AccountKey)>,
    /// The least number of the next request.
    next: u32,
    /// The most requests under way, early offers included.
    window: usize,
    /// The number of requests that were ever open.
    pub(super) count: u32,
}

/// A request under way.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct OpenRequest {
    /// The sequence that it is a step of.
    pub(super) sequence: u32,
    /// Whether the buyer wants the outputs that feed the next request.
    pub(super) keep: bool,
    /// The buyer's inputs, by name.
    pub(super) given: BTreeMap<String, ContentId>,
    /// The values that are here, by name: fetched inputs and outputs.
    pub(super) values: BTreeMap<String, ContentId>,
    /// The values on their way.
    pub(super) coming: BTreeMap<String, ContentId>,
    /// The values that did not arrive, with the reasons.
    pub(super) failed: BTreeMap<String, Failure>,
    /// The part to run next.
    pub(super) part: u32,
    /// Whether that part is on the device.
    pub(super) at_work: bool,
    /// Whether the work continues if the buyer is lost.
    pub(super) has_begun: bool,
    /// The bytes fetched for it.
    pub(super) bytes: u64,
    /// The contents pinned for it.
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
            feedback: StateFeedback::new(start),
            open: BTreeMap::new(),
            offered: BTreeMap::new(),
            next: start.first.number,
            window,
            count: 0,
        }
    }

    /// Returns whether one more request can open.
    pub(super) fn has_room(&self, request: &Request) -> bool {
        request.number >= self.next && self.open.len() < self.window
    }

    /// Returns whether a request can omit fed inputs, because an earlier request of its sequence
    /// preceded it.
    pub(super) fn is_fed(&self, request: &Request) -> bool {
        self.feedback.has_begun(request.sequence)
    }

    /// Opens a request, for which there must be room and whose number another must be able to
    /// follow: two open requests of one number would share their runs.
    pub(super) fn open_request(&mut self, request: &Request) {
        assert!(self.has_room(request), "it was looked at");
        assert!(request.number <= REQUEST_NUMBER_MAX, "it was looked at");
        self.next = request.number + 1;
        self.count += 1;
        let given = request.inputs.iter().cloned().collect();
        let open = OpenRequest {
            sequence: request.sequence,
            keep: request.keep,
            given,
            ..OpenRequest::default()
        };
        self.open.insert(request.number, open);
        self.feedback.open_request(request);
        if let Some(before) = self.feedback.previous_request(request.number) {
            self.feed_next_request(before);
        }
        self.forget_done();
    }

    /// Takes the outputs of a part of a request, and feeds the request after it. Returns the
    /// contents to hold until that one is over.
    pub(super) fn on_made(&mut self, number: u32, made: &[(String, ContentId)]) -> Vec<ContentId> {
        let held = self.feedback.hold_outputs(number, made);
        self.feed_next_request(number);
        held
    }

    /// Gives the next request the values held for it.
    fn feed_next_request(&mut self, number: u32) {
        let after = self.feedback.next_request(number);
        let open = after.and_then(|after| self.open.get_mut(&after));
        let Some(open) = open else { return };
        for (input, id) in self.feedback.values_to_feed(number) {
            if !open.given.contains_key(&input) {
                open.values.insert(input, id);
            }
        }
    }

    /// Returns the offers for a request: inputs, contents and their holders.
    pub(super) fn request_offers(&self, request: u32) -> Vec<(String, ContentId, AccountKey)> {
        let value = |request: u32, name: &str| self.offered.get(&(request, name.to_owned()));
        let makers = self.makers.keys();
        let of_it = makers.filter_map(|name| Some((name.as_str(), value(request, name)?)));
        let fed = self
            .feedback
            .previous_request(request)
            .into_iter()
            .flat_map(|before| {
                let left_out = self.left_out(request);
                left_out.filter_map(move |(input, name)| Some((input, value(before, name)?)))
            });
        of_it
            .chain(fed)
            .map(|(input, (id, peer))| (input.to_owned(), *id, *peer))
            .collect()
    }

    /// Returns the inputs that an open request omits and other leases feed, with the name of each
    /// value there.
    fn left_out(&self, request: u32) -> impl Iterator<Item = (&str, &str)> {
        let given = &self.open[&request].given;
        let fed = self.feedback.made_elsewhere();
        fed.filter(move |(input, ..)| !given.contains_key(*input))
            .map(|(input, name, _)| (input, name))
    }

    /// Accepts an expected offer from that peer, once. The buyer may pass on a tensor that did not
    /// arrive, or that arrived unknown to it. Returns the open requests for which to fetch the
    /// tensor now, each with the input's name.
    pub(super) fn on_offer(
        &mut self,
        peer: AccountKey,
        offer: &Offer,
    ) -> (OfferAnswer, Vec<(u32, String)>) {
        let from_buyer = peer == self.buyer;
        let is_maker = |(lease, provider): (LeaseId, AccountKey)| {
            lease == offer.from && (from_buyer || provider == peer)
        };
        let mut fed = self.feedback.made_elsewhere();
        let is_fed = fed.any(|(_, name, maker)| name == offer.name && is_maker(maker));
        let maker = self.makers.get(&offer.name);
        if !is_fed && !maker.is_some_and(|it| is_maker((it.lease, it.provider))) {
            return (OfferAnswer::No, Vec::new());
        }
        if !self.has_place(offer) {
            // A closed request waits for no input, and its successor brought its own: neither the
            // buyer nor the maker may know.
            let is_late = (from_buyer || is_fed) && offer.request < self.next;
            return (offer_answer(is_late), Vec::new());
        }
        let slot = (offer.request, offer.name.clone());
        if let Some(known) = self.offered.get(&slot) {
            // The maker repeats its offer if the stream broke before the answer arrived.
            let is_again = from_buyer || *known == (offer.tensor, peer);
            return (offer_answer(is_again), Vec::new());
        }
        self.offered.insert(slot, (offer.tensor, peer));
        (OfferAnswer::Yes, self.offer_takers(offer))
    }

    /// Returns the open requests that wait for an offer, each with the input's name.
    fn offer_takers(&self, offer: &Offer) -> Vec<(u32, String)> {
        let own = self.is_awaited(offer.request, &offer.name);
        let own = own.then(|| (offer.request, offer.name.clone()));
        let after = self.feedback.next_request(offer.request).into_iter();
        let fed = after.flat_map(|after| {
            let inputs = self.left_out(after);
            let inputs = inputs.filter(|(_, name)| *name == offer.name);
            inputs.map(move |(input, _)| (after, input.to_owned()))
        });
        own.into_iter().chain(fed).collect()
    }

    /// Returns whether a request is open and reads this value of another lease.
    fn is_awaited(&self, request: u32, name: &str) -> bool {
        self.makers.contains_key(name) && self.open.contains_key(&request)
    }

    /// Returns whether the request of an offer waits for it, feeds another by it, or may still open
    /// soon.
    fn has_place(&self, offer: &Offer) -> bool {
        let Offer { request, name, .. } = offer;
        if self.is_awaited(*request, name) || self.feedback.is_kept(*request, name) {
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

    /// Closes a request, done or not. Contents held for it become its own pins.
    pub(super) fn remove(&mut self, number: u32) -> Option<OpenRequest> {
        let mut removed = self.open.remove(&number)?;
        removed.pins.extend(self.feedback.close_request(number));
        self.forget_done();
        Some(removed)
    }

    /// Takes the contents held for requests that will not come.
    pub(super) fn take_held(&mut self) -> Vec<ContentId> {
        self.feedback.take_held()
    }

    fn forget_done(&mut self) {
        let mut offered = std::mem::take(&mut self.offered);
        offered.retain(|(number, name), _| self.is_kept(*number, name));
        self.offered = offered;
    }

    /// Returns whether an offer may still be useful.
    fn is_kept(&self, request: u32, name: &str) -> bool {
        request >= self.next
            || self.is_awaited(request, name)
            || self.feedback.is_kept(request, name)
    }

    /// Returns the bytes fetched for all open requests.
    pub(super) fn fetched_bytes(&self) -> u64 {
        let bytes = self.open.values().map(|open| open.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns whether another lease makes this input.
    pub(super) fn is_made_elsewhere(&self, name: &str) -> bool {
        self.makers.contains_key(name)
    }

    /// Asserts the invariants that hold between two steps.
    pub(super) fn assert_invariants(&self) {
        self.feedback.assert_invariants();
        let mut offered = self.offered.keys();
        assert!(
            offered.all(|(number, name)| self.is_kept(*number, name)),
            "what is of no use is forgotten"
        );
    }
}

impl OpenRequest {
    /// Returns whether every input of a part is here.
    pub(super) fn is_ready(&self, part: &Part) -> bool {
        let mut names = part.inputs.iter().map(|input| &input.name);
        names.all(|name| self.values.contains_key(name))
    }

    /// Returns the failure of the first input of a part that did not arrive.
    pub(super) fn input_failure(&self, part: &Part) -> Option<&Failure> {
        let mut names = part.inputs.iter().map(|input| &input.name);
        names.find_map(|name| self.failed.get(name))
    }

    /// Returns the inputs of a part, all of which are here.
    pub(super) fn part_inputs(&self, part: &Part) -> Vec<(String, ContentId)> {
        let names = part.inputs.iter().map(|input| &input.name);
        let held = names.map(|name| {
            let id = self.values.get(name).expect("it was looked at");
            (name.clone(), *id)
        });
        held.collect()
    }
}

fn offer_answer(is_yes: bool) -> OfferAnswer {
    match is_yes {
        true => OfferAnswer::Yes,
        false => OfferAnswer::No,
    }
}

/// Returns the first input of a part that should come from an earlier part and does not.
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
