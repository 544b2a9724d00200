//! Passes a model's state from one request of a session to the next: a request can omit an input,
//! which then takes the value that the previous request of its sequence made.
//!
//! The core keeps a value for the last request of each sequence, which another may follow, and for
//! each request right before an open one: as many as there are sequences and requests in a window.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};

use serde::Serialize;
use souk_market::{AccountKey, LeaseId};
use souk_memory::ContentId;

use crate::lease::{Feedback, Request, Source, Start};

/// The feeding from request to request of one lease.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StateFeedback {
    /// The values that feed inputs, by the inputs' names.
    inputs: BTreeMap<String, Feedback>,
    /// The last request of each sequence.
    last: BTreeMap<u32, u32>,
    /// The open requests, by their predecessors in their sequences.
    after: BTreeMap<u32, u32>,
    /// The values made here and held for the request after, by request and name.
    held_values: BTreeMap<(u32, String), ContentId>,
}

impl StateFeedback {
    pub(super) fn new(start: &Start) -> StateFeedback {
        let inputs = start.parts.iter().flat_map(|part| &part.inputs);
        let fed = inputs.filter_map(|input| Some((input.name.clone(), input.fed.clone()?)));
        StateFeedback {
            inputs: fed.collect(),
            last: BTreeMap::new(),
            after: BTreeMap::new(),
            held_values: BTreeMap::new(),
        }
    }

    /// Returns whether a sequence has had a request.
    pub(super) fn has_begun(&self, sequence: u32) -> bool {
        self.last.contains_key(&sequence)
    }

    /// Opens a request, the next of its sequence.
    pub(super) fn open_request(&mut self, request: &Request) {
        let before = self.last.insert(request.sequence, request.number);
        self.after.extend(before.map(|it| (it, request.number)));
    }

    /// Closes a request. Returns the contents held for it and for no other.
    pub(super) fn close_request(&mut self, number: u32) -> Vec<ContentId> {
        self.after.retain(|_, after| *after != number);
        let held = std::mem::take(&mut self.held_values).into_iter();
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            held.partition(|((request, _), _)| self.is_feeding(*request));
        self.held_values = kept;
        gone.into_values().collect()
    }

    /// Takes all held contents of a lease that is over.
    pub(super) fn take_held(&mut self) -> Vec<ContentId> {
        std::mem::take(&mut self.held_values)
            .into_values()
            .collect()
    }

    /// Returns whether this request can still feed another one.
    fn is_feeding(&self, request: u32) -> bool {
        self.after.contains_key(&request) || self.last.values().any(|last| *last == request)
    }

    /// Returns the open request that this one feeds.
    pub(super) fn next_request(&self, request: u32) -> Option<u32> {
        self.after.get(&request).copied()
    }

    /// Returns the request that feeds an open one.
    pub(super) fn previous_request(&self, request: u32) -> Option<u32> {
        let mut open = self.after.iter();
        open.find(|(_, after)| **after == request)
            .map(|(before, _)| *before)
    }

    /// Returns whether a value of a request that another lease makes can still feed one.
    pub(super) fn is_kept(&self, request: u32, name: &str) -> bool {
        self.is_feeding(request) && self.made_elsewhere().any(|(_, fed, _)| fed == name)
    }

    /// Returns the values that other leases feed: the input, the value's name and its maker.
    pub(super) fn made_elsewhere(
        &self,
    ) -> impl Iterator<Item = (&str, &str, (LeaseId, AccountKey))> {
        let inputs = self.inputs.iter();
        inputs.filter_map(|(input, fed)| Some((input.as_str(), fed.name.as_str(), fed.maker?)))
    }

    /// Returns the values that this lease feeds: the input and the value's name.
    fn made_here(&self) -> impl Iterator<Item = (&str, &str)> {
        let here = self.inputs.iter().filter(|(_, fed)| fed.maker.is_none());
        here.map(|(input, fed)| (input.as_str(), fed.name.as_str()))
    }

    /// Holds the outputs of a part that feed the next request. Returns the newly held contents.
    pub(super) fn hold_outputs(
        &mut self,
        request: u32,
        made: &[(String, ContentId)],
    ) -> Vec<ContentId> {
        if !self.is_feeding(request) {
            return Vec::new();
        }
        let is_fed = |name: &str| self.made_here().any(|(_, fed)| fed == name);
        let mut fed: Vec<_> = made.iter().filter(|(name, _)| is_fed(name)).collect();
        // A start can name one output twice.
        fed.retain(|(name, id)| {
            let slot = self.held_values.entry((request, name.clone()));
            let is_new = matches!(slot, Entry::Vacant(_));
            slot.or_insert(*id);
            is_new
        });
        fed.into_iter().map(|(_, id)| *id).collect()
    }

    /// Returns the inputs that a request feeds from held values.
    pub(super) fn values_to_feed(&self, request: u32) -> Vec<(String, ContentId)> {
        let value = |name: &str| self.held_values.get(&(request, name.to_owned())).copied();
        let inputs = self.made_here();
        inputs
            .filter_map(|(input, name)| Some((input.to_owned(), value(name)?)))
            .collect()
    }

    /// Asserts the invariants that hold between two steps.
    pub(super) fn assert_invariants(&self) {
        let mut held = self.held_values.keys();
        assert!(
            held.all(|(request, _)| self.is_feeding(*request)),
            "what feeds nobody is let go"
        );
    }
}

/// Returns the first input with invalid feeding. Only a session can feed, only inputs that the
/// buyer holds, and each from one value that a part here or one other lease makes.
pub(super) fn fed_wrongly(start: &Start) -> Option<&str> {
    let outputs = start.parts.iter().flat_map(|part| &part.outputs);
    let own: BTreeSet<&str> = outputs.map(|output| output.name.as_str()).collect();
    let inputs = || start.parts.iter().flat_map(|part| &part.inputs);
    let mut makers = BTreeMap::new();
    for input in inputs() {
        if let Source::Lease { lease, provider } = input.source {
            makers.entry(&input.name).or_insert((lease, provider));
        }
    }
    let mut values = BTreeMap::new();
    for input in inputs() {
        let is_held = input.source == Source::Buyer;
        let is_one = !is_held || *values.entry(&input.name).or_insert(&input.fed) == &input.fed;
        let is_made = match &input.fed {
            None => true,
            Some(Feedback { name, maker: None }) => is_held && own.contains(name.as_str()),
            Some(Feedback {
                name,
                maker: Some(maker),
            }) => {
                let is_other = maker.0 != start.lease && !own.contains(name.as_str());
                is_held && is_other && *makers.entry(name).or_insert(*maker) == *maker
            }
        };
        let is_of_session = input.fed.is_none() || start.sequences > 0;
        if !(is_one && is_made && is_of_session) {
            return Some(&input.name);
        }
    }
    None
}
