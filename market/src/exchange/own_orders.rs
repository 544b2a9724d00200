//! An account's own orders, as they rest in the books.

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
    /// Its id.
    pub id: OrderId,
    /// Bid or ask.
    pub side: Side,
    /// In which class.
    pub class: Class,
    /// Price per device-second.
    pub price: Price,
    /// How many units are left.
    pub quantity: Units,
    /// What is held for it until it ends: for a bid its price, for an ask its deposit, if it has
    /// one.
    pub held: Credits,
    /// When it leaves the book; the greatest time for never.
    pub expires: Millis,
    /// The lease of which it resells the rest.
    pub resale: Option<LeaseId>,
}

impl Exchange {
    /// The orders of an account that rest in the books, the oldest first. It looks through those of
    /// all until it has found as many as there are.
    pub fn orders_of(&self, account: AccountKey) -> Vec<OpenOrder> {
        let slot = self.ledger.slot(account);
        let count = slot.map_or(0, |slot| self.ledger.get(slot).open_orders);
        let own = self.books.all().filter(|order| Some(order.slot()) == slot);
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
