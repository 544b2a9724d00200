//! Puts a resting order into its book and takes it out again. When an order enters, the exchange
//! puts its credits in escrow, counts it and sets its timer; when it leaves, the exchange undoes
//! all of this.

use crate::book::Node;
use crate::books::{Order, OrderKind};
use crate::event::{Event, OrderEnd};
use crate::ids::{JobId, LeaseId, OrderId};
use crate::order::{NEVER, Side};
use crate::units::{Count, Credits, Units};

use super::{Exchange, Timer};

impl Exchange {
    /// Returns the credits that `quantity` units of a resting order hold: zero for units of an ask.
    pub(super) fn hold_of(&self, order: &Order, quantity: Units) -> Credits {
        if order.side() == Side::Ask {
            return Credits::ZERO;
        }
        let duration = self.books.bid_terms.get(order.detail.terms).duration;
        let hold = order.price.escrow_for(quantity, duration);
        hold.expect("bounded by the budget")
    }

    pub(super) fn resting_event(&self, order: &Order) -> Event {
        Event::Rested {
            account: self.ledger.get(order.slot()).key,
            order: order.id,
            side: order.side(),
            price: order.price,
            quantity: order.remaining,
        }
    }

    /// Removes an order from its book and adds an event with the reason. Returns the credits that
    /// it held.
    pub(super) fn drop_order(
        &mut self,
        id: OrderId,
        reason: OrderEnd,
        events: &mut Vec<Event>,
    ) -> Credits {
        let (order, _, released) = self.take_out(id);
        assert_eq!(order.id, id, "the order asked for is the one that goes");
        self.books.release_terms(&order);
        let account = self.ledger.get(order.slot()).key;
        events.push(Event::OrderClosed {
            account,
            order: id,
            reason,
        });
        released
    }

    /// Puts an order into its book, last at its price. The order must not have expired.
    pub(super) fn put_in(&mut self, order: &Order, job: JobId) {
        self.register_order(order);
        self.books.insert(order, job);
    }

    /// Holds the credits of an order in the book, counts it and sets its timer.
    pub(super) fn register_order(&mut self, order: &Order) {
        let slot = order.slot();
        assert!(
            order.detail.expires > self.now,
            "what has expired does not rest"
        );
        match order.detail.kind {
            OrderKind::Bid { .. } => self
                .ledger
                .hold_in_escrow(slot, self.hold_of(order, order.remaining)),
            OrderKind::Ask {
                device,
                resale: LeaseId(0),
                deposit,
                ..
            } => {
                let capacity = self.books.ask_terms.get(order.detail.terms).capacity;
                if deposit.0 > 0 {
                    self.ledger.hold_in_escrow(slot, deposit);
                }
                let account = self.ledger.get_mut(slot);
                account.add_offer(device, capacity, order.remaining);
                if deposit.0 == 0 {
                    account.free_asks.count_up();
                }
            }
            OrderKind::Ask { .. } => {}
        }
        if let Some(key) = self.spot_ask_key(order) {
            assert!(self.spot_asks.insert(key), "an ask is listed once");
        }
        self.ledger.get_mut(slot).open_orders.count_up();
        self.index_if_light(order);
        if order.detail.expires != NEVER {
            let expiry = (order.detail.expires, Timer::OrderExpires(order.id));
            assert!(self.timers.insert(expiry), "an order expires once");
        }
    }

    /// Reverses [`Self::put_in`] completely. Returns the order's position in its level and the
    /// credits that it held.
    pub(super) fn take_out(&mut self, id: OrderId) -> (Order, Node, Credits) {
        let (order, node) = self
            .books
            .remove(id)
            .expect("only open orders are taken out");
        assert!(order.remaining.0 > 0, "an open order has units left");
        let held = self.hold_of(&order, order.remaining).plus(order.deposit());
        match order.detail.kind {
            OrderKind::Bid { .. } => self.ledger.release_escrow(order.slot(), held),
            OrderKind::Ask {
                device,
                resale: LeaseId(0),
                ..
            } => {
                let account = self.ledger.get_mut(order.slot());
                account.withdraw_offer(device, order.remaining);
            }
            OrderKind::Ask { .. } => {}
        }
        self.unregister_order(&order);
        assert_eq!(
            node.quantity, order.remaining,
            "the book and the order agree"
        );
        (order, node, held)
    }

    /// Removes the counts and timers of an order, and releases an ask's deposit. The order must
    /// have left the book before.
    pub(super) fn unregister_order(&mut self, order: &Order) {
        if order.deposit().0 > 0 {
            self.ledger.release_escrow(order.slot(), order.deposit());
        }
        let account = self.ledger.get_mut(order.slot());
        assert!(account.open_orders > 0, "an order that leaves was counted");
        account.open_orders.count_down();
        let opened = account.opened;
        if order.side() == Side::Ask && order.resold_lease().is_none() && order.deposit().0 == 0 {
            assert!(account.free_asks > 0, "a free ask was counted");
            account.free_asks.count_down();
        }
        if let Some(key) = self.spot_ask_key(order) {
            assert!(self.spot_asks.remove(&key), "an ask in the book is listed");
        }
        if self.light.remove(&(opened, order.id)) {
            self.books.count_light(order.detail.book, -1);
        }
        if order.detail.expires != NEVER {
            self.timers
                .remove(&(order.detail.expires, Timer::OrderExpires(order.id)));
        }
        if let Some(resale) = order.resold_lease()
            && let Some(lease) = self.leases.get_mut(resale)
        {
            assert_eq!(lease.resale_ask, Some(order.id), "the lease knew its ask");
            lease.resale_ask = None;
        }
    }
}
