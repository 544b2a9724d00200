//! Placing, cancelling and amending orders.

use crate::book::Node;
use crate::books::{BookId, Detail, Kind, Order};
use crate::command::Accepted;
use crate::event::{Event, OrderEnd};
use crate::ids::{JobId, LeaseId, OrderId};
use crate::ledger::Slot;
use crate::order::{Ask, Bid, Limit, Side, TimeInForce};
use crate::refusal::Refusal;
use crate::terms::{AskTerms, BidTerms};
use crate::units::{Credits, Millis, Price, Units};

use super::checks::check_quantity;
use super::displace::Displaced;
use super::matching::{Fill, LiveBid};
use super::{Exchange, Scene, Timer};

/// What a bid will do to the market, before it does.
struct Plan {
    fills: Vec<Fill>,
    displaced: Vec<Displaced>,
    rest: Units,
}

impl Plan {
    fn quantity(&self) -> Units {
        let filled = self.fills.iter().map(|fill| fill.quantity.0);
        let displaced = self.displaced.iter().map(|one| one.quantity.0);
        Units(filled.chain(displaced).sum::<u32>() + self.rest.0)
    }
}

/// Placing.
impl Exchange {
    pub(super) fn on_ask(&mut self, scene: &mut Scene<'_>, ask: &Ask) -> Result<Accepted, Refusal> {
        let rules = self.class_rules(ask.resources.class());
        let price = self.check_ask(scene.slot, ask, &rules)?;
        let book = self.open_book(rules.class)?;
        let slot = scene.slot;
        let order = Order {
            id: OrderId(self.orders_made + 1),
            price,
            remaining: ask.quantity,
            detail: Detail {
                slot,
                book,
                terms: self.books.ask_terms.take(slot, ask),
                expires: expires(ask.tif),
                kind: Kind::Ask {
                    device: ask.device,
                    provider: slot,
                    resale: LeaseId(0),
                },
            },
        };
        if ask.tif == TimeInForce::Fok {
            let (wanted, found) = (ask.quantity, self.fillable(&order));
            if found < wanted {
                self.books.release(&order);
                return Err(Refusal::Unfilled { wanted, found });
            }
        }
        Ok(self.enter_ask(order, ask.tif, rules.auction, scene.events))
    }

    /// An ask that nothing speaks against: into the book, matched, and out again if it can't rest.
    pub(super) fn enter_ask(
        &mut self,
        order: Order,
        tif: TimeInForce,
        auction: Option<Millis>,
        events: &mut Vec<Event>,
    ) -> Accepted {
        let id = order.id;
        self.orders_made += 1;
        assert_eq!(id.0, self.orders_made, "orders are numbered as they come");
        self.put_in(&order, JobId::default());
        let trades = match auction {
            Some(interval) => {
                self.call_auction(order.detail.book, interval);
                Vec::new()
            }
            None => self.match_ask(id, tif, events),
        };
        let resting = self.settle_down(id, tif, events);
        Accepted::Placed {
            order: id,
            trades,
            resting,
        }
    }

    pub(super) fn on_bid(&mut self, scene: &mut Scene<'_>, bid: &Bid) -> Result<Accepted, Refusal> {
        self.check_open_orders(scene.slot)?;
        let rules = self.class_rules(bid.class);
        let price = self.check_bid(bid, &rules)?;
        let book = self.open_book(bid.class)?;
        let order = self.new_bid(self.orders_made + 1, scene.slot, book, price, bid);
        let live = self.live_bid(order, bid.job);
        let plan = match self.plan_bid(&live, bid, rules.auction) {
            Ok(plan) => plan,
            Err(refusal) => {
                self.books.release(&order);
                return Err(refusal);
            }
        };
        self.orders_made += 1;
        assert_eq!(
            order.id.0, self.orders_made,
            "orders are numbered as they come"
        );
        let mut trades = Vec::with_capacity(plan.fills.len() + plan.displaced.len());
        self.carry_out_fills(&live, &plan.fills, &mut trades, scene.events);
        self.displace(&live, &plan.displaced, &mut trades, scene.events);
        let spent = trades
            .iter()
            .fold(Credits::ZERO, |sum, trade| sum.plus(trade.escrow));
        assert!(spent <= bid.budget, "a budget is a hard stop");
        self.rest_bid(&live, plan.rest, spent, bid.tif, scene.events);
        if let Some(interval) = rules.auction {
            self.call_auction(book, interval);
        }
        let resting = if rests(bid.tif) { plan.rest } else { Units(0) };
        Ok(Accepted::Placed {
            order: order.id,
            trades,
            resting,
        })
    }

    pub(super) fn new_bid(
        &mut self,
        id: u64,
        slot: Slot,
        book: BookId,
        price: Price,
        bid: &Bid,
    ) -> Order {
        Order {
            id: OrderId(id),
            price,
            remaining: bid.quantity,
            detail: Detail {
                slot,
                book,
                terms: self.books.bid_terms.take(slot, bid),
                expires: expires(bid.tif),
                kind: Kind::Bid { budget: bid.budget },
            },
        }
    }

    /// What a bid takes now, whole where it must be, and whether its buyer can pay for it.
    fn plan_bid(
        &self,
        live: &LiveBid,
        bid: &Bid,
        auction: Option<Millis>,
    ) -> Result<Plan, Refusal> {
        let (mut fills, mut rest) = match auction {
            Some(_) => (Vec::new(), bid.quantity),
            None => self.fills_for_bid(live),
        };
        let mut displaced = Vec::new();
        if rest.0 > 0 && auction.is_none() {
            (displaced, rest) = self.plan_displacement(live, rest);
        }
        if rest.0 > 0 && bid.tif == TimeInForce::Fok {
            let (wanted, found) = (bid.quantity, bid.quantity.minus(rest));
            return Err(Refusal::Unfilled { wanted, found });
        }
        if rest.0 > 0 && bid.all_or_none {
            (fills, displaced, rest) = (Vec::new(), Vec::new(), bid.quantity);
        }
        let plan = Plan {
            fills,
            displaced,
            rest,
        };
        debug_assert_eq!(plan.quantity(), bid.quantity, "each unit trades or is left");
        self.check_funds(live, bid, &plan)?;
        Ok(plan)
    }

    /// Whether the buyer can pay for what trades and, where the bid rests, for the rest of it.
    fn check_funds(&self, live: &LiveBid, bid: &Bid, plan: &Plan) -> Result<(), Refusal> {
        let escrow = |sum: Credits, fill: &Fill| sum.plus(fill.escrow(bid.duration));
        let mut needed = plan.fills.iter().fold(Credits::ZERO, escrow);
        let escrow = |sum: Credits, one: &Displaced| sum.plus(one.escrow);
        needed = plan.displaced.iter().fold(needed, escrow);
        if rests(bid.tif) {
            needed = needed.plus(self.hold_of(&live.order, plan.rest));
        }
        assert!(
            needed <= bid.budget,
            "the effective limit keeps a bid within its budget"
        );
        self.ledger.need(live.order.slot(), needed)
    }

    fn rest_bid(
        &mut self,
        bid: &LiveBid,
        rest: Units,
        spent: Credits,
        tif: TimeInForce,
        events: &mut Vec<Event>,
    ) {
        let LiveBid { order, job, .. } = *bid;
        let account = self.ledger.get(order.slot()).key;
        let closed = |reason| Event::OrderClosed {
            account,
            order: order.id,
            reason,
        };
        if rest.0 == 0 || !rests(tif) {
            self.books.release(&order);
            let reason = if rest.0 == 0 {
                OrderEnd::Filled
            } else {
                OrderEnd::Unfilled
            };
            events.push(closed(reason));
            return;
        }
        assert!(rest <= order.remaining, "what rests was wanted");
        let mut order = Order {
            remaining: rest,
            ..order
        };
        if let Kind::Bid { budget, .. } = &mut order.detail.kind {
            *budget = budget.minus(spent);
        }
        events.push(self.rested(&order));
        self.put_in(&order, job);
    }

    /// After an ask was matched: it rests if it may, and leaves the book if it may not.
    fn settle_down(&mut self, id: OrderId, tif: TimeInForce, events: &mut Vec<Event>) -> Units {
        let Some(order) = self.books.get(id) else {
            return Units(0);
        };
        if rests(tif) {
            events.push(self.rested(&order));
            return order.remaining;
        }
        self.drop_order(id, OrderEnd::Unfilled, events);
        Units(0)
    }

    fn rested(&self, order: &Order) -> Event {
        Event::Rested {
            account: self.ledger.get(order.slot()).key,
            order: order.id,
            side: order.side(),
            price: order.price,
            quantity: order.remaining,
        }
    }
}

/// Cancelling and amending.
impl Exchange {
    pub(super) fn on_cancel(
        &mut self,
        scene: &mut Scene<'_>,
        id: OrderId,
    ) -> Result<Accepted, Refusal> {
        self.own_order(scene, id)?;
        let released = self.drop_order(id, OrderEnd::Cancelled, scene.events);
        Ok(Accepted::Cancelled { released })
    }

    pub(super) fn on_amend(
        &mut self,
        scene: &mut Scene<'_>,
        id: OrderId,
        quantity: Units,
        price: Price,
    ) -> Result<Accepted, Refusal> {
        let order = self.own_order(scene, id)?;
        if order.resale().is_some() {
            return Err(Refusal::ResaleFixed { order: id });
        }
        check_quantity(quantity, &self.books.book(order.detail.book).rules)?;
        if price == order.price && quantity <= order.remaining {
            return Ok(self.shrink(id, quantity, scene.events));
        }
        let job = self.books.job(id);
        let (old, node, _) = self.take_out(id);
        let placed = match old.side() {
            Side::Ask => {
                let ask = self.ask_again(&old, quantity, price);
                self.on_ask(scene, &ask)
            }
            Side::Bid => {
                let bid = self.bid_again(&old, job, quantity, price);
                self.on_bid(scene, &bid)
            }
        };
        match placed {
            Ok(Accepted::Placed {
                order,
                trades,
                resting,
            }) => {
                self.books.release(&old);
                let (account, reason) = (scene.key, OrderEnd::Cancelled);
                scene.events.push(Event::OrderClosed {
                    account,
                    order: id,
                    reason,
                });
                Ok(Accepted::Amended {
                    order,
                    trades,
                    resting,
                })
            }
            Ok(_) => unreachable!("placing an order places it"),
            Err(refusal) => {
                self.secure(&old);
                self.books.put_back(&old, job, node);
                Err(refusal)
            }
        }
    }

    fn shrink(&mut self, id: OrderId, quantity: Units, events: &mut Vec<Event>) -> Accepted {
        let order = self.books.get(id).expect("the order is open");
        assert!(
            quantity.0 > 0,
            "an order that shrinks to nothing is cancelled"
        );
        let less = order.remaining.minus(quantity);
        if less.0 > 0 {
            let released = self.hold_of(&order, less);
            self.ledger.release(order.slot(), released);
            if let Kind::Ask { device, .. } = order.detail.kind {
                self.ledger
                    .get_mut(order.slot())
                    .withdraw_offer(device, less);
            }
            let left = self.books.reduce(id, less);
            assert!(left.is_none(), "some of the order is left");
        }
        debug_assert_eq!(
            self.books.get(id).map(|order| order.remaining),
            Some(quantity)
        );
        events.push(self.rested(&Order {
            remaining: quantity,
            ..order
        }));
        Accepted::Amended {
            order: id,
            trades: Vec::new(),
            resting: quantity,
        }
    }

    /// The ask an order in the book would be if it were placed anew.
    fn ask_again(&self, order: &Order, quantity: Units, price: Price) -> Ask {
        let Kind::Ask { device, .. } = order.detail.kind else {
            unreachable!("the order is an ask");
        };
        let terms = AskTerms::clone(self.books.ask_terms.get(order.detail.terms));
        Ask {
            device,
            capacity: terms.capacity,
            resources: terms.resources,
            limit: Limit::Price(price),
            quantity,
            duration_min: terms.duration_min,
            duration_max: terms.duration_max,
            notice: terms.notice,
            accepts: terms.accepts,
            tif: time_in_force(order.detail.expires),
        }
    }

    /// The bid an order in the book would be if it were placed anew.
    fn bid_again(&self, order: &Order, job: JobId, quantity: Units, price: Price) -> Bid {
        let Kind::Bid { budget } = order.detail.kind else {
            unreachable!("the order is a bid");
        };
        let terms = BidTerms::clone(self.books.bid_terms.get(order.detail.terms));
        Bid {
            class: self.books.book(order.detail.book).class,
            wants: terms.wants,
            limit: Limit::Price(price),
            budget,
            quantity,
            all_or_none: terms.all_or_none,
            duration: terms.duration,
            start_delay_max: terms.start_delay_max,
            term: terms.term,
            tif: time_in_force(order.detail.expires),
            job,
        }
    }

    fn own_order(&self, scene: &Scene<'_>, id: OrderId) -> Result<Order, Refusal> {
        let order = self
            .books
            .get(id)
            .ok_or(Refusal::OrderUnknown { order: id })?;
        if order.slot() != scene.slot {
            return Err(Refusal::OrderNotYours { order: id });
        }
        Ok(order)
    }
}

/// Into the book and out of it.
impl Exchange {
    /// What is held for `quantity` units of an order while it rests: nothing for an ask.
    pub(super) fn hold_of(&self, order: &Order, quantity: Units) -> Credits {
        if order.side() == Side::Ask {
            return Credits::ZERO;
        }
        let duration = self.books.bid_terms.get(order.detail.terms).duration;
        let hold = order.price.escrow(quantity, duration);
        hold.expect("bounded by the budget")
    }

    /// Takes an order out of its book and tells why. Returns what was held for it.
    pub(super) fn drop_order(
        &mut self,
        id: OrderId,
        reason: OrderEnd,
        events: &mut Vec<Event>,
    ) -> Credits {
        let (order, _, released) = self.take_out(id);
        self.books.release(&order);
        let account = self.ledger.get(order.slot()).key;
        events.push(Event::OrderClosed {
            account,
            order: id,
            reason,
        });
        released
    }

    /// An order into its book, the last at its price.
    fn put_in(&mut self, order: &Order, job: JobId) {
        self.secure(order);
        self.books.insert(order, job);
    }

    /// All that is held, counted and timed for an order in the book.
    fn secure(&mut self, order: &Order) {
        let slot = order.slot();
        debug_assert!(
            order.detail.expires > self.now,
            "what has expired does not rest"
        );
        match order.detail.kind {
            Kind::Bid { .. } => self.ledger.hold(slot, self.hold_of(order, order.remaining)),
            Kind::Ask {
                device,
                resale: LeaseId(0),
                ..
            } => {
                let capacity = self.books.ask_terms.get(order.detail.terms).capacity;
                self.ledger
                    .get_mut(slot)
                    .offer(device, capacity, order.remaining);
            }
            Kind::Ask { .. } => {}
        }
        self.ledger.get_mut(slot).open_orders += 1;
        if order.detail.expires != NEVER {
            self.timers
                .insert((order.detail.expires, Timer::OrderExpires(order.id)));
        }
    }

    /// The reverse of [`Self::put_in`], to the last detail; tells where in its level it
    /// was, and what was held for it.
    fn take_out(&mut self, id: OrderId) -> (Order, Node, Credits) {
        let (order, node) = self
            .books
            .remove(id)
            .expect("only open orders are taken out");
        debug_assert!(order.remaining.0 > 0, "an open order has units left");
        let held = self.hold_of(&order, order.remaining);
        match order.detail.kind {
            Kind::Bid { .. } => self.ledger.release(order.slot(), held),
            Kind::Ask {
                device,
                resale: LeaseId(0),
                ..
            } => {
                let account = self.ledger.get_mut(order.slot());
                account.withdraw_offer(device, order.remaining);
            }
            Kind::Ask { .. } => {}
        }
        self.forget(&order);
        (order, node, held)
    }

    /// What is counted and timed for an order that has left the book.
    pub(super) fn forget(&mut self, order: &Order) {
        let account = self.ledger.get_mut(order.slot());
        assert!(account.open_orders > 0, "an order that leaves was counted");
        account.open_orders -= 1;
        if order.detail.expires != NEVER {
            self.timers
                .remove(&(order.detail.expires, Timer::OrderExpires(order.id)));
        }
        if let Some(resale) = order.resale()
            && let Some(lease) = self.leases.get_mut(resale)
        {
            debug_assert_eq!(lease.resale_ask, Some(order.id), "the lease knew its ask");
            lease.resale_ask = None;
        }
    }
}

/// When an order leaves the book that never does.
const NEVER: Millis = Millis(u64::MAX);

fn expires(tif: TimeInForce) -> Millis {
    if let TimeInForce::Gtd(at) = tif {
        at
    } else {
        NEVER
    }
}

fn time_in_force(expires: Millis) -> TimeInForce {
    if expires == NEVER {
        TimeInForce::Gtc
    } else {
        TimeInForce::Gtd(expires)
    }
}

pub(super) fn rests(tif: TimeInForce) -> bool {
    matches!(tif, TimeInForce::Gtc | TimeInForce::Gtd(_))
}
