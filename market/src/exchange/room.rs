//! Keeps the market within its limits of orders, accounts, classes and requests: decides who must
//! put up a deposit for a place, and evicts entries when the market is full.
//!
//! An order is light if it holds fewer credits than the deposit of an ask (a rule of the market):
//! for example an account's first ask, which is free, or a bid for less. In a full market, an order
//! that holds a deposit replaces a light one of the youngest account. An attacker that brings many
//! keys brings them late, so it loses their orders before any older account does.
//!
//! The same holds for accounts, classes and requests: one that holds a deposit's worth stays. Of
//! the others, the market evicts the account unused for longest, the class with the fewest orders,
//! and the oldest request. A new account can replace one that holds less only when no batch that
//! the old one signed can arrive again: batches expire within the time of a rule, and an account
//! records when its last batch expires.

use std::collections::{BTreeSet, VecDeque};

use crate::accounts::IdleRank;
use crate::books::{Order, OrderKind};
use crate::class::Class;
use crate::event::{Event, MoveReason, OrderEnd};
use crate::ids::{AccountKey, BookId, OrderId, RequestId, Slot};
use crate::order::{Side, TimeInForce};
use crate::refusal::Refusal;
use crate::text::Name;
use crate::units::{Credits, Millis};

use super::{Exchange, LightKey};

/// The most idle accounts that one search returns. Scanning a million accounts takes some
/// milliseconds, so many new accounts share one scan.
const IDLE_FOUND_MAX: usize = 1_024;

/// The reason for refusing the requests of an account that made room for another.
const FORGOTTEN: &str = "the account made room for others";

/// The least time between two such searches.
const IDLE_SOUGHT: Millis = Millis(1_000);

/// Orders.
impl Exchange {
    /// Returns the deposit that a resting ask of this account must hold: zero for the first, unless
    /// a class must make way for it. Refuses if the market has no place, or the account cannot pay
    /// it.
    pub(super) fn check_deposit(
        &self,
        slot: Slot,
        class: Class,
        tif: TimeInForce,
    ) -> Result<Credits, Refusal> {
        let account = self.ledger.get(slot);
        if !tif.can_rest() {
            return Ok(Credits::ZERO);
        }
        let is_free = account.free_asks == 0 && self.books.takes_in(class, &self.rules);
        let deposit = match is_free {
            true => Credits::ZERO,
            false => self.rules.ask_deposit,
        };
        let available = account.available;
        if available < deposit {
            return Err(Refusal::DepositShort { deposit, available });
        }
        self.check_room(deposit.0 > 0)?;
        Ok(deposit)
    }

    /// Checks that one more order can rest; one that holds a deposit can also replace a light one.
    pub(super) fn check_room(&self, holds_deposit: bool) -> Result<(), Refusal> {
        let limit = self.rules.orders_max;
        let is_full = self.books.order_count() >= u64::from(limit);
        match is_full && (!holds_deposit || self.light.is_empty()) {
            true => Err(Refusal::OrdersFull {
                limit,
                deposit: self.rules.ask_deposit,
            }),
            false => Ok(()),
        }
    }

    /// Evicts a light order if the order that just came to rest is one too many.
    pub(super) fn make_room(&mut self, events: &mut Vec<Event>) {
        if self.books.order_count() <= u64::from(self.rules.orders_max) {
            return;
        }
        if let Some((_, order)) = self.light.last().copied() {
            self.drop_order(order, OrderEnd::Evicted, events);
            debug_assert!(self.books.get(order).is_none(), "it has given way");
        }
    }

    /// Returns whether an order holds less than a deposit. A resale is never light, because its
    /// lease holds credits.
    pub(super) fn is_light(&self, order: &Order) -> bool {
        match order.detail.kind {
            OrderKind::Ask { deposit, .. } => deposit.0 == 0 && order.resold_lease().is_none(),
            OrderKind::Bid { .. } => self.hold_of(order, order.remaining) < self.rules.ask_deposit,
        }
    }

    /// Returns all light orders by a full scan.
    pub(super) fn light_orders(&self) -> BTreeSet<LightKey> {
        let light = self.books.all_orders().filter(|order| self.is_light(order));
        light.map(|order| self.light_key(&order)).collect()
    }

    fn light_key(&self, order: &Order) -> LightKey {
        (self.ledger.get(order.slot()).opened, order.id)
    }

    /// Lists an order if it is light.
    pub(super) fn index_if_light(&mut self, order: &Order) {
        if self.is_light(order) && self.light.insert(self.light_key(order)) {
            self.books.count_light(order.detail.book, 1);
        }
    }

    /// Checks again whether an order is light after it has become smaller.
    pub(super) fn weigh_again(&mut self, id: OrderId) {
        let order = self.books.get(id).expect("some of the order is left");
        if order.side() == Side::Bid {
            self.index_if_light(&order);
        }
    }
}

/// Classes.
impl Exchange {
    /// Returns the book of a class for any order except a resting ask. Only a resting ask or a rule
    /// opens a class; otherwise bids that no ask meets could fill the market with classes at no
    /// cost.
    pub(super) fn known_book(&mut self, class: Class) -> Result<BookId, Refusal> {
        if let Some(book) = self.books.find_book(class) {
            return Ok(book);
        }
        let is_named = self.rules.classes.iter().any(|rules| rules.class == class);
        let opened = is_named.then(|| self.books.open_book(class, &self.rules));
        opened.flatten().ok_or(Refusal::ClassUnknown { class })
    }

    /// Returns the book of a class for an ask that rests and holds this deposit. At the limit of
    /// classes, an ask with a deposit replaces a class in which no order holds one.
    pub(super) fn open_book(
        &mut self,
        class: Class,
        deposit: Credits,
        events: &mut Vec<Event>,
    ) -> Result<BookId, Refusal> {
        if !self.books.takes_in(class, &self.rules) {
            let light = self.books.lightest_book().filter(|_| deposit.0 > 0);
            let light = light.ok_or(Refusal::ClassesMany {
                limit: self.rules.classes_max,
                deposit: self.rules.ask_deposit,
            })?;
            self.empty_book(light, events);
        }
        let book = self.books.open_book(class, &self.rules);
        Ok(book.expect("there is room, or a class without orders"))
    }

    /// Evicts the orders of a class; there are at most as many as orders divided by classes.
    fn empty_book(&mut self, book: BookId, events: &mut Vec<Event>) {
        let class = self.books.book(book);
        let sides = [Side::Ask, Side::Bid].map(|side| self.books.side_orders(class, side));
        let orders: Vec<OrderId> = sides.into_iter().flatten().map(|order| order.id).collect();
        for order in orders {
            self.drop_order(order, OrderEnd::Evicted, events);
        }
        assert_eq!(self.books.book(book).light_orders, 0, "nothing rests in it");
    }
}

/// Accounts.
impl Exchange {
    pub(super) fn open_account(
        &mut self,
        account: AccountKey,
        name: &Name,
        events: &mut Vec<Event>,
    ) -> Result<Slot, Refusal> {
        if account.is_weak() {
            return Err(Refusal::KeyWeak { account });
        }
        let limit = self.rules.accounts_max;
        if self.ledger.accounts().len() < limit as usize {
            return Ok(self.ledger.open_account(account, name.clone()));
        }
        let idle = self.next_idle().ok_or(Refusal::AccountsMany { limit })?;
        let count = self.ledger.accounts().len();
        self.clear_account(idle, events);
        let old = self.ledger.replace_account(idle, account, name.clone());
        assert_eq!(self.ledger.accounts().len(), count, "one for one");
        events.push(Event::Forgotten { account: old });
        Ok(idle)
    }

    /// Removes all that an account has: its orders, its requests, and its credits, which become
    /// fees.
    fn clear_account(&mut self, slot: Slot, events: &mut Vec<Event>) {
        for order in self.light_orders_of(slot) {
            self.drop_order(order, OrderEnd::Evicted, events);
        }
        let account = self.ledger.get(slot).key;
        for request in self.requests_held(slot) {
            self.drop_request(request, FORGOTTEN, events);
        }
        let left = self.ledger.forfeit_available(slot);
        if left.0 > 0 {
            let reason = MoveReason::Forfeited;
            events.push(Event::Moved {
                account,
                reason,
                amount: left,
            });
        }
        self.ledger.report_balances(events);
        let account = self.ledger.get(slot);
        assert_eq!(
            account.total_credits(),
            Credits::ZERO,
            "it has nothing left"
        );
        assert_eq!(account.open_orders, 0, "and nothing rests");
    }

    /// Returns an account's light orders, the oldest first.
    fn light_orders_of(&self, slot: Slot) -> Vec<OrderId> {
        let opened = self.ledger.get(slot).opened;
        let own = (opened, OrderId(0))..=(opened, OrderId(u64::MAX));
        self.light.range(own).map(|(_, order)| *order).collect()
    }

    /// Returns an account's undecided requests, the oldest first.
    fn requests_held(&self, slot: Slot) -> Vec<RequestId> {
        let account = self.ledger.get(slot);
        match account.open_requests {
            0 => Vec::new(),
            _ => self
                .requests_of(account.key)
                .map(|request| request.id)
                .collect(),
        }
    }

    /// Returns the rank of an account that can make room: it holds less than a deposit in all, its
    /// orders are light, and no operator is paying out one of its withdrawals.
    fn makes_room(&self, slot: Slot) -> Option<IdleRank> {
        let account = self.ledger.get(slot);
        let rank = account.idle_rank(self.now, self.rules.account_deposit)?;
        if rank == IdleRank::Nothing {
            return Some(rank);
        }
        let light = self.light_orders_of(slot).len();
        let requests = self.requests_held(slot);
        let mut requests = requests.iter().filter_map(|id| self.requests.get(id));
        let is_light = light == usize::try_from(account.open_orders).unwrap_or(usize::MAX);
        let is_paid = requests.any(|request| request.lock.is_some());
        (is_light && !is_paid).then_some(rank)
    }

    /// Returns the account to evict next, if one has nothing or little.
    fn next_idle(&mut self) -> Option<Slot> {
        let first = self
            .idle
            .front()
            .and_then(|(slot, _)| self.makes_room(*slot));
        if first != Some(IdleRank::Nothing) && self.now >= self.idle_sought_at {
            self.idle_sought_at = self.now.saturating_add(IDLE_SOUGHT);
            self.idle = self.idle_accounts();
        }
        while let Some((slot, key)) = self.idle.pop_front() {
            if self.ledger.get(slot).key == key && self.makes_room(slot).is_some() {
                return Some(slot);
            }
        }
        None
    }

    /// Returns a bounded list of accounts: those that have nothing, then those that have little,
    /// the longest unused of each first.
    fn idle_accounts(&self) -> VecDeque<(Slot, AccountKey)> {
        let accounts = (0..).map(Slot).zip(self.ledger.accounts());
        let deposit = self.rules.account_deposit;
        let idle = accounts.filter_map(|(slot, account)| {
            let rank = account.idle_rank(self.now, deposit)?;
            Some((rank, account.used, account.opened, slot, account.key))
        });
        let mut idle: Vec<_> = idle.collect();
        if idle.len() > IDLE_FOUND_MAX {
            idle.select_nth_unstable(IDLE_FOUND_MAX);
            idle.truncate(IDLE_FOUND_MAX);
        }
        idle.sort_unstable();
        let found = idle.into_iter().map(|(_, _, _, slot, key)| (slot, key));
        found.collect()
    }
}
