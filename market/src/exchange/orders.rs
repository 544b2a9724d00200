//! Places a new ask or bid: checks it, matches it with the book, and keeps the unmatched units in
//! the book if the order can rest. The exchange computes the whole effect of a bid before it
//! changes anything, so that a refused bid changes nothing.

use crate::book::VisitBudget;
use crate::books::{Order, OrderDetail, OrderKind};
use crate::command::Acceptance;
use crate::event::{Event, OrderEnd};
use crate::ids::{BookId, JobId, LeaseId, OrderId, Slot};
use crate::order::{Ask, Bid, TimeInForce};
use crate::refusal::Refusal;
use crate::units::{Count, Credits, Price, Units};

use super::bid::LiveBid;
use super::displace::Displacement;
use super::matching::Fill;
use super::steps::{SPOT_STEPS, StepCount};
use super::{Context, Exchange};

/// The effect of a bid on the market: the asks that it fills, the spot leases whose devices it
/// takes over, and the units left.
struct Plan {
    fills: Vec<Fill>,
    displaced: Vec<Displacement>,
    rest: Units,
}

impl Plan {
    fn total_quantity(&self) -> Units {
        let filled = self.fills.iter().map(|fill| fill.quantity);
        let displaced = self.displaced.iter().map(|one| one.quantity);
        filled.chain(displaced).fold(self.rest, Units::plus)
    }
}

/// Places asks and bids.
impl Exchange {
    /// Checks and places an ask, or refuses it. Only a fill-or-kill ask is matched once before, to
    /// count the units that it could trade.
    pub(super) fn on_ask(
        &mut self,
        context: &mut Context<'_>,
        ask: &Ask,
    ) -> Result<Acceptance, Refusal> {
        let rules = self.class_rules(ask.resources.class());
        let price = self.check_ask(context.slot, ask, &rules)?;
        let deposit = self.check_deposit(context.slot, rules.class, ask.tif)?;
        if self.books.find_book(rules.class).is_none() {
            context.steps.spend_steps(self.books.classes_looked_at());
        }
        let book = match ask.tif.can_rest() {
            true => self.open_book(rules.class, deposit, context.events)?,
            false => self.known_book(rules.class)?,
        };
        let slot = context.slot;
        let order = Order {
            id: self.next_order(),
            price,
            remaining: ask.quantity,
            detail: OrderDetail {
                slot,
                book,
                terms: self.books.ask_terms.intern_terms(slot, ask),
                expires: ask.tif.expiry_time(),
                kind: OrderKind::Ask {
                    device: ask.device,
                    provider: slot,
                    resale: LeaseId(0),
                    deposit,
                },
            },
        };
        assert!(
            price.0 > 0 && ask.quantity.0 > 0,
            "a checked ask has a price and units"
        );
        if ask.tif == TimeInForce::Fok {
            let (wanted, found) = (ask.quantity, self.fillable_units(&order, context.steps));
            if found < wanted {
                self.books.release_terms(&order);
                return Err(Refusal::Unfilled { wanted, found });
            }
        }
        Ok(self.enter_ask(order, ask.tif, context))
    }

    /// Puts a checked ask into its book, matches it, and removes the rest if the ask cannot rest.
    pub(super) fn enter_ask(
        &mut self,
        order: Order,
        tif: TimeInForce,
        context: &mut Context<'_>,
    ) -> Acceptance {
        let id = order.id;
        self.orders_made.count_up();
        assert_eq!(
            id.0, self.orders_made,
            "an order's id is the number of orders so far"
        );
        self.put_in(&order, JobId::default());
        let trades = self.match_ask(id, tif, context);
        context.steps.spend_trades(trades.len());
        let resting = self.keep_or_drop_ask(id, tif, context.events);
        assert!(
            resting <= order.remaining,
            "no more units rest than the ask offered"
        );
        Acceptance::Placed {
            order: id,
            trades,
            resting,
        }
    }

    /// Checks, plans and carries out a bid, or refuses it. A refused bid changes nothing.
    pub(super) fn on_bid(
        &mut self,
        context: &mut Context<'_>,
        bid: &Bid,
    ) -> Result<Acceptance, Refusal> {
        self.check_open_orders(context.slot)?;
        let rules = self.class_rules(bid.class);
        let price = self.check_bid(bid, &rules)?;
        let book = self.known_book(bid.class)?;
        let order = self.new_bid(self.next_order().0, context.slot, book, price, bid);
        let live = self.live_bid(order, bid.job);
        let plan = match self.plan_bid(&live, bid, context.steps) {
            Ok(plan) => plan,
            Err(refusal) => {
                self.books.release_terms(&order);
                return Err(refusal);
            }
        };
        self.orders_made.count_up();
        assert_eq!(
            order.id.0, self.orders_made,
            "an order's id is the number of orders so far"
        );
        let mut trades = Vec::with_capacity(plan.fills.len().saturating_add(plan.displaced.len()));
        self.carry_out_fills(&live, &plan.fills, &mut trades, context.events);
        self.displace_leases(&live, &plan.displaced, &mut trades, context.events);
        context.steps.spend_trades(trades.len());
        let spent = trades
            .iter()
            .fold(Credits::ZERO, |sum, trade| sum.plus(trade.escrow));
        assert!(
            spent <= bid.budget,
            "the trades of a bid cost no more than its budget"
        );
        self.rest_bid(&live, plan.rest, spent, bid.tif, context.events);
        assert!(
            plan.rest <= bid.quantity,
            "no more units rest than the bid wants"
        );
        let resting = if bid.tif.can_rest() {
            plan.rest
        } else {
            Units(0)
        };
        Ok(Acceptance::Placed {
            order: order.id,
            trades,
            resting,
        })
    }

    /// Returns the id that the next order will get.
    pub(super) fn next_order(&self) -> OrderId {
        let mut number = self.orders_made;
        number.count_up();
        OrderId(number)
    }

    /// Creates the order of a bid, with an id that no order has yet, and does not put it into the
    /// book. The order uses its terms: the caller must put it into the book or release them.
    pub(super) fn new_bid(
        &mut self,
        id: u64,
        slot: Slot,
        book: BookId,
        price: Price,
        bid: &Bid,
    ) -> Order {
        assert!(id > self.orders_made, "the id is not in use");
        Order {
            id: OrderId(id),
            price,
            remaining: bid.quantity,
            detail: OrderDetail {
                slot,
                book,
                terms: self.books.bid_terms.intern_terms(slot, bid),
                expires: bid.tif.expiry_time(),
                kind: OrderKind::Bid { budget: bid.budget },
            },
        }
    }

    /// Plans which asks a bid fills and which spot leases it displaces, and checks that its buyer
    /// can pay. Refuses a fill-or-kill bid that cannot trade in full; an all-or-none bid that
    /// cannot trades nothing and rests whole.
    fn plan_bid(&self, live: &LiveBid, bid: &Bid, steps: &mut StepCount) -> Result<Plan, Refusal> {
        let mut visits = VisitBudget::new();
        let (mut fills, mut rest) = self.fills_for_bid(live, &mut visits);
        steps.spend_visits(visits);
        let mut displaced = Vec::new();
        if rest.0 > 0 {
            steps.spend_steps(SPOT_STEPS);
            (displaced, rest) = self.plan_displacement(live, &fills, rest);
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
        debug_assert_eq!(
            plan.total_quantity(),
            bid.quantity,
            "each unit trades or is in the rest"
        );
        self.check_funds(live, bid, &plan)?;
        Ok(plan)
    }

    /// Checks that the buyer can pay for the trades and, if the bid rests, for the remaining units.
    fn check_funds(&self, live: &LiveBid, bid: &Bid, plan: &Plan) -> Result<(), Refusal> {
        let escrow = |sum: Credits, fill: &Fill| sum.plus(fill.escrow(bid.duration));
        let mut needed = plan.fills.iter().fold(Credits::ZERO, escrow);
        let escrow = |sum: Credits, one: &Displacement| sum.plus(one.escrow);
        needed = plan.displaced.iter().fold(needed, escrow);
        if bid.tif.can_rest() {
            let held = self.hold_of(&live.order, plan.rest);
            needed = needed.plus(held);
            if plan.rest.0 > 0 {
                self.check_room(held >= self.rules.ask_deposit)?;
            }
        }
        assert!(
            needed <= bid.budget,
            "the limit price keeps a bid within its budget"
        );
        self.ledger.check_available(live.order.slot(), needed)
    }

    /// Puts the remaining units of a bid into the book if the bid can rest; otherwise closes the
    /// order.
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
        if rest.0 == 0 || !tif.can_rest() {
            self.books.release_terms(&order);
            let reason = if rest.0 == 0 {
                OrderEnd::Filled
            } else {
                OrderEnd::Unfilled
            };
            events.push(closed(reason));
            return;
        }
        assert!(
            rest <= order.remaining,
            "no more units rest than the bid wants"
        );
        let mut order = Order {
            remaining: rest,
            ..order
        };
        if let OrderKind::Bid { budget, .. } = &mut order.detail.kind {
            *budget = budget.minus(spent);
            assert!(budget.0 > 0, "a resting bid has budget left");
        }
        events.push(self.resting_event(&order));
        self.put_in(&order, job);
        self.make_room(events);
    }

    /// Keeps a matched ask in the book if it can rest; otherwise removes it. Returns the resting
    /// units.
    fn keep_or_drop_ask(
        &mut self,
        id: OrderId,
        tif: TimeInForce,
        events: &mut Vec<Event>,
    ) -> Units {
        let Some(order) = self.books.get(id) else {
            return Units(0);
        };
        assert!(order.remaining.0 > 0, "an open order has units left");
        if tif.can_rest() {
            events.push(self.resting_event(&order));
            self.make_room(events);
            return order.remaining;
        }
        self.drop_order(id, OrderEnd::Unfilled, events);
        Units(0)
    }
}
