//! Cancels or amends a resting order for its account. An account can change only its own orders,
//! and an amend that the exchange refuses leaves the order at its position.

use crate::books::{Order, OrderKind};
use crate::command::Acceptance;
use crate::event::{Event, OrderEnd};
use crate::ids::{JobId, OrderId};
use crate::order::{Ask, Bid, Limit, Side, TimeInForce};
use crate::refusal::Refusal;
use crate::terms::{AskTerms, BidTerms};
use crate::units::{Price, Units};

use super::checks::check_quantity;
use super::{Context, Exchange};

impl Exchange {
    pub(super) fn on_cancel(
        &mut self,
        context: &mut Context<'_>,
        id: OrderId,
    ) -> Result<Acceptance, Refusal> {
        let order = self.own_order(context, id)?;
        let released = self.drop_order(id, OrderEnd::Cancelled, context.events);
        assert!(
            order.side() == Side::Bid || released == order.deposit(),
            "only its deposit is held for an ask"
        );
        Ok(Acceptance::Cancelled { released })
    }

    pub(super) fn on_amend(
        &mut self,
        context: &mut Context<'_>,
        id: OrderId,
        quantity: Units,
        price: Price,
    ) -> Result<Acceptance, Refusal> {
        let order = self.own_order(context, id)?;
        if order.resold_lease().is_some() {
            return Err(Refusal::ResaleFixed { order: id });
        }
        check_quantity(quantity, &self.books.book(order.detail.book).rules)?;
        if price == order.price && quantity <= order.remaining {
            return Ok(self.shrink_order(id, quantity, context.events));
        }
        let (job, open_orders) = (
            self.books.bid_job(id),
            self.ledger.get(order.slot()).open_orders,
        );
        let (old, node, _) = self.take_out(id);
        let placed = match old.side() {
            Side::Ask => {
                let ask = self.ask_again(&old, quantity, price);
                self.on_ask(context, &ask)
            }
            Side::Bid => {
                let bid = self.bid_again(&old, job, quantity, price);
                self.on_bid(context, &bid)
            }
        };
        match placed {
            Ok(Acceptance::Placed {
                order,
                trades,
                resting,
            }) => {
                self.books.release_terms(&old);
                let (account, reason) = (context.key, OrderEnd::Cancelled);
                context.events.push(Event::OrderClosed {
                    account,
                    order: id,
                    reason,
                });
                Ok(Acceptance::Amended {
                    order,
                    trades,
                    resting,
                })
            }
            Ok(_) => unreachable!("placing an order places it"),
            Err(refusal) => {
                self.register_order(&old);
                self.books.put_back(&old, job, node);
                let open_now = self.ledger.get(old.slot()).open_orders;
                assert_eq!(open_now, open_orders, "a refusal changes nothing");
                Err(refusal)
            }
        }
    }

    fn shrink_order(
        &mut self,
        id: OrderId,
        quantity: Units,
        events: &mut Vec<Event>,
    ) -> Acceptance {
        let order = self.books.get(id).expect("the order is open");
        assert!(
            quantity.0 > 0,
            "an order that shrinks to nothing is cancelled"
        );
        let less = order.remaining.minus(quantity);
        if less.0 > 0 {
            let released = self.hold_of(&order, less);
            self.ledger.release_escrow(order.slot(), released);
            if let OrderKind::Ask { device, .. } = order.detail.kind {
                self.ledger
                    .get_mut(order.slot())
                    .withdraw_offer(device, less);
            }
            let left = self.books.reduce_order(id, less);
            assert!(left.is_none(), "some of the order is left");
            self.weigh_again(id);
        }
        debug_assert_eq!(
            self.books.get(id).map(|order| order.remaining),
            Some(quantity)
        );
        events.push(self.resting_event(&Order {
            remaining: quantity,
            ..order
        }));
        Acceptance::Amended {
            order: id,
            trades: Vec::new(),
            resting: quantity,
        }
    }

    /// Returns the ask that would place a resting order again.
    fn ask_again(&self, order: &Order, quantity: Units, price: Price) -> Ask {
        let OrderKind::Ask { device, .. } = order.detail.kind else {
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
            spot: terms.spot.prices,
            idle: terms.idle,
            accepts: terms.accepts,
            tif: TimeInForce::from_expiry(order.detail.expires),
        }
    }

    /// Returns the bid that would place a resting order again.
    fn bid_again(&self, order: &Order, job: JobId, quantity: Units, price: Price) -> Bid {
        let OrderKind::Bid { budget } = order.detail.kind else {
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
            tif: TimeInForce::from_expiry(order.detail.expires),
            job,
        }
    }

    fn own_order(&self, context: &Context<'_>, id: OrderId) -> Result<Order, Refusal> {
        let order = self
            .books
            .get(id)
            .ok_or(Refusal::OrderUnknown { order: id })?;
        if order.slot() != context.slot {
            return Err(Refusal::OrderNotYours { order: id });
        }
        Ok(order)
    }
}
