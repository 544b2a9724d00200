//! Placing, cancelling and amending orders.

use crate::book::{Order, Terms};
use crate::command::Accepted;
use crate::event::{Event, OrderEnd};
use crate::ids::{AccountKey, OrderId};
use crate::order::{Ask, Bid, Limit, TimeInForce};
use crate::predicate::EXCLUDED_MAX;
use crate::refusal::{Quantity, Refusal};
use crate::units::{Credits, Millis, Price, Units};

use super::matching::Fill;
use super::{Exchange, Scene, Timer};

impl Exchange {
    pub(super) fn on_ask(&mut self, scene: &mut Scene<'_>, ask: &Ask) -> Result<Accepted, Refusal> {
        let price = self.check_ask(scene, ask)?;
        let id = OrderId(self.orders_made + 1);
        let terms = Terms::Ask(Box::new(ask.clone()));
        let (account, slot) = (scene.key, scene.slot);
        let order = Order {
            id,
            account,
            slot,
            price,
            remaining: ask.quantity,
            terms,
        };
        if ask.tif == TimeInForce::Fok {
            let (wanted, found) = (ask.quantity, self.fillable(&order));
            if found < wanted {
                return Err(Refusal::Unfilled { wanted, found });
            }
        }
        self.orders_made += 1;
        self.put_in(order);
        let trades = self.match_ask(id, scene.events);
        let resting = self.settle_down(id, ask.tif, scene.events);
        Ok(Accepted::Placed {
            order: id,
            trades,
            resting,
        })
    }

    pub(super) fn on_bid(&mut self, scene: &mut Scene<'_>, bid: &Bid) -> Result<Accepted, Refusal> {
        self.check_open_orders(scene)?;
        let price = self.check_bid(bid)?;
        let id = OrderId(self.orders_made + 1);
        let (account, slot) = (scene.key, scene.slot);
        let terms = Terms::Bid(Box::new(bid.clone()));
        let order = Order {
            id,
            account,
            slot,
            price,
            remaining: bid.quantity,
            terms,
        };
        let fills = self.plan_bid(&order, bid)?;
        let rest = self.check_funds(&order, bid, &fills)?;
        self.orders_made += 1;
        let trades = self.carry_out_fills(&order, bid, &fills, scene.events);
        let spent = trades
            .iter()
            .fold(Credits::ZERO, |sum, trade| sum.plus(trade.escrow));
        let left = Bid {
            budget: bid.budget.minus(spent),
            ..bid.clone()
        };
        let rested = Order {
            remaining: rest,
            terms: Terms::Bid(Box::new(left)),
            ..order
        };
        self.rest_bid(rested, bid.tif, scene.events);
        let resting = self.books.get(id).map_or(Units(0), |order| order.remaining);
        Ok(Accepted::Placed {
            order: id,
            trades,
            resting,
        })
    }

    /// What a bid takes from the book now, whole where it must be.
    fn plan_bid(&self, order: &Order, bid: &Bid) -> Result<Vec<Fill>, Refusal> {
        let fills = self.fills_for_bid(order, bid);
        let found = Units(fills.iter().map(|fill| fill.quantity.0).sum());
        if found == bid.quantity {
            return Ok(fills);
        }
        match (bid.tif, bid.all_or_none) {
            (TimeInForce::Fok, _) => Err(Refusal::Unfilled {
                wanted: bid.quantity,
                found,
            }),
            (_, true) => Ok(Vec::new()),
            _ => Ok(fills),
        }
    }

    /// Whether the buyer can pay for the fills and, where the bid rests, for the rest of it.
    /// Returns that rest.
    fn check_funds(&self, order: &Order, bid: &Bid, fills: &[Fill]) -> Result<Units, Refusal> {
        let mut rest = order.remaining;
        let mut needed = Credits::ZERO;
        for fill in fills {
            rest = rest.minus(fill.quantity);
            needed = needed.plus(fill.escrow(bid.duration));
        }
        if rests(bid.tif) {
            needed = needed.plus(order.hold(rest));
        }
        assert!(
            needed <= bid.budget,
            "the effective limit keeps a bid within its budget"
        );
        self.ledger.need(order.slot, needed)?;
        Ok(rest)
    }

    fn rest_bid(&mut self, order: Order, tif: TimeInForce, events: &mut Vec<Event>) {
        let (account, id) = (order.account, order.id);
        let closed = |reason| Event::OrderClosed {
            account,
            order: id,
            reason,
        };
        if order.remaining.0 == 0 {
            events.push(closed(OrderEnd::Filled));
        } else if rests(tif) {
            events.push(rested(&order));
            self.put_in(order);
        } else {
            events.push(closed(OrderEnd::Unfilled));
        }
    }

    /// After an ask was matched: it rests if it may, and leaves the book if it may not.
    fn settle_down(&mut self, id: OrderId, tif: TimeInForce, events: &mut Vec<Event>) -> Units {
        let Some(order) = self.books.get(id) else {
            return Units(0);
        };
        if rests(tif) {
            events.push(rested(order));
            return order.remaining;
        }
        self.drop_order(id, OrderEnd::Unfilled, events);
        Units(0)
    }

    pub(super) fn on_cancel(
        &mut self,
        scene: &mut Scene<'_>,
        id: OrderId,
    ) -> Result<Accepted, Refusal> {
        let order = self.own_order(scene, id)?;
        let released = order.hold(order.remaining);
        self.drop_order(id, OrderEnd::Cancelled, scene.events);
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
        if quantity.0 == 0 {
            return Err(Refusal::AmountZero {
                what: Quantity::Units,
            });
        }
        if price == order.price && quantity <= order.remaining {
            return Ok(self.shrink(id, quantity, scene.events));
        }
        let old = self.take_out(id);
        let placed = match &old.terms {
            Terms::Ask(ask) => {
                let limit = Limit::Price(price);
                self.on_ask(
                    scene,
                    &Ask {
                        quantity,
                        limit,
                        ..(**ask).clone()
                    },
                )
            }
            Terms::Bid(bid) => {
                let limit = Limit::Price(price);
                self.on_bid(
                    scene,
                    &Bid {
                        quantity,
                        limit,
                        ..(**bid).clone()
                    },
                )
            }
        };
        match placed {
            Ok(Accepted::Placed {
                order,
                trades,
                resting,
            }) => {
                let account = old.account;
                let reason = OrderEnd::Cancelled;
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
                self.put_in(old);
                Err(refusal)
            }
        }
    }

    fn shrink(&mut self, id: OrderId, quantity: Units, events: &mut Vec<Event>) -> Accepted {
        let mut order = self.take_out(id);
        order.remaining = quantity;
        events.push(rested(&order));
        self.put_in(order);
        Accepted::Amended {
            order: id,
            trades: Vec::new(),
            resting: quantity,
        }
    }

    fn own_order(&self, scene: &Scene<'_>, id: OrderId) -> Result<&Order, Refusal> {
        let order = self
            .books
            .get(id)
            .ok_or(Refusal::OrderUnknown { order: id })?;
        if order.slot != scene.slot {
            return Err(Refusal::OrderNotYours { order: id });
        }
        Ok(order)
    }

    /// Takes an order out of its book and tells why.
    pub(super) fn drop_order(&mut self, id: OrderId, reason: OrderEnd, events: &mut Vec<Event>) {
        let order = self.take_out(id);
        events.push(Event::OrderClosed {
            account: order.account,
            order: id,
            reason,
        });
    }

    /// An order into its book, with all that is held, counted and timed for it.
    fn put_in(&mut self, order: Order) {
        self.ledger.hold(order.slot, order.hold(order.remaining));
        let account = self.ledger.get_mut(order.slot);
        account.open_orders += 1;
        if let Terms::Ask(ask) = &order.terms {
            account.offer(ask.device, ask.capacity, order.remaining);
        }
        if let Some(at) = order.expires() {
            self.timers.insert((at, Timer::OrderExpires(order.id)));
        }
        self.books.insert(order);
    }

    /// The reverse of [`Self::put_in`], to the last detail.
    fn take_out(&mut self, id: OrderId) -> Order {
        let order = self
            .books
            .remove(id)
            .expect("only open orders are taken out");
        self.ledger.release(order.slot, order.hold(order.remaining));
        if let Terms::Ask(ask) = &order.terms {
            let account = self.ledger.get_mut(order.slot);
            account.withdraw_offer(ask.device, order.remaining);
        }
        self.forget(&order);
        order
    }

    /// What is counted and timed for an order that has left the book.
    pub(super) fn forget(&mut self, order: &Order) {
        self.ledger.get_mut(order.slot).open_orders -= 1;
        if let Some(at) = order.expires() {
            self.timers.remove(&(at, Timer::OrderExpires(order.id)));
        }
    }
}

/// What an order must be before it is looked at.
impl Exchange {
    fn check_open_orders(&self, scene: &Scene<'_>) -> Result<(), Refusal> {
        let open = self.ledger.get(scene.slot).open_orders;
        let limit = self.rules.open_orders_max;
        if open >= limit {
            Err(Refusal::OrdersMany { open, limit })
        } else {
            Ok(())
        }
    }

    fn check_ask(&self, scene: &Scene<'_>, ask: &Ask) -> Result<Price, Refusal> {
        self.check_open_orders(scene)?;
        check_quantity(ask.quantity)?;
        self.check_durations(ask.duration_min, ask.duration_max)?;
        check_named(&ask.accepts.excluded)?;
        check_named(&ask.accepts.only)?;
        if ask.resources.region.0 > 31 {
            return Err(Refusal::RegionBad {
                region: ask.resources.region.0,
            });
        }
        self.check_tif(ask.tif, ask.limit, ask.quantity)?;
        let price = match ask.limit {
            Limit::Price(price) => self.check_price(price)?,
            Limit::Market => self.rules.tick,
        };
        if price.escrow(ask.quantity, ask.duration_max).is_none() {
            return Err(Refusal::AmountLarge {
                what: Quantity::Cost,
            });
        }
        let account = self.ledger.get(scene.slot);
        account.check_pool(ask.device, ask.capacity, ask.quantity)?;
        Ok(price)
    }

    /// Checks a bid by itself and tells the highest price it pays: its limit, lowered to what its
    /// budget affords.
    pub(super) fn check_bid(&self, bid: &Bid) -> Result<Price, Refusal> {
        check_quantity(bid.quantity)?;
        self.check_durations(bid.duration, bid.duration)?;
        check_named(&bid.wants.excluded)?;
        self.check_tif(bid.tif, bid.limit, bid.quantity)?;
        let affordable = Price::affordable(bid.budget, bid.quantity, bid.duration);
        let affordable = Price(affordable.0 - affordable.0 % self.rules.tick.0);
        if affordable.0 == 0 {
            let needed = self.rules.tick.escrow(bid.quantity, bid.duration);
            let needed = needed.unwrap_or(Credits(u64::MAX));
            return Err(Refusal::BudgetSmall {
                budget: bid.budget,
                needed,
            });
        }
        match bid.limit {
            Limit::Price(price) => Ok(self.check_price(price)?.min(affordable)),
            Limit::Market => Ok(affordable),
        }
    }

    fn check_price(&self, price: Price) -> Result<Price, Refusal> {
        let tick = self.rules.tick;
        if price.0 == 0 {
            return Err(Refusal::AmountZero {
                what: Quantity::Price,
            });
        }
        if !price.0.is_multiple_of(tick.0) {
            return Err(Refusal::PriceOffTick { price, tick });
        }
        Ok(price)
    }

    fn check_durations(&self, min: Millis, max: Millis) -> Result<(), Refusal> {
        let limit = self.rules.lease_max;
        if min.0 == 0 || min > max || max > limit {
            return Err(Refusal::DurationBad { min, max, limit });
        }
        Ok(())
    }

    fn check_tif(&self, tif: TimeInForce, limit: Limit, quantity: Units) -> Result<(), Refusal> {
        match tif {
            TimeInForce::Gtd(expires) if expires <= self.now => Err(Refusal::OrderExpired {
                expires,
                now: self.now,
            }),
            TimeInForce::Gtc | TimeInForce::Gtd(_) if limit == Limit::Market => {
                Err(Refusal::MarketRests { quantity })
            }
            _ => Ok(()),
        }
    }
}

fn check_quantity(quantity: Units) -> Result<(), Refusal> {
    if quantity.0 == 0 {
        return Err(Refusal::AmountZero {
            what: Quantity::Units,
        });
    }
    Ok(())
}

fn check_named(accounts: &[AccountKey]) -> Result<(), Refusal> {
    if accounts.len() > EXCLUDED_MAX {
        let count = u32::try_from(accounts.len()).unwrap_or(u32::MAX);
        return Err(Refusal::PredicateLarge {
            count,
            limit: EXCLUDED_MAX as u32,
        });
    }
    Ok(())
}

fn rests(tif: TimeInForce) -> bool {
    matches!(tif, TimeInForce::Gtc | TimeInForce::Gtd(_))
}

fn rested(order: &Order) -> Event {
    Event::Rested {
        account: order.account,
        order: order.id,
        side: order.side(),
        price: order.price,
        quantity: order.remaining,
    }
}
