//! An order book without a market around it: it stores orders by price and, at one price, by
//! arrival. The exchange has one for each class of devices.
//!
//! An order needs no allocation of its own: the slab (the array of all orders), the price levels
//! and the index of ids grow in large steps, and their entries are reused. All references are
//! indices into flat arrays, so the state encodes as it stands, and a restored replica continues
//! with the same layout.
//!
//! A book orders by price and time and knows nothing else. If you need an order book alone, you can
//! combine a [`Book`], a [`Slab`] and an [`IdIndex`]:
//!
//! ```
//! use souk_market::book::{Book, IdIndex, Slab};
//! use souk_market::{OrderId, Price, Side, Units};
//!
//! let (mut slab, mut book, mut places) = (Slab::default(), Book::default(), IdIndex::default());
//! for (id, price) in [(1, 7), (2, 5), (3, 5)] {
//!     let (id, price) = (OrderId(id), Price(price));
//!     let place = book.insert(&mut slab, Side::Ask, id, price, Units(10));
//!     places.insert(id, place);
//! }
//! let best = book.best_order(Side::Ask).expect("three asks rest");
//! assert_eq!(slab.get(best).id, OrderId(2), "the cheapest, and of those the oldest");
//! book.reduce_order(&mut slab, Side::Ask, best, Units(4));
//! assert_eq!(slab.get(best).quantity, Units(6));
//!
//! let place = places.remove(OrderId(2)).expect("it rests");
//! book.remove(&mut slab, Side::Ask, place);
//! let best = book.best_order(Side::Ask).expect("two asks rest");
//! assert_eq!(slab.get(best).id, OrderId(3));
//! ```

#[allow(
    clippy::arithmetic_side_effects,
    reason = "places in a table of a power of two"
)]
mod ids;
mod levels;
#[allow(
    clippy::arithmetic_side_effects,
    reason = "places in nodes of 32 entries"
)]
mod tree;

use serde::{Deserialize, Serialize};

use crate::ids::OrderId;
use crate::order::Side;
use crate::units::{Price, Units};

pub use ids::IdIndex;
pub(crate) use levels::{Level, Levels};
pub(crate) use tree::{Demand, Search, Summary, Tree, VISITS_MAX, VisitBudget};

/// Stands for "no node" and "no level".
pub(crate) const NONE: u32 = u32::MAX;

/// A price mapped so that, on either side, a smaller key is a better price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key(u64);

impl Key {
    pub(crate) fn new(side: Side, price: Price) -> Self {
        match side {
            Side::Ask => Self(price.0),
            Side::Bid => Self(!price.0),
        }
    }

    pub(crate) fn price(self, side: Side) -> Price {
        match side {
            Side::Ask => Price(self.0),
            Side::Bid => Price(!self.0),
        }
    }
}

/// An order as the book stores it, in half a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(align(32))]
pub struct Node {
    /// The order's id.
    pub id: OrderId,
    pub(crate) key: Key,
    /// Units that have not traded yet.
    pub quantity: Units,
    level: u32,
    prev: u32,
    next: u32,
}

/// All nodes; the free ones form a list through `next`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slab {
    nodes: Vec<Node>,
    free: u32,
}

impl Default for Slab {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
        }
    }
}

impl Slab {
    /// Returns the order at an index that [`Book::insert`] or [`Book::best_order`] returned.
    #[inline]
    pub fn get(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn get_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    /// Iterates over the indices of a level's orders, the oldest first.
    pub(crate) fn level_orders(&self, level: &Level) -> impl Iterator<Item = u32> {
        let some = |at: u32| (at != NONE).then_some(at);
        std::iter::successors(some(level.head), move |at| some(self.get(*at).next))
    }

    fn allocate_node(&mut self, node: Node) -> u32 {
        debug_assert!(node.quantity.0 > 0, "an open order has units left");
        if self.free == NONE {
            let at = u32::try_from(self.nodes.len()).expect("fewer than 2^32 open orders");
            self.nodes.push(node);
            return at;
        }
        let at = self.free;
        self.free = self.get(at).next;
        debug_assert_ne!(self.free, at, "a place is free once");
        *self.get_mut(at) = node;
        at
    }

    /// Frees the node at an index. It must not be free already.
    fn give_back(&mut self, at: u32) {
        assert_ne!(self.free, at, "a place is given back once");
        debug_assert!((at as usize) < self.nodes.len(), "a place is one of ours");
        self.get_mut(at).next = self.free;
        self.free = at;
    }
}

/// The two sides of one book.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    asks: Levels,
    bids: Levels,
}

impl Book {
    pub(crate) fn side(&self, side: Side) -> &Levels {
        match side {
            Side::Ask => &self.asks,
            Side::Bid => &self.bids,
        }
    }

    fn side_mut(&mut self, side: Side) -> &mut Levels {
        match side {
            Side::Ask => &mut self.asks,
            Side::Bid => &mut self.bids,
        }
    }

    /// Adds an order behind all others at its price and returns its index in the slab. `quantity`
    /// must not be 0.
    #[inline]
    pub fn insert(
        &mut self,
        slab: &mut Slab,
        side: Side,
        id: OrderId,
        price: Price,
        quantity: Units,
    ) -> u32 {
        assert!(quantity.0 > 0, "an open order has units left");
        let key = Key::new(side, price);
        let level = self.side_mut(side).level_of(key);
        let at = slab.allocate_node(Node {
            id,
            key,
            quantity,
            level,
            prev: NONE,
            next: NONE,
        });
        let last = self.side(side).newest_order(level);
        self.side_mut(side).link_order(slab, level, at, last);
        debug_assert_eq!(
            self.side(side).newest_order(level),
            at,
            "the newest is the last"
        );
        at
    }

    /// Restores a removed order to its earlier position. The book must not have changed in between.
    pub(crate) fn put_back(&mut self, slab: &mut Slab, side: Side, node: Node) -> u32 {
        assert!(node.quantity.0 > 0, "an open order has units left");
        let level = self.side_mut(side).level_of(node.key);
        let at = slab.allocate_node(Node { level, ..node });
        self.side_mut(side).link_order(slab, level, at, node.prev);
        assert_eq!(slab.get(at).prev, node.prev, "it stands where it stood");
        at
    }

    /// Removes an order from any position in its level. `at` must be the index of an order of
    /// `side`.
    #[inline]
    pub fn remove(&mut self, slab: &mut Slab, side: Side, at: u32) -> Node {
        let node = *slab.get(at);
        assert!(node.quantity.0 > 0, "an open order has units left");
        self.side_mut(side).unlink_order(slab, at);
        slab.give_back(at);
        node
    }

    /// Returns the index of a side's best order: the oldest at the best price.
    #[inline]
    pub fn best_order(&self, side: Side) -> Option<u32> {
        self.side(side).best_order()
    }

    /// Reduces an order by `quantity` units; some units must remain.
    #[inline]
    pub fn reduce_order(&mut self, slab: &mut Slab, side: Side, at: u32, quantity: Units) {
        let node = slab.get_mut(at);
        assert!(quantity.0 > 0, "something is taken off");
        node.quantity = node.quantity.minus(quantity);
        assert!(node.quantity.0 > 0, "an open order has units left");
        let level = node.level;
        self.side_mut(side).reduce_level(level, quantity);
    }
}
