//! Matches asks with bids and carries out the trades. An order trades with the first order of the
//! other side that suits it, by price and then by age, at the price of the older of the two.

use std::ops::ControlFlow;

use crate::book::VisitBudget;
use crate::books::{BookQuery, Order, OrderKind};
use crate::event::{Event, OrderEnd};
use crate::ids::{LeaseId, OrderId, Slot};
use crate::lease::LeaseState;
use crate::order::{Side, Term, TimeInForce, Trade};
use crate::predicate::Lack;
use crate::terms::AskTerms;
use crate::units::{Credits, Millis, Price, Units};

use super::bid::{BidView, LiveBid};
use super::leases::LeaseOpening;
use super::steps::StepCount;
use super::{Context, Exchange};

/// The part of a bid that one ask will fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fill {
    pub ask: OrderId,
    pub quantity: Units,
    pub price: Price,
}

impl Fill {
    pub(super) fn escrow(&self, duration: Millis) -> Credits {
        self.price
            .escrow_for(self.quantity, duration)
            .expect("bounded by the bid's budget")
    }
}

/// Whether two orders suit each other, and why not.
impl Exchange {
    /// Returns why `ask` does not suit `bid`, apart from class and price.
    pub(super) fn find_lack(&self, ask: &Order, bid: BidView<'_>) -> Option<Lack> {
        let terms = self.books.ask_terms.get(ask.detail.terms);
        let (provider, resale) = ask.provider();
        let buyer = bid.order.slot();
        if ask.slot() == buyer || provider == buyer {
            return Some(Lack::OwnAsk);
        }
        let notice = self.notice_of(ask, resale, bid);
        let lack = self.lack_of_terms(terms, provider, notice, bid);
        lack.or_else(|| self.lack_of_resale(resale?, ask, bid))
    }

    /// Returns why a device of `provider` on these terms, with this notice, does not suit `bid`.
    pub(super) fn lack_of_terms(
        &self,
        terms: &AskTerms,
        provider: Slot,
        notice: Millis,
        bid: BidView<'_>,
    ) -> Option<Lack> {
        let wants = &bid.terms.wants;
        let provider = self.ledger.get(provider);
        if wants.excluded.contains(&provider.key) {
            return Some(Lack::Excluded);
        }
        if let Some(lack) = wants.find_lack(&terms.resources) {
            return Some(lack);
        }
        if provider.reputation.score < wants.reputation {
            return Some(Lack::Reputation);
        }
        if provider.stake < wants.stake {
            return Some(Lack::Stake);
        }
        if notice < wants.notice {
            return Some(Lack::Notice);
        }
        let duration = bid.terms.duration;
        if duration < terms.duration_min || duration > terms.duration_max {
            return Some(Lack::Duration);
        }
        let buyer = self.ledger.get(bid.order.slot());
        let admitted = terms.accepts.can_accept(buyer.key, buyer.reputation.score);
        (!admitted).then_some(Lack::RefusesBuyer)
    }

    /// Returns why a resale does not suit a bid: a resale is the rest of one lease, all units
    /// together and no longer than it.
    fn lack_of_resale(&self, lease: LeaseId, ask: &Order, bid: BidView<'_>) -> Option<Lack> {
        let lease = &self.leases[&lease];
        debug_assert_eq!(lease.resale_ask, Some(ask.id), "the lease knows its ask");
        if self.now.saturating_add(bid.terms.duration) > lease.deadline {
            return Some(Lack::Duration);
        }
        if lease.term == Term::Spot && bid.terms.term == Term::Firm {
            return Some(Lack::Term);
        }
        (bid.order.remaining < ask.remaining).then_some(Lack::Quantity)
    }
}

/// Bids that search for asks.
impl Exchange {
    /// Returns what a bid would take from the book, best first, and the units that no ask fills.
    pub(super) fn fills_for_bid(
        &self,
        bid: &LiveBid,
        visits: &mut VisitBudget,
    ) -> (Vec<Fill>, Units) {
        let order = &bid.order;
        let mut left = order.remaining;
        let mut fills = Vec::new();
        let take = |ask: Order, asked: Price| {
            let whole = ask.provider().1.is_some();
            if (whole && ask.remaining > left) || self.find_lack(&ask, bid.as_view()).is_some() {
                return ControlFlow::Continue(());
            }
            let quantity = left.min(ask.remaining);
            fills.push(Fill {
                ask: ask.id,
                quantity,
                price: trade_price(&ask, asked, order),
            });
            left = left.minus(quantity);
            if left.0 == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        self.search_asks(bid.as_view(), visits, take);
        debug_assert!(left <= order.remaining, "no more than the bid wants");
        (fills, left)
    }

    /// Trades each fill: moves credits to escrow, opens the lease, and reduces or removes the ask.
    pub(super) fn carry_out_fills(
        &mut self,
        bid: &LiveBid,
        fills: &[Fill],
        trades: &mut Vec<Trade>,
        events: &mut Vec<Event>,
    ) {
        let before = trades.len();
        for fill in fills {
            assert!(
                fill.price <= bid.order.price,
                "a bid never pays above its limit"
            );
            trades.push(self.execute_trade(bid, fill, events));
        }
        let made = trades.len().saturating_sub(before);
        assert_eq!(made, fills.len(), "one trade a fill");
    }

    fn execute_trade(&mut self, bid: &LiveBid, fill: &Fill, events: &mut Vec<Event>) -> Trade {
        let ask = self.books.get(fill.ask).expect("a fill names an open ask");
        assert!(fill.quantity.0 > 0, "a trade is of something");
        assert!(
            self.ask_price_for(&ask, bid.as_view()) <= fill.price,
            "an ask never gets less than it said"
        );
        let OrderKind::Ask {
            device,
            provider,
            resale,
            ..
        } = ask.detail.kind
        else {
            unreachable!("a fill names an ask");
        };
        let notice = self.notice_of(&ask, ask.resold_lease(), bid.as_view());
        let opening = LeaseOpening {
            bid,
            notice,
            ask: ask.id,
            device,
            provider,
            terms: ask.detail.terms,
            price: fill.price,
            quantity: fill.quantity,
            escrow: fill.escrow(bid.terms.duration),
            start: self.now,
            state: LeaseState::Active,
        };
        let trade = self.open_new_lease(&opening, events);
        if resale.0 == 0 {
            self.ledger
                .get_mut(provider)
                .lease_out(device, fill.quantity);
        }
        if let Some(closed) = self.books.reduce_order(fill.ask, fill.quantity) {
            self.on_filled(&closed, events);
        }
        if resale.0 != 0 {
            self.hand_over(resale, trade.lease, events);
        }
        trade
    }

    pub(super) fn on_filled(&mut self, order: &Order, events: &mut Vec<Event>) {
        assert_eq!(order.remaining, Units(0), "nothing of it is left");
        debug_assert!(self.books.get(order.id).is_none(), "it has left the book");
        self.unregister_order(order);
        self.books.release_terms(order);
        let account = self.ledger.get(order.slot()).key;
        let reason = OrderEnd::Filled;
        events.push(Event::OrderClosed {
            account,
            order: order.id,
            reason,
        });
    }
}

/// Asks that search for bids.
impl Exchange {
    /// Returns how many units of a fill-or-kill ask could trade now.
    pub(super) fn fillable_units(&self, ask: &Order, steps: &mut StepCount) -> Units {
        debug_assert_eq!(ask.side(), Side::Ask, "an ask is filled by bids");
        let mut left = ask.remaining;
        let query = self.bids_for_any_price(ask);
        let count = |order: Order| {
            let bid = self.bid_view(&order);
            let fits = !bid.terms.all_or_none || bid.order.remaining <= left;
            if fits && self.trades_with(ask, bid) {
                left = left.minus(left.min(bid.order.remaining));
            }
            if left.0 == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let mut visits = VisitBudget::new();
        self.books.search_orders(&query, &mut visits, count);
        steps.spend_visits(visits);
        ask.remaining.minus(left)
    }

    /// Matches an ask that has just entered the book with the resting bids.
    pub(super) fn match_ask(
        &mut self,
        id: OrderId,
        tif: TimeInForce,
        context: &mut Context<'_>,
    ) -> Vec<Trade> {
        let first = self.books.get(id).expect("the ask has just entered");
        assert_eq!(first.side(), Side::Ask, "asks look for bids");
        let query = self.bids_for_any_price(&first);
        let (mut visits, mut completing) = (VisitBudget::new(), VisitBudget::new());
        let mut trades = Vec::new();
        let mut last: Option<Order> = None;
        while let Some(ask) = self.books.get(id) {
            let suits = |bid: &Order| self.trades_with(&ask, self.bid_view(bid));
            let found = self.books.next(&query, last.as_ref(), &mut visits, suits);
            let Some(order) = found else { break };
            let bid = self.live_bid(order, self.books.bid_job(order.id));
            let whole = !bid.terms.all_or_none || order.remaining <= ask.remaining;
            if whole {
                let fill = Fill {
                    ask: ask.id,
                    quantity: ask.remaining.min(order.remaining),
                    price: order.price,
                };
                self.carry_out_resting(&bid, &[fill], &mut trades, context.events);
            } else {
                let fills = self.fills_of_all(&bid, tif, &mut completing);
                self.carry_out_resting(&bid, &fills, &mut trades, context.events);
            }
            last = Some(order);
        }
        context.steps.spend_visits(visits);
        context.steps.spend_visits(completing);
        debug_assert!(
            trades
                .iter()
                .all(|trade| trade.ask == id || tif != TimeInForce::Fok)
        );
        trades
    }

    /// Returns the query for bids that pay at least the ask's lowest price for any bid.
    fn bids_for_any_price(&self, ask: &Order) -> BookQuery {
        let terms = self.books.ask_terms.get(ask.detail.terms);
        BookQuery {
            book: ask.detail.book,
            side: Side::Bid,
            demand: terms.demand(),
            limit: self.least_asked(ask),
        }
    }

    /// Returns the fills of a resting all-or-none bid from all asks, for a new ask that alone is
    /// too small for it. It does not search if all asks together have too few units. One ask has a
    /// fixed budget of steps for all such bids, separate from its own search, so that bids that
    /// never fill do not keep it from bids that would.
    fn fills_of_all(&self, bid: &LiveBid, tif: TimeInForce, visits: &mut VisitBudget) -> Vec<Fill> {
        debug_assert!(bid.terms.all_or_none, "another takes what the ask has");
        let offered = self.books.book(bid.order.detail.book).book.side(Side::Ask);
        let is_short = offered.total_units() < u64::from(bid.order.remaining.0);
        if is_short || tif == TimeInForce::Fok || visits.steps_left() == 0 {
            return Vec::new();
        }
        let (fills, left) = self.fills_for_bid(bid, visits);
        if left.0 == 0 { fills } else { Vec::new() }
    }

    /// Trades a resting bid: the credits that it held become escrow, and the surplus returns to the
    /// buyer.
    fn carry_out_resting(
        &mut self,
        bid: &LiveBid,
        fills: &[Fill],
        trades: &mut Vec<Trade>,
        events: &mut Vec<Event>,
    ) {
        let quantities = fills.iter().map(|fill| fill.quantity);
        let quantity = quantities.fold(Units(0), Units::plus);
        if quantity.0 == 0 {
            return;
        }
        let order = &bid.order;
        assert!(
            quantity <= order.remaining,
            "a bid takes no more than it wants"
        );
        let first = trades.len();
        self.ledger
            .release_escrow(order.slot(), self.hold_of(order, quantity));
        self.carry_out_fills(bid, fills, trades, events);
        let spent = trades[first..]
            .iter()
            .fold(Credits::ZERO, |sum, trade| sum.plus(trade.escrow));
        assert!(spent.0 > 0, "nothing is leased for nothing");
        self.books.spend_budget(order.id, spent);
        match self.books.reduce_order(order.id, quantity) {
            Some(closed) => self.on_filled(&closed, events),
            None => self.weigh_again(order.id),
        }
    }
}

/// Returns the price of the older order.
fn trade_price(ask: &Order, asked: Price, bid: &Order) -> Price {
    debug_assert!(asked <= bid.price, "they cross");
    debug_assert_ne!(ask.id, bid.id, "they are two");
    if ask.id < bid.id { asked } else { bid.price }
}
