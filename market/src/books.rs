//! Stores every resting order of the exchange, in one book for each class of devices. The exchange
//! adds, changes and removes orders only through it, so that the books, their search trees and the
//! orders' terms always agree.

mod class_book;
mod order;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::book::{Demand, IdIndex, Key, Level, Node, Search, Slab, Summary, VisitBudget};
use crate::class::Class;
use crate::ids::{BookId, JobId, LeaseId, OrderId, TermsId};
use crate::lease::Lease;
use crate::order::Side;
use crate::rules::Rules;
use crate::state_tree::TouchedRows;
use crate::terms::{AskTerms, BidTerms, Interner};
use crate::units::{Credits, Millis, Price, Units};
pub(crate) use class_book::ClassBook;
use order::OrderRecord;
pub(crate) use order::{Order, OrderDetail, OrderKind};

/// One side of one book up to a price, and the attributes that a search demands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BookQuery {
    pub book: BookId,
    pub side: Side,
    pub demand: Demand,
    pub limit: Price,
}

/// All orders and all books.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Books {
    slab: Slab,
    records: Vec<OrderRecord>,
    /// The job of each bid, by the bid's index in the slab.
    jobs: Vec<JobId>,
    /// The deposit of each ask, by the ask's index in the slab.
    deposits: Vec<Credits>,
    /// For each ask that resells a lease, that lease.
    resales: BTreeMap<OrderId, LeaseId>,
    places: IdIndex,
    books: Vec<ClassBook>,
    by_class: BTreeMap<Class, BookId>,
    pub ask_terms: Interner<AskTerms>,
    pub bid_terms: Interner<BidTerms>,
    /// The orders that commands touched since the last state root.
    #[serde(skip)]
    pub(crate) touched: TouchedRows,
}

impl Books {
    /// Returns the book of a class and creates it if it does not exist. At the limit of classes, a
    /// new book replaces the vacant one whose last trade is the oldest.
    pub(crate) fn open_book(&mut self, class: Class, rules: &Rules) -> Option<BookId> {
        if let Some(id) = self.by_class.get(&class) {
            return Some(*id);
        }
        let book = ClassBook::new(class, rules.of_class(class));
        let id = if self.has_room(rules) {
            self.books.push(book);
            BookId(u32::try_from(self.books.len()).ok()?.checked_sub(1)?)
        } else {
            let id = self
                .lightest_book()
                .filter(|id| self.book(*id).is_vacant())?;
            let old = std::mem::replace(self.book_mut(id), book);
            let known = self.by_class.remove(&old.class);
            assert_eq!(known, Some(id), "a book is found by its class");
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

    /// Returns whether the market can have one more class.
    fn has_room(&self, rules: &Rules) -> bool {
        self.books.len() < usize::try_from(rules.classes_max).unwrap_or(usize::MAX)
    }

    /// Returns whether a class can have a book without evicting any order.
    pub(crate) fn takes_in(&self, class: Class, rules: &Rules) -> bool {
        let vacant = || {
            self.lightest_book()
                .is_some_and(|id| self.book(id).is_vacant())
        };
        self.by_class.contains_key(&class) || self.has_room(rules) || vacant()
    }

    /// Returns the class to evict next, among those in which no order holds a deposit: the one with
    /// the fewest orders and, among equals, the one whose last trade is the oldest.
    pub(crate) fn lightest_book(&self) -> Option<BookId> {
        let light = (0..).zip(&self.books).filter(|(_, book)| book.is_light());
        let traded = |book: &ClassBook| book.tape.prints().next_back().map(|print| print.at);
        let first = light.min_by_key(|(at, book)| (book.order_count(), traded(book), *at));
        first.map(|(at, _)| BookId(at))
    }

    /// Adds `change` to the number of light orders in a book.
    pub(crate) fn count_light(&mut self, book: BookId, change: i32) {
        let count = &mut self.book_mut(book).light_orders;
        *count = count
            .checked_add_signed(change)
            .expect("an order that holds little is counted once");
    }

    /// Recounts the light orders of each class.
    pub(crate) fn recount_light<'a>(&mut self, light: impl Iterator<Item = &'a OrderId>) {
        self.books.iter_mut().for_each(|book| book.light_orders = 0);
        for order in light {
            let order = self.get(*order).expect("what is light is in the book");
            self.count_light(order.detail.book, 1);
        }
    }

    pub(crate) fn find_book(&self, class: Class) -> Option<BookId> {
        self.by_class.get(&class).copied()
    }

    pub(crate) fn book(&self, id: BookId) -> &ClassBook {
        &self.books[id.0 as usize]
    }

    pub(crate) fn book_mut(&mut self, id: BookId) -> &mut ClassBook {
        &mut self.books[id.0 as usize]
    }

    /// Applies these rules to each class.
    pub(crate) fn change_rules(&mut self, rules: &Rules) {
        for book in &mut self.books {
            book.rules = rules.of_class(book.class);
        }
    }

    /// Adds the trade that opens a lease to the tape of its class.
    pub(crate) fn on_lease_opened(&mut self, now: Millis, lease: &Lease, terms: TermsId) {
        let resources = &self.ask_terms.get(terms).resources;
        debug_assert_eq!(resources.model, lease.model, "the lease is on these terms");
        let book = &mut self.books[lease.parties.book.0 as usize];
        let open_leases = book.open_leases;
        book.on_lease_opened(now, lease, resources);
        assert!(book.open_leases > open_leases, "one lease more is open");
    }

    /// Counts a lease of this book as closed.
    pub(crate) fn on_lease_closed(&mut self, book: BookId) {
        self.book_mut(book).on_lease_closed();
    }

    /// Returns the steps that a search for a class to evict takes.
    pub(crate) fn classes_looked_at(&self) -> u32 {
        u32::try_from(self.books.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of classes.
    pub(crate) fn class_count(&self) -> u64 {
        self.by_class.len() as u64
    }

    /// Returns the number of orders in all books.
    pub(crate) fn order_count(&self) -> u64 {
        self.places.len()
    }

    /// Iterates over all books in the order of their classes.
    pub(crate) fn by_class(&self) -> impl Iterator<Item = &ClassBook> {
        self.by_class.values().map(|id| self.book(*id))
    }

    fn order_at(&self, place: u32) -> Order {
        let node = self.slab.get(place);
        debug_assert!(node.quantity.0 > 0, "an open order has units left");
        let record = &self.records[place as usize];
        let resale = self.resold_lease(record, node.id);
        Order {
            id: node.id,
            price: node.key.price(record.side()),
            remaining: node.quantity,
            detail: record.order_detail(resale, self.deposits[place as usize]),
        }
    }

    fn resold_lease(&self, record: &OrderRecord, id: OrderId) -> LeaseId {
        if !record.is_resale() {
            return LeaseId(0);
        }
        *self.resales.get(&id).expect("a resale is of a lease")
    }

    /// Prefetches the memory of an order, if it is open, well before a command needs it.
    pub(crate) fn prefetch_order(&self, id: OrderId) {
        if let Some(place) = self.places.get(id) {
            let (node, record) = (self.slab.get(place), &self.records[place as usize]);
            std::hint::black_box(node.id.0 ^ record.value);
        }
    }

    /// Returns the job of a bid, which must be in the book.
    pub(crate) fn bid_job(&self, id: OrderId) -> JobId {
        let place = self.places.get(id).expect("only open orders are asked");
        debug_assert_eq!(self.slab.get(place).id, id, "the index leads to the order");
        self.jobs[place as usize]
    }

    pub(crate) fn get(&self, id: OrderId) -> Option<Order> {
        self.places.get(id).map(|place| self.order_at(place))
    }

    /// Puts an order into its book, which then counts as the user of its terms. The order's price
    /// and units must not be 0.
    pub(crate) fn insert(&mut self, order: &Order, job: JobId) {
        let Order {
            id,
            price,
            remaining,
            detail,
        } = *order;
        assert!(
            price.0 > 0 && remaining.0 > 0,
            "it is of something for something"
        );
        let side = order.side();
        let class = &mut self.books[detail.book.0 as usize];
        let place = class
            .book
            .insert(&mut self.slab, side, id, price, remaining);
        self.record_order(order, job, place);
        debug_assert_eq!(
            self.get(id).as_ref(),
            Some(order),
            "what went in is found as it was"
        );
    }

    /// Restores a removed order to its earlier position. The book must not have changed in between.
    pub(crate) fn put_back(&mut self, order: &Order, job: JobId, node: Node) {
        assert_eq!(node.id, order.id, "the place was this order's");
        assert_eq!(
            node.quantity, order.remaining,
            "and nothing was taken off it"
        );
        let class = &mut self.books[order.detail.book.0 as usize];
        let place = class.book.put_back(&mut self.slab, order.side(), node);
        self.record_order(order, job, place);
        debug_assert_eq!(self.get(order.id).as_ref(), Some(order), "it is as it was");
    }

    fn record_order(&mut self, order: &Order, job: JobId, place: u32) {
        let Order {
            id, price, detail, ..
        } = *order;
        let side = order.side();
        let at = place as usize;
        assert!(at <= self.records.len(), "places have no gaps");
        assert_eq!(self.records.len(), self.jobs.len(), "one of each a place");
        assert_eq!(self.records.len(), self.deposits.len(), "and one of these");
        if at == self.records.len() {
            self.records.push(OrderRecord::from_detail(&detail));
            self.jobs.push(job);
            self.deposits.push(order.deposit());
        } else {
            self.records[at] = OrderRecord::from_detail(&detail);
            self.jobs[at] = job;
            self.deposits[at] = order.deposit();
        }
        if let Some(resale) = order.resold_lease() {
            let earlier = self.resales.insert(id, resale);
            assert!(earlier.is_none(), "an order resells one lease");
        }
        self.places.insert(id, place);
        self.touched.note(id.0);
        let key = Key::new(side, price);
        let summaries = side_summaries(&self.ask_terms, &self.bid_terms, side);
        let class = &mut self.books[detail.book.0 as usize];
        class
            .tree_mut(side)
            .insert(key, id, place, detail.terms.0, summaries);
        if side == Side::Ask {
            class.count_ask(detail.terms);
        }
    }

    /// Removes an order; the caller then counts as the user of its terms.
    pub(crate) fn remove(&mut self, id: OrderId) -> Option<(Order, Node)> {
        let place = self.places.remove(id)?;
        self.touched.note(id.0);
        let order = self.order_at(place);
        let side = order.side();
        if order.resold_lease().is_some() {
            let known = self.resales.remove(&id);
            assert_eq!(known, order.resold_lease(), "a resale is of its lease");
        }
        let class = &mut self.books[order.detail.book.0 as usize];
        let node = class.book.remove(&mut self.slab, side, place);
        assert_eq!(node.id, id, "the index leads to the order");
        let summaries = side_summaries(&self.ask_terms, &self.bid_terms, side);
        class.tree_mut(side).remove(node.key, id, summaries);
        if side == Side::Ask {
            class.count_ask_out(order.detail.terms);
        }
        debug_assert!(self.places.get(id).is_none(), "what is out is not found");
        Some((order, node))
    }

    /// Gives up one use of the terms of a removed order.
    pub(crate) fn release_terms(&mut self, order: &Order) {
        match order.side() {
            Side::Ask => self.ask_terms.remove_user(order.detail.terms),
            Side::Bid => self.bid_terms.remove_user(order.detail.terms),
        }
    }

    /// Reduces an order by some units, which it must have, and removes it if none remain. Returns
    /// the removed order.
    pub(crate) fn reduce_order(&mut self, id: OrderId, quantity: Units) -> Option<Order> {
        let place = self.places.get(id).expect("only open orders are reduced");
        let order = self.order_at(place);
        self.touched.note(id.0);
        assert!(
            quantity.0 > 0 && quantity <= order.remaining,
            "a part of what is left"
        );
        if quantity == order.remaining {
            let (mut order, node) = self.remove(id).expect("it was just there");
            assert_eq!(node.quantity, quantity, "all of it goes");
            order.remaining = Units(0);
            return Some(order);
        }
        let class = &mut self.books[order.detail.book.0 as usize];
        class
            .book
            .reduce_order(&mut self.slab, order.side(), place, quantity);
        None
    }

    /// Subtracts the cost of a trade from a bid's budget.
    pub(crate) fn spend_budget(&mut self, id: OrderId, spent: Credits) {
        let place = self.places.get(id).expect("only open orders trade");
        debug_assert_eq!(self.slab.get(place).id, id, "the index leads to the order");
        self.touched.note(id.0);
        self.records[place as usize].spend_budget(spent);
    }

    /// Passes the orders that may suit a query to `tell`, best first, until it stops or the visits
    /// run out.
    pub(crate) fn search_orders(
        &self,
        query: &BookQuery,
        visits: &mut VisitBudget,
        mut tell: impl FnMut(Order) -> ControlFlow<()>,
    ) {
        let stop = |order: &Order| tell(*order).is_break();
        self.next(query, None, visits, stop);
    }

    /// Returns the next order after `from` that may suit the query and for which `suits` is true.
    pub(crate) fn next(
        &self,
        query: &BookQuery,
        from: Option<&Order>,
        visits: &mut VisitBudget,
        mut suits: impl FnMut(&Order) -> bool,
    ) -> Option<Order> {
        let side = query.side;
        let from = from.map(|order| (Key::new(side, order.price), order.id));
        let wanted = Search {
            demand: query.demand,
            from,
            limit: Key::new(side, query.limit),
            of_terms: side_summaries(&self.ask_terms, &self.bid_terms, side),
        };
        let tree = self.book(query.book).tree(side);
        let found = tree.first_match(&wanted, visits, |place| suits(&self.order_at(place)));
        let found = found.map(|place| self.order_at(place));
        debug_assert!(
            found.is_none_or(|order| order.side() == side),
            "a tree has one side's orders"
        );
        found
    }

    /// Iterates over one side of a book, best first, lazily.
    pub(crate) fn side_orders<'a>(
        &'a self,
        book: &'a ClassBook,
        side: Side,
    ) -> impl Iterator<Item = Order> + 'a {
        let levels = book.book.side(side).iter();
        levels
            .flat_map(|level| self.slab.level_orders(level))
            .map(|place| self.order_at(place))
    }

    /// Returns one side of a book in the order in which a search visits it, for the audit.
    pub(crate) fn searched_side(&self, book: &ClassBook, side: Side) -> Vec<Order> {
        let mut orders = Vec::new();
        book.tree(side)
            .for_each_order(|place| orders.push(self.order_at(place)));
        orders
    }

    /// Returns the oldest order of a level.
    pub(crate) fn first_of(&self, level: &Level) -> OrderId {
        debug_assert!(level.count > 0, "a level has orders");
        self.slab.get(level.head).id
    }

    /// Iterates over all orders by id.
    pub(crate) fn all_orders(&self) -> impl Iterator<Item = Order> {
        self.places.iter().map(|place| self.order_at(place))
    }

    /// Restores the derived indices after a restore.
    pub(crate) fn rebuild_indices(&mut self) {
        assert_eq!(self.records.len(), self.jobs.len(), "one of each a place");
        assert_eq!(self.records.len(), self.deposits.len(), "and one of these");
        self.ask_terms.rebuild_index();
        self.bid_terms.rebuild_index();
        let asks: Vec<Order> = self.all_orders().collect();
        for ask in asks.iter().filter(|order| order.side() == Side::Ask) {
            self.book_mut(ask.detail.book).count_ask(ask.detail.terms);
        }
    }
}

/// Returns the attributes of all terms in use by orders of one side.
fn side_summaries<'a>(
    asks: &'a Interner<AskTerms>,
    bids: &'a Interner<BidTerms>,
    side: Side,
) -> &'a [Summary] {
    match side {
        Side::Ask => asks.summaries(),
        Side::Bid => bids.summaries(),
    }
}
