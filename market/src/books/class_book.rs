//! The data of one class of devices (those that trade in one book): the book of its orders, the
//! search tree of each side, and the tape of its last trades.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::book::{Book, Tree};
use crate::class::{Class, Resources};
use crate::ids::TermsId;
use crate::lease::Lease;
use crate::order::Side;
use crate::rules::ClassRules;
use crate::tape::Tape;
use crate::units::{Count, Millis};

/// The book of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClassBook {
    pub class: Class,
    pub rules: ClassRules,
    /// Leases opened in this book that are not closed.
    pub open_leases: u32,
    /// Orders in this book that hold less than a deposit.
    pub light_orders: u32,
    pub tape: Tape,
    pub book: Book,
    asks: Tree,
    bids: Tree,
    /// The number of asks on each terms: an index, rebuilt after a restore.
    #[serde(skip)]
    asks_by_terms: BTreeMap<TermsId, u32>,
}

impl ClassBook {
    /// Creates an empty book without trades. `rules` must be those of the class.
    pub(super) fn new(class: Class, rules: ClassRules) -> Self {
        assert_eq!(rules.class, class, "a book is traded by its class's rules");
        Self {
            class,
            rules,
            open_leases: 0,
            light_orders: 0,
            tape: Tape::default(),
            book: Book::default(),
            asks: Tree::default(),
            bids: Tree::default(),
            asks_by_terms: BTreeMap::new(),
        }
    }

    /// Records the trade that opens a lease on these resources. The lease must be of this class.
    pub(super) fn on_lease_opened(&mut self, now: Millis, lease: &Lease, on: &Resources) {
        assert_eq!(
            lease.class, self.class,
            "a lease is counted where it was traded"
        );
        self.tape.record_print(now, lease.price, lease.quantity, on);
        self.open_leases.count_up();
        assert!(!self.is_vacant(), "an open lease keeps its class");
    }

    /// Counts a lease of this book as closed.
    pub(super) fn on_lease_closed(&mut self) {
        assert!(self.open_leases > 0, "a lease is closed once");
        self.open_leases.count_down();
    }

    /// Returns whether the book has no orders or open leases, so that only its tape would be lost.
    pub(super) fn is_vacant(&self) -> bool {
        self.order_count() == 0 && self.is_light()
    }

    /// Returns whether no order in the book holds a deposit, and no lease is open.
    pub(super) fn is_light(&self) -> bool {
        self.open_leases == 0 && self.light_orders == self.order_count()
    }

    /// Returns the number of orders in the book.
    pub(super) fn order_count(&self) -> u32 {
        let [asks, bids] = [Side::Ask, Side::Bid].map(|side| self.book.side(side).order_count());
        asks.checked_add(bids).expect("orders have 32-bit places")
    }

    /// Returns the terms of the asks in the book, each with their number.
    pub(crate) fn asks_by_terms(&self) -> impl Iterator<Item = (TermsId, u32)> {
        self.asks_by_terms
            .iter()
            .map(|(terms, asks)| (*terms, *asks))
    }

    /// Counts an ask that came into the book.
    pub(super) fn count_ask(&mut self, terms: TermsId) {
        self.asks_by_terms.entry(terms).or_default().count_up();
    }

    /// Counts an ask that left the book.
    pub(super) fn count_ask_out(&mut self, terms: TermsId) {
        let asks = self.asks_by_terms.get_mut(&terms);
        let asks = asks.expect("an ask in the book is counted");
        asks.count_down();
        if *asks == 0 {
            self.asks_by_terms.remove(&terms);
        }
    }

    pub(super) fn tree(&self, side: Side) -> &Tree {
        match side {
            Side::Ask => &self.asks,
            Side::Bid => &self.bids,
        }
    }

    pub(super) fn tree_mut(&mut self, side: Side) -> &mut Tree {
        match side {
            Side::Ask => &mut self.asks,
            Side::Bid => &mut self.bids,
        }
    }
}
