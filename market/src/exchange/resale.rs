//! Resells the rest of a lease to another buyer, and extends a lease.
//!
//! In a resale the provider loses nothing, because it still gets its own price. If the new price is
//! higher, the reseller gets the difference. If it is lower, the reseller leaves the difference in
//! escrow, taken from the credits that would have returned to it (rounded down, so at most a
//! micro-credit short).

use crate::books::{Order, OrderDetail, OrderKind};
use crate::command::Acceptance;
use crate::event::Event;
use crate::ids::LeaseId;
use crate::lease::{CloseReason, Lease, LeaseState, Resale};
use crate::order::{Term, TimeInForce};
use crate::refusal::{Quantity, Refusal};
use crate::units::{Count, Credits, DeviceMicros, Millis, Price, Rounding};

use super::checks::check_price;
use super::leases::must_be_buyer;
use super::{Context, Exchange, Timer, spot_key};

impl Exchange {
    pub(super) fn on_resell(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
        price: Price,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.active_lease(id)?;
        must_be_buyer(lease, context)?;
        if lease.resale_ask.is_some() || lease.resale.is_some() {
            return Err(Refusal::LeaseResold { lease: id });
        }
        self.check_open_orders(context.slot)?;
        self.check_room(true)?;
        let rules = self.books.book(lease.parties.book).rules;
        check_price(price, rules.tick)?;
        if price
            .escrow_for(lease.quantity, self.rules.lease_max)
            .is_none()
        {
            return Err(Refusal::AmountLarge {
                what: Quantity::Cost,
            });
        }
        let order = Order {
            id: self.next_order(),
            price,
            remaining: lease.quantity,
            detail: OrderDetail {
                slot: context.slot,
                book: lease.parties.book,
                terms: lease.parties.terms,
                expires: lease.deadline,
                kind: OrderKind::Ask {
                    device: lease.device,
                    provider: lease.parties.provider,
                    resale: id,
                    deposit: Credits::ZERO,
                },
            },
        };
        assert!(
            order.detail.expires > self.now,
            "an active lease has time left"
        );
        assert_eq!(lease.parties.buyer, context.slot, "the buyer speaks");
        self.books.ask_terms.add_user(order.detail.terms);
        self.lease_mut(id).resale_ask = Some(order.id);
        let tif = TimeInForce::Gtd(order.detail.expires);
        Ok(self.enter_ask(order, tif, context))
    }

    /// Passes the device of lease `from`, whose rest was sold, to lease `to` without a pause. Both
    /// must have the same units.
    pub(super) fn hand_over(&mut self, from: LeaseId, to: LeaseId, events: &mut Vec<Event>) {
        let new = &self.leases[&to];
        let (price, quantity, span) = (
            new.price,
            new.quantity,
            new.deadline.saturating_since(new.start),
        );
        let old = self.lease_mut(from);
        assert!(old.quantity == quantity, "a lease is resold whole");
        let old_price = old.price;
        let loss = Price(old_price.0.saturating_sub(price.0));
        // The escrow rounded each unit up once for the whole lease, so the rest covers this.
        let lost = DeviceMicros::from_units(quantity, span);
        let subsidy = loss.usage_cost(lost, Rounding::Down);
        let subsidy = subsidy.map_or(old.escrow, |subsidy| subsidy.min(old.escrow));
        old.escrow = old.escrow.minus(subsidy);
        debug_assert!(
            subsidy.0 == 0 || price < old_price,
            "only a loss is made up for"
        );
        let (seller, seller_slot) = (old.buyer, old.parties.buyer);
        self.ledger.get_mut(seller_slot).leases_bought.count_up();
        self.lease_mut(to).resale = Some(Resale {
            seller,
            provider_price: old_price,
            subsidy,
            seller_slot,
        });
        self.unindex_spot(to);
        self.lease_mut(from).successor = Some(to);
        self.end_lease(from, CloseReason::Resold, events);
    }

    pub(super) fn on_extend(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
        by: Millis,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.active_lease(id)?;
        must_be_buyer(lease, context)?;
        if lease.resale_ask.is_some() {
            return Err(Refusal::LeaseResold { lease: id });
        }
        let duration = lease
            .deadline
            .saturating_since(lease.start)
            .saturating_add(by);
        let limit = lease.duration_max;
        if by.0 == 0 || duration > limit {
            return Err(Refusal::LeaseLong {
                lease: id,
                duration,
                limit,
            });
        }
        let escrow = lease.price.escrow_for(lease.quantity, duration);
        let escrow = escrow.ok_or(Refusal::AmountLarge {
            what: Quantity::Cost,
        })?;
        let more = Credits(escrow.0.saturating_sub(lease.escrow.0));
        let subsidy = extra_subsidy(lease, by);
        self.ledger.check_available(context.slot, more)?;
        if subsidy.0 > 0 {
            // Only the reseller could pay for the extension, and it has not agreed.
            return Err(Refusal::LeaseResold { lease: id });
        }
        assert!(duration <= limit, "within what the ask allows");
        self.ledger.hold_in_escrow(context.slot, more);
        self.prolong_lease(id, duration, escrow, context.events);
        Ok(Acceptance::Extended {
            deadline: self.leases[&id].deadline,
            escrow,
        })
    }

    fn prolong_lease(
        &mut self,
        id: LeaseId,
        duration: Millis,
        escrow: Credits,
        events: &mut Vec<Event>,
    ) {
        let lease = self.leases.get_mut(id).expect("the lease is known");
        let timed = self.timers.remove(&(lease.deadline, Timer::LeaseEnds(id)));
        assert!(timed, "a lease that runs will end");
        lease.deadline = lease.start.saturating_add(duration);
        assert!(
            lease.deadline >= self.now,
            "a lease that runs has not ended"
        );
        lease.escrow = lease.escrow.max(escrow);
        self.timers.insert((lease.deadline, Timer::LeaseEnds(id)));
        let Lease {
            buyer,
            provider,
            deadline,
            ..
        } = *lease;
        events.push(Event::LeaseExtended {
            lease: id,
            buyer,
            provider,
            deadline,
        });
    }

    /// Returns a lease that runs and has no early end ahead.
    fn active_lease(&self, id: LeaseId) -> Result<&Lease, Refusal> {
        let lease = self.open_lease(id)?;
        match lease.state {
            LeaseState::Active => Ok(lease),
            _ => Err(Refusal::LeaseEnded {
                lease: id,
                at: lease.end_time(),
            }),
        }
    }

    /// Removes a lease, which must be a resold one, from the list of displaceable leases.
    pub(super) fn unindex_spot(&mut self, id: LeaseId) {
        let lease = &self.leases[&id];
        assert!(
            lease.resale.is_some(),
            "only what was resold can't be displaced"
        );
        if lease.term == Term::Spot {
            let listed = self.spot.remove(&spot_key(lease));
            assert!(listed, "a spot lease that runs is listed");
        }
    }
}

/// Returns what an extension would cost the lease's reseller.
fn extra_subsidy(lease: &Lease, by: Millis) -> Credits {
    let Some(resale) = lease.resale else {
        return Credits::ZERO;
    };
    let loss = Price(resale.provider_price.0.saturating_sub(lease.price.0));
    loss.escrow_for(lease.quantity, by)
        .unwrap_or(Credits(u64::MAX))
}
