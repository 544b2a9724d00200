//! Finds the first order, by price and arrival, that can satisfy a bid's demands. It is a B+ tree
//! of orders whose inner nodes carry the best of each attribute below them, so that a search skips
//! subtrees without a suitable order.
//!
//! A search descends into a subtree only if the maximum of each figure and the union of all flags
//! in it can satisfy the demand. Each figure is a 16-bit logarithm, so a check is one comparison of
//! eight lanes; the caller then checks each order that passes exactly.
//!
//! The tree frees empty nodes and never merges nodes, so its shape depends on history. The shape is
//! part of the state and of every snapshot, so it is the same on every replica, and so is the
//! number of visits after which a search stops.

mod node;

use serde::{Deserialize, Serialize};

use crate::ids::OrderId;

use super::{Key, NONE};
use node::{Inner, LEAF, Leaf, SortKey, WIDTH, count_before, count_up_to};

pub(crate) use node::{Demand, Summary};

/// The most steps of one search, after which it finds nothing more. A visit to a node or an order
/// is one step; an exact check of an order takes [`VisitBudget::CHECK`].
pub(crate) const VISITS_MAX: u32 = 16_384;

/// The tree over one side of one book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tree {
    leaves: Vec<Leaf>,
    inners: Vec<Inner>,
    free_leaf: u32,
    free_inner: u32,
    root: u32,
    /// The levels of inner nodes above the leaves.
    depth: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            leaves: vec![Leaf::new_empty()],
            inners: Vec::new(),
            free_leaf: NONE,
            free_inner: NONE,
            root: 0,
            depth: 0,
        }
    }
}

/// The most inner nodes above a leaf. A full node splits into halves of sixteen, so a tree of this
/// depth has seen 16^16 orders: as many as there are order ids.
const DEPTH_MAX: usize = 16;

const _: () = assert!(
    ((LEAF / 2) as u128).pow(DEPTH_MAX as u32) > u64::MAX as u128 && WIDTH >= LEAF,
    "a tree never grows deeper than the way to a leaf is long"
);

/// The path from the root to a leaf: each inner node and the child taken.
type Path = [(u32, u32); DEPTH_MAX];

/// The steps that a search has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisitBudget {
    left: u32,
}

impl VisitBudget {
    /// The steps of an exact check of an order, which reads its row, its terms and its account.
    pub(crate) const CHECK: u32 = 5;

    pub(crate) fn new() -> Self {
        Self { left: VISITS_MAX }
    }

    /// Returns the steps made.
    pub(crate) fn steps_made(self) -> u32 {
        VISITS_MAX.saturating_sub(self.left)
    }

    /// Returns the steps left.
    pub(crate) fn steps_left(self) -> u32 {
        self.left
    }

    /// Spends the steps of another search that was a part of this one, as far as any are left.
    pub(crate) fn spend_all(&mut self, steps: u32) {
        self.left = self.left.saturating_sub(steps);
    }

    fn spend_steps(&mut self, steps: u32) -> bool {
        let some = self.left > 0;
        self.left = self.left.saturating_sub(steps);
        debug_assert!(self.left < VISITS_MAX || !some, "a step was spent");
        some
    }
}

/// The demand and the range of a search.
pub(crate) struct Search<'a> {
    pub demand: Demand,
    /// The order after which the search begins; `None` begins at the best.
    pub from: Option<(Key, OrderId)>,
    /// The last price to visit.
    pub limit: Key,
    /// The attributes of all terms in use.
    pub of_terms: &'a [Summary],
}

impl Search<'_> {
    fn resume_place(&self) -> Option<SortKey> {
        let (key, id) = self.from?;
        Some(SortKey {
            key: key.0,
            id: id.0,
        })
    }
}

/// Changes to the tree.
impl Tree {
    /// Adds an order. `of_terms` holds the attributes of all terms in use.
    pub(crate) fn insert(
        &mut self,
        key: Key,
        id: OrderId,
        slot: u32,
        terms: u32,
        of_terms: &[Summary],
    ) {
        let place = SortKey {
            key: key.0,
            id: id.0,
        };
        let own = of_terms[terms as usize];
        assert_ne!(id.0, 0, "orders count from 1");
        let (leaf_at, path) = self.find_leaf(place, Some(&own));
        let leaf = &mut self.leaves[leaf_at as usize];
        leaf.prefetch_places();
        let at = count_before(&leaf.places[..leaf.len as usize], place);
        debug_assert!(
            at == leaf.len as usize || leaf.places[at] != place,
            "it comes in once"
        );
        if (leaf.len as usize) < LEAF {
            leaf.insert(at, place, slot, terms);
            return;
        }
        let mut right = leaf.split_right();
        let half = leaf.len as usize;
        if at <= half {
            leaf.insert(at, place, slot, terms);
        } else {
            right.insert(at - half, place, slot, terms);
        }
        let left_summary = leaf.summary(of_terms);
        let (right_first, right_summary) = (right.places[0], right.summary(of_terms));
        let right_at = self.take_leaf(right);
        self.insert_split(
            &path,
            leaf_at,
            left_summary,
            (right_first, right_at, right_summary),
        );
    }

    /// Finds the leaf for `place`, joining `own` into every summary on the path.
    fn find_leaf(&mut self, place: SortKey, own: Option<&Summary>) -> (u32, Path) {
        let mut path = Path::default();
        let mut at = self.root;
        for step in path.iter_mut().take(self.depth as usize) {
            let inner = &mut self.inners[at as usize];
            let child = inner.child_for(place);
            if let Some(own) = own {
                inner.summaries[child].join(own);
                if place.rank() < inner.places[child].rank() {
                    inner.places[child] = place;
                }
            }
            debug_assert!(
                child < inner.len as usize,
                "every place is below some child"
            );
            *step = (at, child as u32);
            at = inner.children[child];
        }
        debug_assert!((at as usize) < self.leaves.len(), "the way ends at a leaf");
        (at, path)
    }

    /// Inserts the right half of a split into the node above, and splits upwards while nodes are
    /// full.
    fn insert_split(
        &mut self,
        path: &Path,
        left_at: u32,
        left_summary: Summary,
        right: (SortKey, u32, Summary),
    ) {
        let (mut left_at, mut left_summary, mut right) = (left_at, left_summary, right);
        for (parent_at, child) in path[..self.depth as usize].iter().rev() {
            let parent = &mut self.inners[*parent_at as usize];
            let child = *child as usize;
            debug_assert_eq!(parent.children[child], left_at, "the way led through it");
            parent.summaries[child] = left_summary;
            let (first, at, summary) = right;
            if (parent.len as usize) < WIDTH {
                parent.insert(child + 1, first, at, summary);
                return;
            }
            let mut other = parent.split_right();
            let half = parent.len as usize;
            if child < half {
                parent.insert(child + 1, first, at, summary);
            } else {
                other.insert(child + 1 - half, first, at, summary);
            }
            (left_at, left_summary) = (*parent_at, parent.summary());
            let (other_first, other_summary) = (other.places[0], other.summary());
            right = (other_first, self.take_inner(other), other_summary);
        }
        debug_assert_eq!(left_at, self.root, "only the root has nothing above it");
        let left_first = self.first_of(left_at);
        let mut root = Inner::new_empty();
        root.insert(0, left_first, left_at, left_summary);
        root.insert(1, right.0, right.1, right.2);
        self.root = self.take_inner(root);
        self.depth += 1;
        assert!(
            (self.depth as usize) <= DEPTH_MAX,
            "there are fewer numbers for orders than would fill it"
        );
    }

    fn first_of(&self, at: u32) -> SortKey {
        match self.depth {
            0 => self.leaves[at as usize].places[0],
            _ => self.inners[at as usize].places[0],
        }
    }

    /// Removes an order, which must be in the tree and have its terms still in use.
    pub(crate) fn remove(&mut self, key: Key, id: OrderId, of_terms: &[Summary]) {
        let place = SortKey {
            key: key.0,
            id: id.0,
        };
        let (leaf_at, path) = self.find_leaf(place, None);
        let leaf = &mut self.leaves[leaf_at as usize];
        leaf.prefetch_places();
        let at = count_before(&leaf.places[..leaf.len as usize], place);
        assert!(
            at < leaf.len as usize && leaf.places[at] == place,
            "an open order is in its tree"
        );
        let (_, terms) = leaf.orders[at];
        assert!((terms as usize) < of_terms.len(), "its terms are in use");
        leaf.remove(at);
        let others = &leaf.orders[..leaf.len as usize];
        if others.iter().any(|(_, other)| *other == terms) {
            // Another order of the leaf has the same attributes: no summary changes.
            return;
        }
        if leaf.len == 0 {
            self.remove_leaf(leaf_at, &path);
            return;
        }
        let mut summary = leaf.summary(of_terms);
        for (inner_at, child) in path[..self.depth as usize].iter().rev() {
            let inner = &mut self.inners[*inner_at as usize];
            let known = &mut inner.summaries[*child as usize];
            if *known == summary {
                return;
            }
            *known = summary;
            summary = inner.summary();
        }
    }

    /// Frees a leaf, which must be empty, and every node above it that becomes empty.
    fn remove_leaf(&mut self, leaf_at: u32, path: &Path) {
        if self.depth == 0 {
            return;
        }
        assert_eq!(
            self.leaves[leaf_at as usize].len, 0,
            "only an empty leaf goes"
        );
        self.give_leaf(leaf_at);
        let mut gone = true;
        let mut summary = Summary::default();
        for (inner_at, child) in path[..self.depth as usize].iter().rev() {
            let inner = &mut self.inners[*inner_at as usize];
            if gone {
                inner.remove(*child as usize);
            } else {
                inner.summaries[*child as usize] = summary;
            }
            summary = inner.summary();
            gone = inner.len == 0;
            if gone {
                self.give_inner(*inner_at);
            }
        }
        if gone {
            *self = Self::default();
        }
        self.lower_root();
    }

    /// Replaces a root that has one child by that child.
    fn lower_root(&mut self) {
        let depth = self.depth;
        while self.depth > 0 && self.inners[self.root as usize].len == 1 {
            let old = self.root;
            self.root = self.inners[old as usize].children[0];
            self.give_inner(old);
            self.depth -= 1;
        }
        assert!(self.depth <= depth, "a tree only sinks here");
        assert!(
            self.depth == 0 || self.inners[self.root as usize].len > 1,
            "it branches"
        );
    }

    fn take_leaf(&mut self, leaf: Leaf) -> u32 {
        assert!(leaf.len > 0, "a new leaf has orders");
        if self.free_leaf == NONE {
            self.leaves.push(leaf);
            return u32::try_from(self.leaves.len() - 1).expect("fewer leaves than orders");
        }
        let at = self.free_leaf;
        self.free_leaf = self.leaves[at as usize].orders[0].0;
        assert_ne!(self.free_leaf, at, "a leaf is free once");
        self.leaves[at as usize] = leaf;
        at
    }

    fn give_leaf(&mut self, at: u32) {
        assert_ne!(self.free_leaf, at, "a leaf is freed once");
        assert_eq!(self.leaves[at as usize].len, 0, "only an empty leaf goes");
        self.leaves[at as usize] = Leaf::new_empty();
        self.leaves[at as usize].orders[0].0 = self.free_leaf;
        self.free_leaf = at;
    }

    fn take_inner(&mut self, inner: Inner) -> u32 {
        assert!(inner.len > 0, "a new node has children");
        if self.free_inner == NONE {
            self.inners.push(inner);
            return u32::try_from(self.inners.len() - 1).expect("fewer nodes than orders");
        }
        let at = self.free_inner;
        self.free_inner = self.inners[at as usize].children[0];
        assert_ne!(self.free_inner, at, "a node is free once");
        self.inners[at as usize] = inner;
        at
    }

    fn give_inner(&mut self, at: u32) {
        assert_ne!(self.free_inner, at, "a node is freed once");
        assert!((at as usize) < self.inners.len(), "a node is one of ours");
        self.inners[at as usize] = Inner::new_empty();
        self.inners[at as usize].children[0] = self.free_inner;
        self.free_inner = at;
    }
}

/// Searches.
impl Tree {
    /// Returns the slab index of the first order that may meet the demand and for which `suits` is
    /// true.
    pub(crate) fn first_match(
        &self,
        search: &Search<'_>,
        visits: &mut VisitBudget,
        mut suits: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        self.walk_node(self.root, self.depth, search, visits, &mut suits)
    }

    fn walk_node(
        &self,
        at: u32,
        above: u32,
        search: &Search<'_>,
        visits: &mut VisitBudget,
        suits: &mut impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        debug_assert!(above <= self.depth, "no node is above the root");
        if above == 0 {
            return self.walk_leaf(&self.leaves[at as usize], search, visits, suits);
        }
        let inner = &self.inners[at as usize];
        let start = search
            .resume_place()
            .map_or(0, |from| inner.child_for(from));
        for child in start..inner.len as usize {
            if inner.places[child].key > search.limit.0 || !visits.spend_steps(1) {
                return None;
            }
            if inner.summaries[child].may_satisfy(&search.demand) {
                let below = inner.children[child];
                let found = self.walk_node(below, above - 1, search, visits, suits);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    fn walk_leaf(
        &self,
        leaf: &Leaf,
        search: &Search<'_>,
        visits: &mut VisitBudget,
        suits: &mut impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        let places = &leaf.places[..leaf.len as usize];
        let start = search
            .resume_place()
            .map_or(0, |from| count_up_to(places, from));
        for (at, place) in places.iter().enumerate().skip(start) {
            if place.key > search.limit.0 || !visits.spend_steps(1) {
                return None;
            }
            let (slot, terms) = leaf.orders[at];
            let own = &search.of_terms[terms as usize];
            if own.may_satisfy(&search.demand) {
                visits.spend_all(VisitBudget::CHECK.saturating_sub(1));
                if suits(slot) {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// Passes every order's slab index to `tell`, in order.
    pub(crate) fn for_each_order(&self, mut tell: impl FnMut(u32)) {
        self.each_below(self.root, self.depth, &mut tell);
    }

    fn each_below(&self, at: u32, above: u32, tell: &mut impl FnMut(u32)) {
        if above == 0 {
            let leaf = &self.leaves[at as usize];
            for (slot, _) in &leaf.orders[..leaf.len as usize] {
                tell(*slot);
            }
            return;
        }
        let inner = &self.inners[at as usize];
        for child in &inner.children[..inner.len as usize] {
            self.each_below(*child, above - 1, tell);
        }
    }
}
