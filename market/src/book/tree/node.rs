//! The nodes of the search tree: leaves hold orders, and inner nodes hold, for each child, the best
//! value of each attribute below it.

use serde::{Deserialize, Serialize};

use super::super::NONE;

/// The most children of an inner node.
pub(super) const WIDTH: usize = 32;

/// The most orders of a leaf.
pub(super) const LEAF: usize = 32;

/// The best value of each attribute over some orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub lanes: [u16; 8],
    pub flags: u64,
}

/// The demand of a search: at least these lanes, all of some flags, and any of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    pub lanes: [u16; 8],
    pub all: u64,
    /// Zero if the search demands none of them.
    pub any: u64,
}

impl Summary {
    #[inline]
    pub(super) fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.lanes.iter_mut().zip(other.lanes) {
            *mine = (*mine).max(theirs);
        }
        self.flags |= other.flags;
        debug_assert_eq!(
            self.flags & other.flags,
            other.flags,
            "what one has, both have"
        );
    }

    /// Returns whether an order below can satisfy the demand. This can be true although none does,
    /// because the best of each attribute can come from different orders.
    #[inline]
    pub(super) fn may_satisfy(&self, demand: &Demand) -> bool {
        let mut enough = true;
        for (has, wants) in self.lanes.iter().zip(demand.lanes) {
            enough &= *has >= wants;
        }
        let all = demand.all & !self.flags == 0;
        let any = demand.any == 0 || demand.any & self.flags != 0;
        enough & all & any
    }
}

/// The sort key of an order: price, then arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SortKey {
    pub key: u64,
    pub id: u64,
}

impl SortKey {
    /// Returns both parts as one number, which compares without a branch.
    #[inline]
    pub(super) fn rank(self) -> u128 {
        u128::from(self.key) << 64 | u128::from(self.id)
    }
}

/// Returns how many of the places come before `place`.
#[inline]
pub(super) fn count_before(places: &[SortKey], place: SortKey) -> usize {
    let rank = place.rank();
    places.partition_point(|other| other.rank() < rank)
}

/// Returns how many of the places come before `place` or equal it.
#[inline]
pub(super) fn count_up_to(places: &[SortKey], place: SortKey) -> usize {
    let rank = place.rank();
    places.partition_point(|other| other.rank() <= rank)
}

/// Consecutive orders, each with its index in the slab and its terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leaf {
    pub len: u32,
    pub places: [SortKey; LEAF],
    /// Each order's index in the slab, and its terms.
    pub orders: [(u32, u32); LEAF],
}

/// Consecutive children, each with its least place and the best of each attribute in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inner {
    pub len: u32,
    pub places: [SortKey; WIDTH],
    pub children: [u32; WIDTH],
    pub summaries: [Summary; WIDTH],
}

impl Leaf {
    pub(super) fn new_empty() -> Self {
        Self {
            len: 0,
            places: [SortKey::default(); LEAF],
            orders: [(NONE, NONE); LEAF],
        }
    }

    /// Prefetches every cache line of the places at once; otherwise a search would wait for each in
    /// turn.
    pub(super) fn prefetch_places(&self) {
        let lines = self.places.iter().step_by(4);
        std::hint::black_box(lines.fold(0, |all, place| all ^ place.id));
    }

    pub(super) fn insert(&mut self, at: usize, place: SortKey, slot: u32, terms: u32) {
        let len = self.len as usize;
        assert!(at <= len && len < LEAF, "there is room");
        debug_assert!(
            at == 0 || self.places[at - 1].rank() < place.rank(),
            "in order"
        );
        debug_assert!(
            at == len || place.rank() < self.places[at].rank(),
            "in order"
        );
        self.places.copy_within(at..len, at + 1);
        self.orders.copy_within(at..len, at + 1);
        (self.places[at], self.orders[at]) = (place, (slot, terms));
        self.len += 1;
    }

    pub(super) fn remove(&mut self, at: usize) {
        let len = self.len as usize;
        assert!(at < len, "what goes is there");
        self.places.copy_within(at + 1..len, at);
        self.orders.copy_within(at + 1..len, at);
        self.len -= 1;
    }

    /// Moves the second half into a new leaf. The leaf must be full.
    pub(super) fn split_right(&mut self) -> Self {
        assert_eq!(self.len as usize, LEAF, "only a full leaf is split");
        let half = LEAF / 2;
        let mut right = Self::new_empty();
        right.places[..half].copy_from_slice(&self.places[half..]);
        right.orders[..half].copy_from_slice(&self.orders[half..]);
        (self.len, right.len) = (half as u32, half as u32);
        debug_assert!(
            self.places[half - 1].rank() < right.places[0].rank(),
            "the right half comes after"
        );
        right
    }

    pub(super) fn summary(&self, of_terms: &[Summary]) -> Summary {
        let mut sum = Summary::default();
        let mut last = NONE;
        for (_, terms) in &self.orders[..self.len as usize] {
            if *terms != last {
                sum.join(&of_terms[*terms as usize]);
                last = *terms;
            }
        }
        sum
    }
}

impl Inner {
    pub(super) fn new_empty() -> Self {
        Self {
            len: 0,
            places: [SortKey::default(); WIDTH],
            children: [NONE; WIDTH],
            summaries: [Summary::default(); WIDTH],
        }
    }

    pub(super) fn insert(&mut self, at: usize, place: SortKey, child: u32, summary: Summary) {
        let len = self.len as usize;
        assert!(at <= len && len < WIDTH, "there is room");
        debug_assert!(
            at == 0 || self.places[at - 1].rank() < place.rank(),
            "in order"
        );
        debug_assert!(
            at == len || place.rank() < self.places[at].rank(),
            "in order"
        );
        self.places.copy_within(at..len, at + 1);
        self.children.copy_within(at..len, at + 1);
        self.summaries.copy_within(at..len, at + 1);
        (self.places[at], self.children[at], self.summaries[at]) = (place, child, summary);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, at: usize) {
        let len = self.len as usize;
        assert!(at < len, "what goes is there");
        self.places.copy_within(at + 1..len, at);
        self.children.copy_within(at + 1..len, at);
        self.summaries.copy_within(at + 1..len, at);
        self.len -= 1;
    }

    /// Moves the second half into a new node. The node must be full.
    pub(super) fn split_right(&mut self) -> Self {
        assert_eq!(self.len as usize, WIDTH, "only a full node is split");
        let half = WIDTH / 2;
        let mut right = Self::new_empty();
        right.places[..half].copy_from_slice(&self.places[half..]);
        right.children[..half].copy_from_slice(&self.children[half..]);
        right.summaries[..half].copy_from_slice(&self.summaries[half..]);
        (self.len, right.len) = (half as u32, half as u32);
        debug_assert!(
            self.places[half - 1].rank() < right.places[0].rank(),
            "the right half comes after"
        );
        right
    }

    /// Returns the last child that begins at or before `place`, or the first child if none does.
    pub(super) fn child_for(&self, place: SortKey) -> usize {
        debug_assert!(self.len > 0, "a node has children");
        let after = count_up_to(&self.places[..self.len as usize], place);
        after.saturating_sub(1)
    }

    pub(super) fn summary(&self) -> Summary {
        let mut sum = Summary::default();
        for child in &self.summaries[..self.len as usize] {
            sum.join(child);
        }
        sum
    }
}
