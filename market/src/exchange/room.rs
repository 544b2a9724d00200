//! Room in the market: what an order must hold to have a place, and who gives way in a full one.
//!
//! An order holds a deposit's worth, or it is light: an account's free ask, or a bid for less.
//! Where the market is full an order that holds a deposit takes the place of a light one, and of
//! these that of the youngest account: whoever brings many keys brings them late, and loses them
//! before anyone who was there.
//!
//! An account that has nothing gives way to a new one once no batch that it signed can be brought
//! again: batches expire within the rule's time, and the account remembers the last of its own.

use std::collections::{BTreeSet, VecDeque};

use crate::books::{Order, OrderKind};
use crate::event::{Event, OrderEnd};
use crate::ids::{AccountKey, OrderId, Slot};
use crate::order::{Side, TimeInForce};
use crate::refusal::Refusal;
use crate::text::Name;
use crate::units::{Credits, Millis};

use super::{Exchange, LightKey};

/// Accounts that are found at once where room is needed: looking at a million takes some
/// milliseconds, and so is shared by many that come.
const IDLE_FOUND_MAX: usize = 1_024;

/// They are looked for this often at most.
const IDLE_SOUGHT: Millis = Millis(1_000);

/// Orders.
impl Exchange {
    /// What an ask of this account holds while it rests, where there is room and it has it.
    pub(super) fn check_deposit(&self, slot: Slot, tif: TimeInForce) -> Result<Credits, Refusal> {
        let account = self.ledger.get(slot);
        if !tif.rests() {
            return Ok(Credits::ZERO);
        }
        let deposit = match account.free_asks {
            0 => Credits::ZERO,
            _ => self.rules.ask_deposit,
        };
        let available = account.available;
        if available < deposit {
            return Err(Refusal::DepositShort { deposit, available });
        }
        self.check_room(deposit.0 > 0)?;
        Ok(deposit)
    }

    /// Whether one more order may rest; one that holds a deposit may where a light one gives way.
    pub(super) fn check_room(&self, holds_deposit: bool) -> Result<(), Refusal> {
        let limit = self.rules.orders_max;
        let is_full = self.books.orders() >= u64::from(limit);
        match is_full && (!holds_deposit || self.light.is_empty()) {
            true => Err(Refusal::OrdersFull {
                limit,
                deposit: self.rules.ask_deposit,
            }),
            false => Ok(()),
        }
    }

    /// After an order came to rest: a light one gives way where there is one too many.
    pub(super) fn make_room(&mut self, events: &mut Vec<Event>) {
        if self.books.orders() <= u64::from(self.rules.orders_max) {
            return;
        }
        if let Some((_, order)) = self.light.last().copied() {
            self.drop_order(order, OrderEnd::Evicted, events);
            debug_assert!(self.books.get(order).is_none(), "it has given way");
        }
    }

    /// Whether an order holds less than a deposit. What is resold is held for as a lease.
    pub(super) fn is_light(&self, order: &Order) -> bool {
        match order.detail.kind {
            OrderKind::Ask { deposit, .. } => deposit.0 == 0 && order.resale().is_none(),
            OrderKind::Bid { .. } => self.hold_of(order, order.remaining) < self.rules.ask_deposit,
        }
    }

    /// Every order that holds little, looked for anew.
    pub(super) fn light_orders(&self) -> BTreeSet<LightKey> {
        let light = self.books.all().filter(|order| self.is_light(order));
        light.map(|order| self.light_key(&order)).collect()
    }

    fn light_key(&self, order: &Order) -> LightKey {
        (self.ledger.get(order.slot()).opened, order.id)
    }

    /// Lists an order that holds little.
    pub(super) fn weigh(&mut self, order: &Order) {
        if self.is_light(order) {
            self.light.insert(self.light_key(order));
        }
    }

    /// An order has become smaller, and so may hold little now.
    pub(super) fn weigh_again(&mut self, id: OrderId) {
        let order = self.books.get(id).expect("some of the order is left");
        if order.side() == Side::Bid {
            self.weigh(&order);
        }
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
            return Ok(self.ledger.open(account, name.clone()));
        }
        let idle = self.next_idle().ok_or(Refusal::AccountsMany { limit })?;
        let count = self.ledger.accounts().len();
        let old = self.ledger.replace(idle, account, name.clone());
        assert_eq!(self.ledger.accounts().len(), count, "one for one");
        events.push(Event::Forgotten { account: old });
        Ok(idle)
    }

    /// The account that gives way next, if one has nothing.
    fn next_idle(&mut self) -> Option<Slot> {
        if self.idle.is_empty() && self.now >= self.idle_sought_at {
            self.idle_sought_at = self.now.after(IDLE_SOUGHT);
            self.idle = self.idle_accounts();
        }
        while let Some((slot, key)) = self.idle.pop_front() {
            let account = self.ledger.get(slot);
            if account.key == key && account.is_idle(self.now) {
                return Some(slot);
            }
        }
        None
    }

    /// Accounts that have nothing, the longest unused first, so many at most.
    fn idle_accounts(&self) -> VecDeque<(Slot, AccountKey)> {
        let accounts = (0..).map(Slot).zip(self.ledger.accounts());
        let idle = accounts.filter(|(_, account)| account.is_idle(self.now));
        let mut idle: Vec<_> = idle
            .map(|(slot, account)| (account.used, account.opened, slot, account.key))
            .collect();
        idle.sort_unstable();
        idle.truncate(IDLE_FOUND_MAX);
        idle.into_iter()
            .map(|(_, _, slot, key)| (slot, key))
            .collect()
    }
}
