//! Every order and every book: one book per class, with its search trees and its tape.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::book::{Book, Demand, IdIndex, Key, Level, Node, Search, Slab, Summary, Tree, Visits};
use crate::class::Class;
use crate::genesis::{ClassRules, Rules};
use crate::ids::{DeviceId, JobId, LeaseId, OrderId};
use crate::ledger::Slot;
use crate::order::Side;
use crate::tape::Tape;
use crate::terms::{AskTerms, BidTerms, Interner, TermsId};
use crate::units::{Credits, Millis, Price, Units};

/// A book's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct BookId(pub u32);

/// An order, put together from what the slab and the details hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub id: OrderId,
    pub price: Price,
    pub remaining: Units,
    pub detail: Detail,
}

/// What the bare book does not need to know of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detail {
    /// Whose order.
    pub slot: Slot,
    pub book: BookId,
    pub terms: TermsId,
    /// When it leaves the book; the greatest time for never.
    pub expires: Millis,
    pub kind: Kind,
}

/// What differs between the sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Ask {
        device: DeviceId,
        /// Who will run the work: the order's account, but for a resale.
        provider: Slot,
        /// The lease of which the rest is resold; 0 for none.
        resale: LeaseId,
    },
    Bid {
        /// What is left of it.
        budget: Credits,
        job: JobId,
    },
}

impl Order {
    pub(crate) fn side(&self) -> Side {
        match self.detail.kind {
            Kind::Ask { .. } => Side::Ask,
            Kind::Bid { .. } => Side::Bid,
        }
    }

    pub(crate) fn slot(&self) -> Slot {
        self.detail.slot
    }

    /// Who will run the work an ask offers, and the lease it resells.
    pub(crate) fn provider(&self) -> (Slot, Option<LeaseId>) {
        match self.detail.kind {
            Kind::Ask {
                provider, resale, ..
            } => (provider, (resale.0 != 0).then_some(resale)),
            Kind::Bid { .. } => unreachable!("only asks have providers"),
        }
    }
}

/// Where a search looks and for what: one side of one book, up to a price.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hunt {
    pub book: BookId,
    pub side: Side,
    pub demand: Demand,
    pub limit: Price,
}

/// One class's book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClassBook {
    pub class: Class,
    pub rules: ClassRules,
    /// When the next auction is, if one is due.
    pub auction_at: Option<Millis>,
    pub tape: Tape,
    pub book: Book,
    asks: Tree,
    bids: Tree,
}

impl ClassBook {
    fn tree(&self, side: Side) -> &Tree {
        match side {
            Side::Ask => &self.asks,
            Side::Bid => &self.bids,
        }
    }

    fn tree_mut(&mut self, side: Side) -> &mut Tree {
        match side {
            Side::Ask => &mut self.asks,
            Side::Bid => &mut self.bids,
        }
    }
}

/// Every order and every book.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Books {
    slab: Slab,
    details: Vec<Detail>,
    places: IdIndex,
    books: Vec<ClassBook>,
    by_class: BTreeMap<Class, BookId>,
    pub ask_terms: Interner<AskTerms>,
    pub bid_terms: Interner<BidTerms>,
}

impl Books {
    /// The book of a class, made if it is not there and there is room for one more.
    pub(crate) fn open(&mut self, class: Class, rules: &Rules) -> Option<BookId> {
        if let Some(id) = self.by_class.get(&class) {
            return Some(*id);
        }
        let count = u32::try_from(self.books.len()).ok()?;
        if count >= rules.classes_max {
            return None;
        }
        self.books.push(ClassBook {
            class,
            rules: rules.of_class(class),
            auction_at: None,
            tape: Tape::default(),
            book: Book::default(),
            asks: Tree::default(),
            bids: Tree::default(),
        });
        self.by_class.insert(class, BookId(count));
        Some(BookId(count))
    }

    pub(crate) fn find(&self, class: Class) -> Option<BookId> {
        self.by_class.get(&class).copied()
    }

    pub(crate) fn book(&self, id: BookId) -> &ClassBook {
        &self.books[id.0 as usize]
    }

    pub(crate) fn book_mut(&mut self, id: BookId) -> &mut ClassBook {
        &mut self.books[id.0 as usize]
    }

    /// Every book, by class.
    pub(crate) fn by_class(&self) -> impl Iterator<Item = &ClassBook> {
        self.by_class.values().map(|id| self.book(*id))
    }

    fn at(&self, place: u32) -> Order {
        let node = self.slab.get(place);
        let detail = self.details[place as usize];
        let side = match detail.kind {
            Kind::Ask { .. } => Side::Ask,
            Kind::Bid { .. } => Side::Bid,
        };
        let (id, price, remaining) = (node.id, node.key.price(side), node.quantity);
        Order {
            id,
            price,
            remaining,
            detail,
        }
    }

    pub(crate) fn get(&self, id: OrderId) -> Option<Order> {
        self.places.get(id).map(|place| self.at(place))
    }

    /// Puts an order in its book; the book is from now on the user of its terms.
    pub(crate) fn insert(&mut self, order: &Order) {
        let Order {
            id,
            price,
            remaining,
            detail,
        } = *order;
        let side = order.side();
        let class = &mut self.books[detail.book.0 as usize];
        let place = class
            .book
            .insert(&mut self.slab, side, id, price, remaining);
        self.enter(order, place);
    }

    /// Puts an order back where it was, nothing having changed since it was removed.
    pub(crate) fn put_back(&mut self, order: &Order, node: Node) {
        let class = &mut self.books[order.detail.book.0 as usize];
        let place = class.book.put_back(&mut self.slab, order.side(), node);
        self.enter(order, place);
    }

    fn enter(&mut self, order: &Order, place: u32) {
        let Order {
            id, price, detail, ..
        } = *order;
        let side = order.side();
        let at = place as usize;
        if at == self.details.len() {
            self.details.push(detail);
        } else {
            self.details[at] = detail;
        }
        self.places.insert(id, place);
        let summaries = match side {
            Side::Ask => self.ask_terms.summaries(),
            Side::Bid => self.bid_terms.summaries(),
        };
        let key = Key::new(side, price);
        let class = &mut self.books[detail.book.0 as usize];
        class
            .tree_mut(side)
            .insert(key, id, place, detail.terms.0, summaries);
    }

    /// Takes an order out; the caller is from now on the user of its terms.
    pub(crate) fn remove(&mut self, id: OrderId) -> Option<(Order, Node)> {
        let place = self.places.remove(id)?;
        let order = self.at(place);
        let side = order.side();
        let class = &mut self.books[order.detail.book.0 as usize];
        let node = class.book.remove(&mut self.slab, side, place);
        assert_eq!(node.id, id, "the index leads to the order");
        let summaries = match side {
            Side::Ask => self.ask_terms.summaries(),
            Side::Bid => self.bid_terms.summaries(),
        };
        class.tree_mut(side).remove(node.key, id, summaries);
        Some((order, node))
    }

    /// The terms of an order that was removed have one user less.
    pub(crate) fn release(&mut self, order: &Order) {
        match order.side() {
            Side::Ask => self.ask_terms.release(order.detail.terms),
            Side::Bid => self.bid_terms.release(order.detail.terms),
        }
    }

    /// Takes units off an order, and the order out of its book if nothing is left of it.
    pub(crate) fn reduce(&mut self, id: OrderId, quantity: Units) -> Option<Order> {
        let place = self.places.get(id).expect("only open orders are reduced");
        let order = self.at(place);
        if quantity == order.remaining {
            let (mut order, _) = self.remove(id).expect("it was just there");
            order.remaining = Units(0);
            return Some(order);
        }
        let class = &mut self.books[order.detail.book.0 as usize];
        class
            .book
            .reduce(&mut self.slab, order.side(), place, quantity);
        None
    }

    /// Takes what a trade cost off a bid's budget.
    pub(crate) fn spend(&mut self, id: OrderId, spent: Credits) {
        let place = self.places.get(id).expect("only open orders trade");
        if let Kind::Bid { budget, .. } = &mut self.details[place as usize].kind {
            *budget = budget.minus(spent);
        }
    }

    /// Tells the orders a hunt may be for, best first, until told to stop or the visits of one
    /// search are used up.
    pub(crate) fn search(&self, hunt: &Hunt, mut tell: impl FnMut(Order) -> ControlFlow<()>) {
        let stop = |order: &Order| tell(*order).is_break();
        self.next(hunt, None, &mut Visits::new(), stop);
    }

    /// The next order after `from` that a hunt may be for and that `suits`.
    pub(crate) fn next(
        &self,
        hunt: &Hunt,
        from: Option<&Order>,
        visits: &mut Visits,
        mut suits: impl FnMut(&Order) -> bool,
    ) -> Option<Order> {
        let side = hunt.side;
        let from = from.map(|order| (Key::new(side, order.price), order.id));
        let wanted = Search {
            demand: hunt.demand,
            from,
            limit: Key::new(side, hunt.limit),
            of_terms: self.summaries(side),
        };
        let tree = self.book(hunt.book).tree(side);
        let found = tree.first(&wanted, visits, |place| suits(&self.at(place)));
        found.map(|place| self.at(place))
    }

    fn summaries(&self, side: Side) -> &[Summary] {
        match side {
            Side::Ask => self.ask_terms.summaries(),
            Side::Bid => self.bid_terms.summaries(),
        }
    }

    /// One side of one book, best first.
    pub(crate) fn side(&self, book: &ClassBook, side: Side) -> Vec<Order> {
        let mut orders = Vec::new();
        book.tree(side).each(|place| orders.push(self.at(place)));
        orders
    }

    /// The oldest order of a level.
    pub(crate) fn first_of(&self, level: &Level) -> OrderId {
        self.slab.get(level.head).id
    }

    /// Every order, by id.
    pub(crate) fn all(&self) -> impl Iterator<Item = Order> {
        self.places.iter().map(|place| self.at(place))
    }

    /// After a restore.
    pub(crate) fn rebuild(&mut self) {
        self.ask_terms.rebuild();
        self.bid_terms.rebuild();
    }
}
