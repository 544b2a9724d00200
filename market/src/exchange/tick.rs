//! Fires the timers of the exchange that fall due when the log's time advances, for example the
//! expiry of an order or the end of a lease. The exchange does this before it applies a batch.
//!
//! The log sets the time, so each replica fires the same timers in the same order.

use crate::event::{Event, OrderEnd};
use crate::lease::LeaseState;
use crate::units::Millis;

use super::steps::{DUE_TIMERS_STEPS_MAX, STEPS_PER_TIMER, StepCount};
use super::{Exchange, Timer};

impl Exchange {
    /// Performs all actions due up to `now`, each at its own time, then sets the clock. If they
    /// need more steps than one batch has, the clock stops at the last action performed and the
    /// rest must wait for the next batch or tick: no action can overtake one that fell due earlier.
    /// Returns the steps taken.
    pub(super) fn advance_time(&mut self, now: Millis, events: &mut Vec<Event>) -> u32 {
        let now = now.max(self.now);
        let before = self.now;
        let mut steps = StepCount::default();
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            if steps.steps_taken() >= DUE_TIMERS_STEPS_MAX {
                return steps.steps_taken();
            }
            self.timers.pop_first();
            assert!(at >= before, "what fell due earlier was done then");
            self.now = self.now.max(at);
            steps.spend_steps(STEPS_PER_TIMER);
            self.fire_timer(timer, events);
            self.ledger.report_balances(events);
        }
        assert!(self.now >= before && self.now <= now, "time runs one way");
        self.now = now;
        steps.steps_taken()
    }

    fn fire_timer(&mut self, timer: Timer, events: &mut Vec<Event>) {
        match timer {
            Timer::OrderExpires(id) => {
                let order = self.books.get(id);
                debug_assert!(order.is_some_and(|order| order.detail.expires <= self.now));
                self.drop_order(id, OrderEnd::Expired, events);
            }
            Timer::Note(id) => self.accept_silently(id, events),
            Timer::Reserve(id) => self.end_unused(id, events),
            Timer::LeaseEnds(id) => {
                let reason = self.end_reason(id);
                debug_assert!(self.leases[&id].end_time() <= self.now, "its time is over");
                self.end_lease(id, reason, events);
            }
            Timer::LeaseCloses(id) => {
                let LeaseState::Due { reason, .. } = self.leases[&id].state else {
                    unreachable!("only a lease that is due has a closing timer");
                };
                debug_assert!(self.leases[&id].note.is_none(), "an open note puts it off");
                self.close_on_accepted(id, reason, events);
            }
            Timer::Rules(change) => self.change_rules(change, events),
            Timer::Approval(id) => self.forget_approval(id),
            Timer::Upgrade => self.raise_version(events),
            Timer::Dispute(id) => self.end_undecided(id, events),
        }
    }
}
