//! Leases are made longer while a run goes on of which nobody knew beforehand how long it takes.
//!
//! Half-way through what is left of its leases an attempt is looked at. Where such a run is under
//! way, each lease is made twice as long: within its ask, what is left of the budget, the job's own
//! deadline, and the time that the user is willing to wait for such a run. The market is asked
//! first what the job has spent and holds, as before any purchase, and nothing is bought meanwhile.
//! A lease is longer once the market says so, whatever became of the command.

use souk_market::{Command, Credits, Lease, LeaseId, Millis};

use super::JobCore;
use super::action::{Action, Spending};
use super::event::{Answer, Leg};
use super::running::until;
use super::state::{Attempt, Judging, LegState, Stage, Timer, Wait};
use crate::clock::{Micros, Now};

/// When, of what is left of its leases, an attempt is looked at, sends no request any more, and
/// awaits no answer any more: in thirtieths.
const EXTEND_AT: u64 = 15;
const SEND_UNTIL: u64 = 20;
const AWAIT_UNTIL: u64 = 27;

/// An extension shorter than this is not worth its command.
const EXTENSION_MIN: Millis = Millis(1_000);

/// How soon it is tried again where something is being bought.
const BUYING_PAUSE: Micros = Micros::millis(500);

impl JobCore {
    /// Sets the moments of an attempt by the first of its leases to end.
    pub(super) fn set_lease_timers(&mut self, n: u32) {
        let (tick, log) = (self.now.tick, self.now.log);
        let attempt = self.attempts.get(&n).expect("it runs");
        let ends = attempt.legs.iter().map(|leg| leg.terms.deadline).min();
        let left = until(ends.expect("an attempt has legs"), log);
        let may_extend = attempt.has_open_ended();
        let at = |share: u64| tick.plus(Micros(left.0 / 30 * share));
        self.timers.set(Timer::SendUntil(n), at(SEND_UNTIL));
        self.timers.set(Timer::AwaitUntil(n), at(AWAIT_UNTIL));
        self.timers.set(Timer::LeaseEnd(n), tick.plus(left));
        if may_extend {
            self.timers.set(Timer::Extend(n), at(EXTEND_AT));
        }
    }

    /// Half of what was left of an attempt's leases is over.
    pub(super) fn on_half_over(&mut self, n: u32) {
        let attempt = self.attempts.get(&n);
        if !attempt.is_some_and(Attempt::is_worth_more_time) {
            return;
        }
        if self.is_buying() {
            let again = self.now.tick.plus(BUYING_PAUSE);
            self.timers.set(Timer::Extend(n), again);
            return;
        }
        let ids = self.ids();
        self.ask(Action::Look { ids }, Wait::LookToExtend(n));
    }

    /// What the job has spent and holds is known: its leases are made longer within the rest.
    pub(super) fn on_looked_to_extend(&mut self, n: u32, answer: Answer) {
        let Answer::Leases(leases) = answer else {
            // Its leases end as they were bought.
            return;
        };
        let Some(attempt) = self.attempts.get(&n).filter(|it| it.is_worth_more_time()) else {
            return;
        };
        let spending = Spending::of(&leases);
        let uncertain: u64 = self.uncertain.values().map(|gang| gang.escrow.0).sum();
        let gone = spending.spent.0.saturating_add(spending.held.0);
        let gone = gone.saturating_add(uncertain);
        let left = self.spec.limits.budget;
        let left = left.map(|Credits(budget)| budget.saturating_sub(gone));
        let open = attempt.legs.iter().filter(|leg| !leg.stage.is_over());
        let ours: Vec<LeaseId> = open.map(|leg| leg.terms.lease).collect();
        let leases = leases.iter().filter(|lease| ours.contains(&lease.id));
        let leases: Vec<_> = leases.filter(|lease| lease.is_running()).collect();
        let time_max = Millis(self.spec.limits.time_max.0 / 1_000);
        let each = leases.iter().map(|lease| {
            let duration = lease.deadline.since(lease.start);
            let most = lease.duration_max.min(time_max).since(duration);
            duration.min(most)
        });
        let passed = self.now.tick.since(self.begun);
        let deadline = self.spec.limits.deadline;
        let of_deadline = deadline.map(|deadline| Millis(deadline.since(passed).0 / 1_000));
        // Each lease's escrow is rounded up.
        let count = leases.len() as u64;
        let per_second: u64 = leases.iter().map(|lease| lease.price.0).sum();
        let affordable = left.map(|left| {
            Millis(left.saturating_sub(count).saturating_mul(1_000) / per_second.max(1))
        });
        let by = each.chain(of_deadline).chain(affordable).min();
        let Some(by) = by.filter(|by| *by >= EXTENSION_MIN && count > 0) else {
            return;
        };
        let asked: Vec<(LeaseId, Millis)> = leases
            .iter()
            .map(|lease| (lease.id, lease.deadline.after(by)))
            .collect();
        for (lease, until) in asked {
            let legs = self.attempts.get_mut(&n).into_iter();
            let mut legs = legs.flat_map(|attempt| &mut attempt.legs);
            if let Some(leg) = legs.find(|leg| leg.terms.lease == lease) {
                leg.span.asked_until = leg.span.asked_until.max(until);
            }
            self.command(Command::Extend { lease, by }, Wait::Extend(lease));
        }
    }

    /// An earlier life may have made the leases of an attempt longer.
    pub(super) fn take_deadlines(&mut self, n: u32, leases: &[Lease]) {
        let Some(attempt) = self.attempts.get_mut(&n) else {
            return;
        };
        for leg in &mut attempt.legs {
            let lease = leases.iter().find(|lease| lease.id == leg.terms.lease);
            let deadline = lease.map_or(leg.terms.deadline, |lease| lease.deadline);
            leg.terms.deadline = leg.terms.deadline.max(deadline);
        }
    }

    /// The market says until when the lease of a leg at work is.
    pub(super) fn on_prolonged(&mut self, leg: Leg, deadline: Millis) {
        let attempt = self.attempt(leg.attempt);
        let terms = &mut attempt.legs[leg.place as usize].terms;
        if deadline <= terms.deadline {
            return;
        }
        terms.deadline = deadline;
        if attempt.judging == Judging::Running {
            self.set_lease_timers(leg.attempt);
        }
    }
}

impl LegState {
    /// When the lease ends at the latest, as far as its buyer can know.
    pub(super) fn ends_at_most(&self) -> Millis {
        self.terms.deadline.max(self.span.asked_until)
    }

    /// How long its device has been held at most: the log's clock is an estimate and may go back.
    pub(super) fn held_at(&self, now: Now) -> Millis {
        let by_log = now.log.since(self.terms.start);
        by_log.max(self.span.held_at(now.tick))
    }
}

impl Attempt {
    /// Whether only a run tells of some part how long it takes.
    fn has_open_ended(&self) -> bool {
        self.plan.parts.iter().any(|part| part.is_open_ended)
    }

    /// Whether a part of a leg is one of those.
    pub(super) fn is_open_ended(&self, leg: Leg, part: u32) -> bool {
        let mut parts = self.plan.parts_at(leg.place);
        parts
            .nth(part as usize)
            .is_some_and(|(_, part)| part.is_open_ended)
    }

    /// Whether it runs, and nothing of it was lost or is to be ended.
    fn is_worth_more_time(&self) -> bool {
        let is_at_work =
            |leg: &LegState| leg.stage == Stage::Working && leg.limit.is_none() && !leg.has_stalled;
        self.judging == Judging::Running
            && self.failed.is_none()
            && self.stalled.is_none()
            && self.legs.iter().any(is_at_work)
    }
}
