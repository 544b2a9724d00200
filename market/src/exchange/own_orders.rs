//! Lists the orders of one account that rest in the books. A validator uses it to answer the
//! account's owner.

use serde::{Deserialize, Serialize};

use crate::books::{Order, OrderKind};
use crate::class::Class;
use crate::ids::{AccountKey, LeaseId, OrderId};
use crate::order::Side;
use crate::units::{Credits, Millis, Price, Units};

use super::Exchange;

/// An order that rests in a book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenOrder {
    /// The order's id.
    pub id: OrderId,
    /// Whether the order is a bid or an ask.
    pub side: Side,
    /// The class of its book.
    pub class: Class,
    /// The price per device-second.
    pub price: Price,
    /// The units that remain.
    pub quantity: Units,
    /// Credits that the order holds until it ends: its price for a bid, its deposit for an ask that
    /// has one.
    pub held: Credits,
    /// The log time at which the order leaves the book; the greatest time means never.
    pub expires: Millis,
    /// The lease whose rest the order resells.
    pub resale: Option<LeaseId>,
}

impl Exchange {
    /// Returns the account's resting orders, the oldest first. It scans the orders of all accounts
    /// until it has found as many as the account has.
    pub fn orders_of(&self, account: AccountKey) -> Vec<OpenOrder> {
        let slot = self.ledger.find_slot(account);
        let count = slot.map_or(0, |slot| self.ledger.get(slot).open_orders);
        let own = self
            .books
            .all_orders()
            .filter(|order| Some(order.slot()) == slot);
        let own = own.take(count as usize);
        let mut own: Vec<OpenOrder> = own.map(|order| self.open_order(&order)).collect();
        own.sort_by_key(|order| order.id);
        own
    }

    fn open_order(&self, order: &Order) -> OpenOrder {
        let resale = match order.detail.kind {
            OrderKind::Ask { resale, .. } => Some(resale).filter(|lease| lease.0 > 0),
            OrderKind::Bid { .. } => None,
        };
        OpenOrder {
            id: order.id,
            side: order.side(),
            class: self.books.book(order.detail.book).class,
            price: order.price,
            quantity: order.remaining,
            held: self.hold_of(order, order.remaining).plus(order.deposit()),
            expires: order.detail.expires,
            resale,
        }
    }
}
