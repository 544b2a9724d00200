//! The orders: one book per class, asks by rising and bids by falling price, then by arrival.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::ids::{AccountKey, OrderId};
use crate::ledger::Slot;
use crate::order::{Ask, Bid, Side, TimeInForce};
use crate::units::{Credits, Millis, Price, Units};

/// An order in a book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub id: OrderId,
    pub account: AccountKey,
    pub slot: Slot,
    pub price: Price,
    pub remaining: Units,
    pub terms: Terms,
}

/// What the order says beyond its price and quantity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Terms {
    Ask(Box<Ask>),
    Bid(Box<Bid>),
}

impl Order {
    pub(crate) fn class(&self) -> Class {
        match &self.terms {
            Terms::Ask(ask) => ask.resources.class(),
            Terms::Bid(bid) => bid.class,
        }
    }

    pub(crate) fn side(&self) -> Side {
        match self.terms {
            Terms::Ask(_) => Side::Ask,
            Terms::Bid(_) => Side::Bid,
        }
    }

    pub(crate) fn expires(&self) -> Option<Millis> {
        let tif = match &self.terms {
            Terms::Ask(ask) => ask.tif,
            Terms::Bid(bid) => bid.tif,
        };
        if let TimeInForce::Gtd(at) = tif {
            Some(at)
        } else {
            None
        }
    }

    pub(crate) fn ask(&self) -> Option<&Ask> {
        if let Terms::Ask(ask) = &self.terms {
            Some(ask)
        } else {
            None
        }
    }

    pub(crate) fn bid(&self) -> Option<&Bid> {
        if let Terms::Bid(bid) = &self.terms {
            Some(bid)
        } else {
            None
        }
    }

    /// What is held for `quantity` units of it while it rests: nothing for an ask.
    pub(crate) fn hold(&self, quantity: Units) -> Credits {
        let cost = |bid: &Bid| self.price.escrow(quantity, bid.duration);
        self.bid().map_or(Credits::ZERO, |bid| {
            cost(bid).expect("bounded by the budget")
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Book {
    asks: BTreeSet<(Price, OrderId)>,
    bids: BTreeSet<(Reverse<Price>, OrderId)>,
}

/// Every book and every order in them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Books {
    orders: BTreeMap<OrderId, Order>,
    books: BTreeMap<Class, Book>,
}

impl Books {
    pub(crate) fn get(&self, id: OrderId) -> Option<&Order> {
        self.orders.get(&id)
    }

    pub(crate) fn insert(&mut self, order: Order) {
        let book = self.books.entry(order.class()).or_default();
        let fresh = match order.side() {
            Side::Ask => book.asks.insert((order.price, order.id)),
            Side::Bid => book.bids.insert((Reverse(order.price), order.id)),
        };
        let earlier = self.orders.insert(order.id, order);
        assert!(fresh && earlier.is_none(), "an order is in one book once");
    }

    pub(crate) fn remove(&mut self, id: OrderId) -> Option<Order> {
        let order = self.orders.remove(&id)?;
        let class = order.class();
        let book = self
            .books
            .get_mut(&class)
            .expect("an order's book is there");
        let found = match order.side() {
            Side::Ask => book.asks.remove(&(order.price, id)),
            Side::Bid => book.bids.remove(&(Reverse(order.price), id)),
        };
        assert!(found, "an order is in its book");
        if book.asks.is_empty() && book.bids.is_empty() {
            self.books.remove(&class);
        }
        Some(order)
    }

    /// Takes what a trade cost off a bid's budget.
    pub(crate) fn spend(&mut self, id: OrderId, spent: Credits) {
        let order = self.orders.get_mut(&id).expect("only open orders trade");
        if let Terms::Bid(bid) = &mut order.terms {
            bid.budget = bid.budget.minus(spent);
        }
    }

    /// Takes `quantity` off an order, and the order out of its book if nothing is left of it.
    pub(crate) fn reduce(&mut self, id: OrderId, quantity: Units) -> Option<Order> {
        let order = self
            .orders
            .get_mut(&id)
            .expect("only open orders are reduced");
        order.remaining = order.remaining.minus(quantity);
        if order.remaining.0 == 0 {
            self.remove(id)
        } else {
            None
        }
    }

    /// The asks of a class up to `limit`, best first.
    pub(crate) fn asks(&self, class: Class, limit: Price) -> impl Iterator<Item = &Order> {
        let book = self.books.get(&class);
        let upto = ..=(limit, OrderId(u64::MAX));
        let ids = book.into_iter().flat_map(move |book| book.asks.range(upto));
        ids.map(|(_, id)| &self.orders[id])
    }

    /// The bids of a class down to `limit`, best first.
    pub(crate) fn bids(&self, class: Class, limit: Price) -> impl Iterator<Item = &Order> {
        let book = self.books.get(&class);
        let upto = ..=(Reverse(limit), OrderId(u64::MAX));
        let ids = book.into_iter().flat_map(move |book| book.bids.range(upto));
        ids.map(|(_, id)| &self.orders[id])
    }

    /// Every ask, by class, best first.
    pub(crate) fn all_asks(&self) -> impl Iterator<Item = (&Class, &Order)> {
        self.books
            .iter()
            .flat_map(each_ask)
            .map(|(class, id)| (class, &self.orders[id]))
    }
}

fn each_ask<'a>(
    (class, book): (&'a Class, &'a Book),
) -> impl Iterator<Item = (&'a Class, &'a OrderId)> {
    book.asks.iter().map(move |(_, id)| (class, id))
}
