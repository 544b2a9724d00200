//! Every order and every book: one book per class, with its search trees and its tape.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::book::{Book, Demand, IdIndex, Key, Level, Node, Search, Slab, Summary, Tree, Visits};
use crate::class::Class;
use crate::genesis::{ClassRules, Rules};
use crate::ids::{DeviceId, JobId, LeaseId, OrderId};
use crate::lease::Lease;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Detail {
    /// Whose order.
    pub slot: Slot,
    pub book: BookId,
    pub terms: TermsId,
    /// When it leaves the book; the greatest time for never.
    pub expires: Millis,
    pub kind: Kind,
}

/// What differs between the sides. The job of a bid lies elsewhere, for only its trades need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    },
}

/// The provider of a bid: there is none.
const NOBODY: Slot = Slot::NONE;

/// A [`Detail`] as it is kept: half a cache line, since nearly every command looks at one order
/// among very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(align(32))]
struct Packed {
    slot: Slot,
    book: BookId,
    terms: TermsId,
    /// [`NOBODY`] for a bid; not the order's account for a resale.
    provider: Slot,
    /// An ask's device, a bid's budget.
    value: u64,
    expires: Millis,
}

impl Packed {
    fn of(detail: &Detail) -> Self {
        let Detail {
            slot,
            book,
            terms,
            expires,
            kind,
        } = *detail;
        let (provider, value) = match kind {
            Kind::Ask {
                device, provider, ..
            } => (provider, device.0),
            Kind::Bid { budget } => (NOBODY, budget.0),
        };
        debug_assert_eq!(provider == NOBODY, matches!(kind, Kind::Bid { .. }));
        if let Kind::Ask { resale, .. } = kind {
            assert_eq!(
                resale.0 != 0,
                provider != slot,
                "one resells what another provides"
            );
        }
        Self {
            slot,
            book,
            terms,
            provider,
            value,
            expires,
        }
    }

    fn side(&self) -> Side {
        match self.provider {
            NOBODY => Side::Bid,
            _ => Side::Ask,
        }
    }

    fn resells(&self) -> bool {
        self.provider != NOBODY && self.provider != self.slot
    }
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

    /// The lease of which it resells the rest, if it does.
    pub(crate) fn resale(&self) -> Option<LeaseId> {
        match self.detail.kind {
            Kind::Ask { resale, .. } if resale.0 != 0 => Some(resale),
            _ => None,
        }
    }

    /// Who will run the work an ask offers, and the lease it resells.
    pub(crate) fn provider(&self) -> (Slot, Option<LeaseId>) {
        match self.detail.kind {
            Kind::Ask { provider, .. } => (provider, self.resale()),
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
    /// Leases opened in it that are not closed.
    pub open_leases: u32,
    pub tape: Tape,
    pub book: Book,
    asks: Tree,
    bids: Tree,
}

impl ClassBook {
    /// Whether nothing is in it or comes out of it any more: only its tape would be missed.
    fn is_vacant(&self) -> bool {
        let empty = |side| self.book.side(side).iter().next().is_none();
        self.open_leases == 0 && self.auction_at.is_none() && empty(Side::Ask) && empty(Side::Bid)
    }

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
    details: Vec<Packed>,
    /// The job of each bid, by its place.
    jobs: Vec<JobId>,
    /// The lease of which an ask resells the rest.
    resales: BTreeMap<OrderId, LeaseId>,
    places: IdIndex,
    books: Vec<ClassBook>,
    by_class: BTreeMap<Class, BookId>,
    pub ask_terms: Interner<AskTerms>,
    pub bid_terms: Interner<BidTerms>,
}

impl Books {
    /// The book of a class, made if it is not there. Where there are as many as there may be, the
    /// vacant one that has been without a trade for longest gives way.
    pub(crate) fn open(&mut self, class: Class, rules: &Rules) -> Option<BookId> {
        if let Some(id) = self.by_class.get(&class) {
            return Some(*id);
        }
        let book = ClassBook {
            class,
            rules: rules.of_class(class),
            auction_at: None,
            open_leases: 0,
            tape: Tape::default(),
            book: Book::default(),
            asks: Tree::default(),
            bids: Tree::default(),
        };
        let count = u32::try_from(self.books.len()).ok()?;
        let id = if count < rules.classes_max {
            self.books.push(book);
            BookId(count)
        } else {
            let id = self.vacant()?;
            let old = std::mem::replace(self.book_mut(id), book);
            self.by_class.remove(&old.class);
            id
        };
        self.by_class.insert(class, id);
        assert_eq!(
            self.by_class.len(),
            self.books.len(),
            "a book for each class"
        );
        Some(id)
    }

    fn vacant(&self) -> Option<BookId> {
        let vacant = (0..).zip(&self.books).filter(|(_, book)| book.is_vacant());
        let traded = |book: &ClassBook| book.tape.prints().next_back().map(|print| print.at);
        let longest = vacant.min_by_key(|(at, book)| (traded(book), *at));
        longest.map(|(at, _)| BookId(at))
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

    /// Puts the trade that opens a lease on its class's tape.
    pub(crate) fn on_lease_opened(&mut self, now: Millis, lease: &Lease, terms: TermsId) {
        let resources = &self.ask_terms.get(terms).resources;
        debug_assert_eq!(resources.model, lease.model, "the lease is on these terms");
        let book = &mut self.books[lease.parties.book.0 as usize];
        book.tape.print(now, lease.price, lease.quantity, resources);
        book.open_leases += 1;
    }

    /// A lease of this book is paid and refunded.
    pub(crate) fn on_lease_closed(&mut self, book: BookId) {
        let book = self.book_mut(book);
        let left = book.open_leases.checked_sub(1);
        book.open_leases = left.expect("a lease is closed once");
    }

    /// Every book, by class.
    /// How many classes are traded.
    pub(crate) fn classes(&self) -> u64 {
        self.by_class.len() as u64
    }

    /// How many orders rest.
    pub(crate) fn orders(&self) -> u64 {
        self.places.len()
    }

    pub(crate) fn by_class(&self) -> impl Iterator<Item = &ClassBook> {
        self.by_class.values().map(|id| self.book(*id))
    }

    fn at(&self, place: u32) -> Order {
        let node = self.slab.get(place);
        debug_assert!(node.quantity.0 > 0, "an open order has units left");
        let packed = &self.details[place as usize];
        let kind = match packed.side() {
            Side::Bid => Kind::Bid {
                budget: Credits(packed.value),
            },
            Side::Ask => Kind::Ask {
                device: DeviceId(packed.value),
                provider: packed.provider,
                resale: self.resale(packed, node.id),
            },
        };
        let Packed {
            slot,
            book,
            terms,
            expires,
            ..
        } = *packed;
        Order {
            id: node.id,
            price: node.key.price(packed.side()),
            remaining: node.quantity,
            detail: Detail {
                slot,
                book,
                terms,
                expires,
                kind,
            },
        }
    }

    fn resale(&self, packed: &Packed, id: OrderId) -> LeaseId {
        if !packed.resells() {
            return LeaseId(0);
        }
        *self.resales.get(&id).expect("a resale is of a lease")
    }

    /// Asks for the memory of an order, if it is open, well before it is needed.
    pub(crate) fn fetch(&self, id: OrderId) {
        if let Some(place) = self.places.get(id) {
            let (node, packed) = (self.slab.get(place), &self.details[place as usize]);
            std::hint::black_box(node.id.0 ^ packed.value);
        }
    }

    /// The job a bid in the book is for.
    pub(crate) fn job(&self, id: OrderId) -> JobId {
        let place = self.places.get(id).expect("only open orders are asked");
        debug_assert_eq!(self.slab.get(place).id, id, "the index leads to the order");
        self.jobs[place as usize]
    }

    pub(crate) fn get(&self, id: OrderId) -> Option<Order> {
        self.places.get(id).map(|place| self.at(place))
    }

    /// Puts an order in its book; the book is from now on the user of its terms.
    pub(crate) fn insert(&mut self, order: &Order, job: JobId) {
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
        self.enter(order, job, place);
        debug_assert_eq!(
            self.get(id).as_ref(),
            Some(order),
            "what went in is found as it was"
        );
    }

    /// Puts an order back where it was, nothing having changed since it was removed.
    pub(crate) fn put_back(&mut self, order: &Order, job: JobId, node: Node) {
        let class = &mut self.books[order.detail.book.0 as usize];
        let place = class.book.put_back(&mut self.slab, order.side(), node);
        self.enter(order, job, place);
        debug_assert_eq!(self.get(order.id).as_ref(), Some(order), "it is as it was");
    }

    fn enter(&mut self, order: &Order, job: JobId, place: u32) {
        let Order {
            id, price, detail, ..
        } = *order;
        let side = order.side();
        let at = place as usize;
        debug_assert!(price.0 > 0, "nothing is offered for nothing");
        debug_assert_eq!(self.details.len(), self.jobs.len(), "one of each a place");
        if at == self.details.len() {
            self.details.push(Packed::of(&detail));
            self.jobs.push(job);
        } else {
            self.details[at] = Packed::of(&detail);
            self.jobs[at] = job;
        }
        if let Some(resale) = order.resale() {
            self.resales.insert(id, resale);
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
        if order.resale().is_some() {
            self.resales.remove(&id);
        }
        let class = &mut self.books[order.detail.book.0 as usize];
        let node = class.book.remove(&mut self.slab, side, place);
        assert_eq!(node.id, id, "the index leads to the order");
        let summaries = match side {
            Side::Ask => self.ask_terms.summaries(),
            Side::Bid => self.bid_terms.summaries(),
        };
        class.tree_mut(side).remove(node.key, id, summaries);
        debug_assert!(self.places.get(id).is_none(), "what is out is not found");
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
        assert!(
            quantity.0 > 0 && quantity <= order.remaining,
            "a part of what is left"
        );
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
        let detail = &mut self.details[place as usize];
        assert_eq!(detail.side(), Side::Bid, "only bids have a budget");
        detail.value = Credits(detail.value).minus(spent).0;
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
        let found = found.map(|place| self.at(place));
        debug_assert!(
            found.is_none_or(|order| order.side() == side),
            "a tree has one side's orders"
        );
        found
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
        debug_assert!(
            orders.iter().all(|order| order.remaining.0 > 0),
            "each has units"
        );
        orders
    }

    /// The oldest order of a level.
    pub(crate) fn first_of(&self, level: &Level) -> OrderId {
        debug_assert!(level.count > 0, "a level has orders");
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
