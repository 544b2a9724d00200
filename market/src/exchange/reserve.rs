//! Records that a buyer's work has begun, charges for a device that is ready and unused, and ends a
//! lease whose buyer does not answer.
//!
//! A provider that is ready and sees no work reports it in the log, before or after the work has
//! begun. The market then reserves the device for `rules.reserve_wait`. By then the buyer must
//! state that it works, or end the lease; if it does neither, the market ends the lease. Unused
//! time costs the part of the price that the lease states, if the provider claims it: a provider
//! that was absent claims nothing.

use crate::command::Acceptance;
use crate::event::Event;
use crate::ids::LeaseId;
use crate::lease::{CloseReason, Lease, LeaseState};
use crate::refusal::Refusal;
use crate::units::Millis;

use super::leases::{must_be_buyer, must_be_provider};
use super::{Context, Exchange, Timer};

impl Exchange {
    pub(super) fn on_start_work(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.open_lease(id)?;
        must_be_buyer(lease, context)?;
        check_not_waiting(lease)?;
        let (is_new, buyer, provider) = (!lease.work_started, lease.buyer, lease.provider);
        self.drop_reserve(id);
        if is_new {
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
        let lease = self.open_lease(id)?;
        must_be_provider(lease, context)?;
        check_not_waiting(lease)?;
        if let LeaseState::Due { until, reason, .. } = lease.state {
            return Ok(self.claim_idle(id, until, reason, context.events));
        }
        if let Some(until) = lease.reserved_until {
            return Ok(Acceptance::Ready { until });
        }
        let until = self
            .now
            .saturating_add(self.rules.reserve_wait)
            .min(lease.end_time());
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

    /// The provider claims only the time in which its device was held. If a note is open, its
    /// answer comes first.
    fn claim_idle(
        &mut self,
        id: LeaseId,
        until: Millis,
        reason: CloseReason,
        events: &mut Vec<Event>,
    ) -> Acceptance {
        let lease = self.lease_mut(id);
        lease.claimed = true;
        match lease.note {
            Some(_) => Acceptance::Ready { until },
            None => self.close_on_accepted(id, reason, events),
        }
    }

    /// Ends a lease whose buyer neither stated that it works nor ended it: the buyer pays for the
    /// time it held the device. If work has begun the provider can still note the remaining usage,
    /// and if a note is open its answer comes first.
    pub(super) fn end_unused(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        let lease = self.lease_mut(id);
        lease.claimed = true;
        match lease.work_started || lease.note.is_some() {
            true => self.end_lease(id, CloseReason::Unused, events),
            false => {
                self.close_on_accepted(id, CloseReason::Unused, events);
            }
        }
    }

    /// Cancels the reserve: the buyer need not act any more.
    pub(super) fn drop_reserve(&mut self, id: LeaseId) {
        if let Some(until) = self.lease_mut(id).reserved_until.take() {
            self.timers.remove(&(until, Timer::Reserve(id)));
        }
    }
}

/// Checks that a lease does not wait for its device: it has it, or had it.
fn check_not_waiting(lease: &Lease) -> Result<(), Refusal> {
    match lease.state {
        LeaseState::Waiting { until, .. } => Err(Refusal::LeaseWaits {
            lease: lease.id,
            until,
        }),
        _ => Ok(()),
    }
}
