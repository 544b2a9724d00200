//! Matching: the first order in price and time that suits, at the price of the one that was there.

use crate::book::{Order, Terms};
use crate::event::{Event, OrderEnd};
use crate::ids::{LeaseId, OrderId, TradeId};
use crate::lease::{Lease, LeaseState};
use crate::order::{Ask, Bid, TimeInForce, Trade};
use crate::predicate::Lack;
use crate::units::{Credits, DeviceMicros, Millis, Price, Units};

use super::{Exchange, Timer};

/// A part of a bid that one ask will fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fill {
    pub ask: OrderId,
    pub quantity: Units,
    pub price: Price,
}

impl Fill {
    pub(super) fn escrow(&self, duration: Millis) -> Credits {
        self.price
            .escrow(self.quantity, duration)
            .expect("bounded by the bid's budget")
    }
}

impl Exchange {
    /// Why `ask` does not suit `bid`, class, price and quantity apart.
    pub(super) fn lack(
        &self,
        ask_order: &Order,
        ask: &Ask,
        order: &Order,
        bid: &Bid,
    ) -> Option<Lack> {
        if ask_order.slot == order.slot {
            return Some(Lack::OwnAsk);
        }
        if bid.wants.excluded.contains(&ask_order.account) {
            return Some(Lack::Excluded);
        }
        if let Some(lack) = bid.wants.lack(&ask.resources) {
            return Some(lack);
        }
        if self.ledger.get(ask_order.slot).reputation.score < bid.wants.reputation {
            return Some(Lack::Reputation);
        }
        if ask.notice < bid.wants.notice {
            return Some(Lack::Notice);
        }
        if bid.duration < ask.duration_min || bid.duration > ask.duration_max {
            return Some(Lack::Duration);
        }
        let buyer = self.ledger.get(order.slot);
        let admitted = ask.accepts.admits(buyer.key, buyer.reputation.score);
        (!admitted).then_some(Lack::RefusesBuyer)
    }

    fn suits(&self, ask_order: &Order, order: &Order) -> bool {
        match (&ask_order.terms, &order.terms) {
            (Terms::Ask(ask), Terms::Bid(bid)) => self.lack(ask_order, ask, order, bid).is_none(),
            _ => unreachable!("asks are matched with bids"),
        }
    }

    /// The asks that suit a bid, best first.
    pub(super) fn suitable_asks<'a>(
        &'a self,
        order: &'a Order,
        bid: &Bid,
    ) -> impl Iterator<Item = &'a Order> {
        let asks = self.books.asks(bid.class, order.price);
        asks.filter(move |ask| self.suits(ask, order))
    }

    /// What a bid would take from the book, best first, up to what it wants.
    pub(super) fn fills_for_bid(&self, order: &Order, bid: &Bid) -> Vec<Fill> {
        let mut left = order.remaining;
        let mut fills = Vec::new();
        for ask in self.suitable_asks(order, bid) {
            let quantity = left.min(ask.remaining);
            // The price of the order that was there first.
            let price = if ask.id < order.id {
                ask.price
            } else {
                order.price
            };
            fills.push(Fill {
                ask: ask.id,
                quantity,
                price,
            });
            left = left.minus(quantity);
            if left.0 == 0 {
                break;
            }
        }
        fills
    }

    /// The bids that suit an ask, best first.
    fn suitable_bids<'a>(&'a self, ask: &'a Order) -> impl Iterator<Item = &'a Order> {
        let bids = self.books.bids(ask.class(), ask.price);
        bids.filter(move |bid| self.suits(ask, bid))
    }

    /// How much of a fill-or-kill ask could trade now.
    pub(super) fn fillable(&self, order: &Order) -> Units {
        let mut left = order.remaining;
        for bid in self.suitable_bids(order) {
            if bid.bid().is_some_and(|terms| !terms.all_or_none) || bid.remaining <= left {
                left = left.minus(left.min(bid.remaining));
            }
            if left.0 == 0 {
                break;
            }
        }
        order.remaining.minus(left)
    }

    /// Matches an ask that has just entered the book with the bids resting there.
    pub(super) fn match_ask(&mut self, id: OrderId, events: &mut Vec<Event>) -> Vec<Trade> {
        let ask = &self.books.get(id).expect("the ask has just entered");
        let alone = ask.ask().is_some_and(|ask| ask.tif == TimeInForce::Fok);
        let bids: Vec<OrderId> = self.suitable_bids(ask).map(|bid| bid.id).collect();
        let mut trades = Vec::new();
        for bid in bids {
            let Some(ask) = self.books.get(id) else {
                break;
            };
            let order = self
                .books
                .get(bid)
                .expect("a bid leaves only by its own trades")
                .clone();
            let terms = order.bid().expect("it is a bid");
            let fills = if terms.all_or_none && order.remaining > ask.remaining {
                if alone {
                    Vec::new()
                } else {
                    self.whole_fills(&order, terms)
                }
            } else {
                let quantity = ask.remaining.min(order.remaining);
                vec![Fill {
                    ask: id,
                    quantity,
                    price: order.price,
                }]
            };
            trades.extend(self.carry_out_resting(&order, terms, &fills, events));
        }
        trades
    }

    fn whole_fills(&self, order: &Order, bid: &Bid) -> Vec<Fill> {
        let fills = self.fills_for_bid(order, bid);
        let found: u32 = fills.iter().map(|fill| fill.quantity.0).sum();
        if found == order.remaining.0 {
            fills
        } else {
            Vec::new()
        }
    }

    fn carry_out_resting(
        &mut self,
        order: &Order,
        bid: &Bid,
        fills: &[Fill],
        events: &mut Vec<Event>,
    ) -> Vec<Trade> {
        let quantity = Units(fills.iter().map(|fill| fill.quantity.0).sum());
        if quantity.0 == 0 {
            return Vec::new();
        }
        self.ledger.release(order.slot, order.hold(quantity));
        let trades = self.carry_out_fills(order, bid, fills, events);
        let spent = trades
            .iter()
            .fold(Credits::ZERO, |sum, trade| sum.plus(trade.escrow));
        self.books.spend(order.id, spent);
        if let Some(closed) = self.books.reduce(order.id, quantity) {
            self.on_filled(&closed, events);
        }
        trades
    }

    /// Trades each fill: escrow, lease, and the ask smaller or gone.
    pub(super) fn carry_out_fills(
        &mut self,
        order: &Order,
        bid: &Bid,
        fills: &[Fill],
        events: &mut Vec<Event>,
    ) -> Vec<Trade> {
        fills
            .iter()
            .map(|fill| self.trade(order, bid, fill, events))
            .collect()
    }

    fn trade(&mut self, order: &Order, bid: &Bid, fill: &Fill, events: &mut Vec<Event>) -> Trade {
        self.trades_made += 1;
        let lease = self.new_lease(order, bid, fill);
        let provider = self.ledger.known(lease.provider);
        self.ledger.hold(order.slot, lease.escrow);
        self.ledger
            .get_mut(provider)
            .lease_out(lease.device, lease.quantity);
        let trade = Trade {
            id: TradeId(lease.id.0),
            lease: lease.id,
            bid: lease.bid,
            ask: lease.ask,
            buyer: lease.buyer,
            provider: lease.provider,
            device: lease.device,
            job: lease.job,
            price: lease.price,
            quantity: lease.quantity,
            escrow: lease.escrow,
            start: lease.start,
            deadline: lease.deadline,
        };
        events.push(Event::Traded(trade));
        if let Some(closed) = self.books.reduce(fill.ask, fill.quantity) {
            self.on_filled(&closed, events);
        }
        self.timers
            .insert((lease.deadline, Timer::LeaseEnds(lease.id)));
        self.leases.insert(lease.id, lease);
        trade
    }

    fn new_lease(&self, order: &Order, bid: &Bid, fill: &Fill) -> Lease {
        let ask_order = self.books.get(fill.ask).expect("a fill names an open ask");
        let ask = ask_order.ask().expect("a fill names an ask");
        Lease {
            id: LeaseId(self.trades_made),
            buyer: order.account,
            provider: ask_order.account,
            device: ask.device,
            class: bid.class,
            model: ask.resources.model.clone(),
            ask: fill.ask,
            bid: order.id,
            job: bid.job,
            price: fill.price,
            quantity: fill.quantity,
            escrow: fill.escrow(bid.duration),
            start: self.now,
            deadline: self.now.after(bid.duration),
            term: bid.term,
            notice: ask.notice,
            accepted: DeviceMicros(0),
            silent_notes: 0,
            note: None,
            state: LeaseState::Active,
        }
    }

    fn on_filled(&mut self, order: &Order, events: &mut Vec<Event>) {
        self.forget(order);
        let (account, reason) = (order.account, OrderEnd::Filled);
        events.push(Event::OrderClosed {
            account,
            order: order.id,
            reason,
        });
    }
}
