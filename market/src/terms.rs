//! Stores the terms of orders apart from price and quantity (the resources of an ask, the demands
//! of a bid) once for all orders with equal terms.
//!
//! A provider can post the same device many times, so the exchange interns its terms: an order
//! holds a number, and the exchange computes only once for each set of terms the attributes that
//! searches compare.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::book::{Demand, Summary};
use crate::class::Resources;
use crate::ids::{Slot, TermsId};
use crate::order::{Ask, Bid, Limit, SpotPrice, Term};
use crate::predicate::{BuyerFilter, Wants};
use crate::units::{Millis, Permille, Price, Units};

/// The terms of an ask besides device, price and quantity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AskTerms {
    pub resources: Resources,
    pub capacity: Units,
    pub duration_min: Millis,
    pub duration_max: Millis,
    pub notice: Millis,
    pub spot: SpotTerms,
    pub idle: Permille,
    pub accepts: BuyerFilter,
}

/// The spot prices of an ask, and its limit if it has any.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct SpotTerms {
    pub limit: Price,
    pub prices: Vec<SpotPrice>,
}

impl SpotTerms {
    fn from_ask(ask: &Ask) -> Self {
        let limit = match ask.limit {
            Limit::Price(price) if !ask.spot.is_empty() => price,
            _ => Price(0),
        };
        let prices = ask.spot.clone();
        Self { limit, prices }
    }
}

/// The terms of a bid besides class, price, budget, job and quantity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BidTerms {
    pub wants: Wants,
    pub duration: Millis,
    pub start_delay_max: Millis,
    pub term: Term,
    pub all_or_none: bool,
}

impl Ord for AskTerms {
    /// Any total order serves lookups; comparing the numbers that differ most first makes them
    /// fast.
    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = |it: &Self| {
            let times = (it.notice, it.duration_max, it.duration_min);
            (times, it.capacity, it.idle)
        };
        let first = numbers(self).cmp(&numbers(other));
        first
            .then_with(|| self.resources.cmp(&other.resources))
            .then_with(|| self.spot.cmp(&other.spot))
            .then_with(|| self.accepts.cmp(&other.accepts))
    }
}

impl PartialOrd for AskTerms {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for BidTerms {
    /// Compares as for asks.
    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = |it: &Self| (it.duration, it.start_delay_max, it.term, it.all_or_none);
        let first = numbers(self).cmp(&numbers(other));
        first.then_with(|| self.wants.cmp(&other.wants))
    }
}

impl PartialOrd for BidTerms {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Terms that a search can compare, and the type of order that has them.
pub(crate) trait Terms: Ord {
    /// The type of order.
    type Source;

    fn from_order(order: &Self::Source) -> Self;

    /// Returns whether the order has these terms.
    fn are_of(&self, order: &Self::Source) -> bool;

    fn summary(&self) -> Summary;
}

impl AskTerms {
    /// Returns the spot price that applies to a bid instead of the ask's limit, if one does.
    pub(crate) fn spot_price(&self, bid: &BidTerms) -> Option<SpotPrice> {
        let enough = |spot: &&SpotPrice| spot.notice >= bid.wants.notice;
        let prices = (bid.term == Term::Spot).then_some(&self.spot.prices);
        prices?.iter().find(enough).copied()
    }

    /// Returns the notice of a lease that `bid` would open.
    pub(crate) fn notice_for(&self, bid: &BidTerms) -> Millis {
        self.spot_price(bid).map_or(self.notice, |spot| spot.notice)
    }

    /// Returns the least price of a lease that `bid` opens on a leased device; zero if the ask has
    /// one price for all leases.
    pub(crate) fn least_for(&self, bid: &BidTerms) -> Price {
        self.spot_price(bid)
            .map_or(self.spot.limit, |spot| spot.price)
    }

    fn lanes(&self) -> [u16; 8] {
        let Resources {
            memory_bytes,
            memory_bandwidth,
            throughput,
            ..
        } = &self.resources;
        lanes(*memory_bytes, *memory_bandwidth, throughput.0)
    }

    fn region_bit(&self) -> u64 {
        debug_assert!(self.resources.region.0 <= 31, "an ask's region was checked");
        1 << (32 + u32::from(self.resources.region.0.min(31)))
    }

    /// Returns the demand of this ask on the summaries of bids, which are complemented (see below).
    pub(crate) fn demand(&self) -> Demand {
        Demand {
            lanes: self.lanes().map(|lane| !lane),
            all: u64::from(!self.resources.features.0),
            any: self.region_bit(),
        }
    }
}

impl Terms for AskTerms {
    type Source = Ask;

    fn from_order(ask: &Ask) -> Self {
        Self {
            resources: ask.resources.clone(),
            capacity: ask.capacity,
            duration_min: ask.duration_min,
            duration_max: ask.duration_max,
            notice: ask.notice,
            spot: SpotTerms::from_ask(ask),
            idle: ask.idle,
            accepts: ask.accepts.clone(),
        }
    }

    fn are_of(&self, ask: &Ask) -> bool {
        self.resources == ask.resources
            && self.capacity == ask.capacity
            && self.duration_min == ask.duration_min
            && self.duration_max == ask.duration_max
            && self.notice == ask.notice
            && self.spot.prices == ask.spot
            && (ask.spot.is_empty() || ask.limit == Limit::Price(self.spot.limit))
            && self.idle == ask.idle
            && self.accepts == ask.accepts
    }

    fn summary(&self) -> Summary {
        let flags = u64::from(self.resources.features.0) | self.region_bit();
        Summary {
            lanes: self.lanes(),
            flags,
        }
    }
}

impl BidTerms {
    fn lanes(&self) -> [u16; 8] {
        let Wants {
            memory_bytes,
            memory_bandwidth,
            throughput,
            ..
        } = &self.wants;
        lanes(*memory_bytes, *memory_bandwidth, throughput.0)
    }

    /// Returns the demand of this bid on the summaries of asks.
    pub(crate) fn demand(&self) -> Demand {
        Demand {
            lanes: self.lanes(),
            all: u64::from(self.wants.features.0),
            any: u64::from(self.wants.regions.0) << 32,
        }
    }
}

impl Terms for BidTerms {
    type Source = Bid;

    fn from_order(bid: &Bid) -> Self {
        Self {
            wants: bid.wants.clone(),
            duration: bid.duration,
            start_delay_max: bid.start_delay_max,
            term: bid.term,
            all_or_none: bid.all_or_none,
        }
    }

    fn are_of(&self, bid: &Bid) -> bool {
        self.wants == bid.wants
            && self.duration == bid.duration
            && self.start_delay_max == bid.start_delay_max
            && self.term == bid.term
            && self.all_or_none == bid.all_or_none
    }

    /// Complements each value, so that more means easier to satisfy: the complement of each wanted
    /// figure, the features not wanted, and the accepted regions.
    fn summary(&self) -> Summary {
        let regions = match self.wants.regions.0 {
            0 => u32::MAX,
            some => some,
        };
        let flags = u64::from(!self.wants.features.0) | u64::from(regions) << 32;
        Summary {
            lanes: self.lanes().map(|lane| !lane),
            flags,
        }
    }
}

fn lanes(memory: u64, bandwidth: u64, throughput: [u64; 6]) -> [u16; 8] {
    let [a, b, c, d, e, f] = throughput;
    [memory, bandwidth, a, b, c, d, e, f].map(scaled_log2)
}

/// Returns the logarithm in sixteen steps per power of two. It never decreases, so comparing
/// logarithms rules out only pairs that comparing figures would rule out too.
fn scaled_log2(figure: u64) -> u16 {
    let Some(exponent) = figure.checked_ilog2().filter(|exponent| *exponent >= 4) else {
        return figure as u16;
    };
    let mantissa = (figure >> (exponent - 4)) & 15;
    debug_assert!(
        exponent >= 4 && mantissa < 16,
        "sixteen steps a power of two"
    );
    (exponent as u16 - 3) * 16 + mantissa as u16
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry<T> {
    terms: Option<Arc<T>>,
    users: u32,
}

/// All terms of one kind that are in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Interner<T: Ord> {
    entries: Vec<Entry<T>>,
    summaries: Vec<Summary>,
    free: Vec<u32>,
    /// An index by value, rebuilt after a restore.
    #[serde(skip, default = "BTreeMap::new")]
    known: BTreeMap<Arc<T>, u32>,
    #[serde(skip)]
    hints: TermsHints,
}

/// The terms that each account used last: a lookup tries them first, so they are no part of the
/// state.
#[derive(Clone, Debug, Default)]
struct TermsHints(Vec<u32>);

impl PartialEq for TermsHints {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TermsHints {}

impl<T: Ord> Default for Interner<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            summaries: Vec::new(),
            free: Vec::new(),
            known: BTreeMap::new(),
            hints: TermsHints::default(),
        }
    }
}

impl<T: Terms> Interner<T> {
    /// Returns the number of an order's terms and adds one user.
    pub(crate) fn intern_terms(&mut self, slot: Slot, order: &T::Source) -> TermsId {
        if let Some(at) = self.find_hinted(slot, order) {
            assert!(
                self.entries[at as usize].users > 0,
                "terms without users are gone"
            );
            self.entries[at as usize].users += 1;
            return TermsId(at);
        }
        let id = self.look_up(T::from_order(order));
        debug_assert!(self.get(id).are_of(order), "these are the order's terms");
        let slot = slot.index();
        if self.hints.0.len() <= slot {
            self.hints.0.resize(slot + 1, u32::MAX);
        }
        self.hints.0[slot] = id.0;
        id
    }

    fn find_hinted(&self, slot: Slot, order: &T::Source) -> Option<u32> {
        let at = *self.hints.0.get(slot.index())?;
        let terms = self.entries.get(at as usize)?.terms.as_ref()?;
        terms.are_of(order).then_some(at)
    }

    fn look_up(&mut self, terms: T) -> TermsId {
        if let Some(at) = self.known.get(&terms).copied() {
            self.entries[at as usize].users += 1;
            return TermsId(at);
        }
        let summary = terms.summary();
        let terms = Arc::new(terms);
        let entry = Entry {
            terms: Some(terms.clone()),
            users: 1,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                self.summaries[at as usize] = summary;
                at
            }
            None => {
                self.entries.push(entry);
                self.summaries.push(summary);
                u32::try_from(self.entries.len() - 1).expect("no more terms than orders")
            }
        };
        self.known.insert(terms, at);
        assert_eq!(self.entries.len(), self.summaries.len(), "one of each");
        assert_eq!(
            self.known.len() + self.free.len(),
            self.entries.len(),
            "each is in use or free"
        );
        TermsId(at)
    }

    /// Adds one user to terms that must have one already.
    pub(crate) fn add_user(&mut self, id: TermsId) -> TermsId {
        assert!(
            self.entries[id.0 as usize].users > 0,
            "what is shared is in use"
        );
        let users = &mut self.entries[id.0 as usize].users;
        *users += 1;
        assert!(*users > 1, "and by one more");
        id
    }

    /// Removes one user. Each user must be removed exactly once.
    pub(crate) fn remove_user(&mut self, id: TermsId) {
        let entry = &mut self.entries[id.0 as usize];
        entry.users = entry
            .users
            .checked_sub(1)
            .expect("terms are released once per user");
        if entry.users == 0 {
            let terms = entry.terms.take().expect("terms in use are there");
            let known = self.known.remove(&terms);
            assert_eq!(known, Some(id.0), "terms in use are found");
            self.free.push(id.0);
            assert!(self.free.len() <= self.entries.len(), "each is free once");
        }
    }

    pub(crate) fn get(&self, id: TermsId) -> &Arc<T> {
        self.entries[id.0 as usize]
            .terms
            .as_ref()
            .expect("terms in use are there")
    }

    /// Returns the summaries by number.
    pub(crate) fn summaries(&self) -> &[Summary] {
        &self.summaries
    }

    /// Rebuilds the index by value after a restore.
    pub(crate) fn rebuild_index(&mut self) {
        let entries = self.entries.iter().zip(0..);
        let known = entries.filter_map(|(entry, at)| Some((entry.terms.clone()?, at)));
        self.known = known.collect();
        debug_assert!(
            self.known.len() <= self.entries.len(),
            "no more than were kept"
        );
    }

    /// Returns the number of users of all terms, for the audit.
    pub(crate) fn total_users(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| u64::from(entry.users))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_never_decreases() {
        let mut figures: Vec<u64> = (0..64)
            .flat_map(|n| [1 << n, (1 << n) + (1 << n) / 3])
            .collect();
        figures.extend(0..200);
        figures.sort_unstable();
        assert!(
            figures
                .windows(2)
                .all(|pair| scaled_log2(pair[0]) <= scaled_log2(pair[1]))
        );
        assert!(scaled_log2(u64::MAX) < u16::MAX / 2);
    }
}
