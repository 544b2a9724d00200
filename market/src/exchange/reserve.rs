//! The beginning of work, and what it costs to hold a device without beginning.
//!
//! A provider that is ready and hears nothing says so in the log. The buyer then has the rule's
//! time to begin or to end the lease; if it does neither the lease closes, and a part of its price
//! for the time it was held is the provider's.

use crate::command::Acceptance;
use crate::event::Event;
use crate::ids::LeaseId;
use crate::lease::{CloseReason, Lease, LeaseState};
use crate::receipt::ReceiptBody;
use crate::refusal::Refusal;
use crate::units::{DeviceMicros, Rounding, divided, product};

use super::leases::{must_be_buyer, must_be_provider};
use super::settle::Payment;
use super::{Context, Exchange, Timer};

impl Exchange {
    pub(super) fn on_start_work(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.open_lease(id)?;
        must_be_buyer(lease, context)?;
        check_begun(lease)?;
        if !lease.work_started {
            let (buyer, provider) = (lease.buyer, lease.provider);
            self.drop_reserve(id);
            self.lease_mut(id).work_started = true;
            context.events.push(Event::WorkStarted {
                lease: id,
                buyer,
                provider,
            });
        }
        Ok(Acceptance::Started)
    }

    pub(super) fn on_ready(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.running_lease(id)?;
        must_be_provider(lease, context)?;
        check_begun(lease)?;
        if lease.work_started {
            return Err(Refusal::WorkStarted { lease: id });
        }
        if let Some(until) = lease.reserved_until {
            return Ok(Acceptance::Ready { until });
        }
        let until = self.now.after(self.rules.reserve_wait).min(lease.ends());
        let (buyer, provider) = (lease.buyer, lease.provider);
        self.lease_mut(id).reserved_until = Some(until);
        let timed = self.timers.insert((until, Timer::Reserve(id)));
        assert!(timed && until >= self.now, "a reserve falls due once");
        context.events.push(Event::ProviderReady {
            lease: id,
            buyer,
            provider,
            until,
        });
        Ok(Acceptance::Ready { until })
    }

    /// The buyer neither began nor gave up: it pays for the time it held the device.
    pub(super) fn close_unused(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        let lease = &self.leases[&id];
        assert!(!lease.work_started, "what was begun is noted");
        let held = DeviceMicros::of(lease.quantity, self.now.since(lease.start));
        let part = product(held.0, self.rules.reserve.0.into());
        let part = divided(part, 1_000, Rounding::Up);
        let usage = DeviceMicros(part.expect("a part is no more than the whole").0);
        let due = ReceiptBody::due(lease.price, usage);
        let amount = due.map_or(lease.escrow, |due| due.min(lease.escrow));
        self.close(id, CloseReason::Unused, Payment { amount, usage }, events);
    }

    /// Nothing is owed for holding the device any more.
    pub(super) fn drop_reserve(&mut self, id: LeaseId) {
        if let Some(until) = self.lease_mut(id).reserved_until.take() {
            self.timers.remove(&(until, Timer::Reserve(id)));
        }
    }
}

/// Whether a lease has its device, or had it.
fn check_begun(lease: &Lease) -> Result<(), Refusal> {
    match lease.state {
        LeaseState::Waiting { until, .. } => Err(Refusal::LeaseWaits {
            lease: lease.id,
            until,
        }),
        _ => Ok(()),
    }
}
