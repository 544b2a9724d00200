//! Extends the leases of a run whose length nobody knows beforehand, such as that of a loop.
//!
//! The core checks an attempt half-way through the rest of its leases. If such a run is under way,
//! the core doubles the length of each lease, as far as its ask, the rest of the budget, the job's
//! deadline and the user's limit on such a run allow. As before any purchase, it first asks the
//! market for the job's cost and escrow, and it must buy nothing meanwhile. A lease is longer once
//! the market reports so, whatever the result of the command.

use souk_market::{Command, Credits, Lease, LeaseId, Millis};

use super::JobCore;
use super::action::{Action, Spending};
use super::event::{Answer, Leg};
use super::running::time_until;
use super::state::{Attempt, Judging, LegState, Stage, Wait};
use super::timer::Timer;
use crate::clock::Micros;

/// When an attempt is checked, warns its caller, sends its last request, and stops waiting for
/// answers: in thirtieths of the rest of its leases.
const EXTEND_AT: u64 = 15;
const WARN_AT: u64 = 18;
const SEND_UNTIL: u64 = 20;
const AWAIT_UNTIL: u64 = 27;

/// The shortest extension that is worth its command.
const EXTENSION_MIN: Millis = Millis(1_000);

/// The pause before a retry while a purchase is under way.
const BUYING_PAUSE: Micros = Micros::from_millis(500);

impl JobCore {
    /// Sets the timers of an attempt by the first of its leases to end.
    pub(super) fn set_lease_timers(&mut self, n: u32) {
        let (tick, log) = (self.now.tick, self.now.log);
        let attempt = self.attempts.get(&n).expect("it runs");
        let ends = attempt.legs.iter().map(|leg| leg.terms.deadline).min();
        let left = time_until(ends.expect("an attempt has legs"), log);
        let may_extend = attempt.has_open_ended();
        let at = |share: u64| tick.plus(Micros(left.0 / 30 * share));
        self.timers
            .set_timer(Timer::SendDeadline(n), at(SEND_UNTIL));
        self.timers
            .set_timer(Timer::AnswerDeadline(n), at(AWAIT_UNTIL));
        self.timers.set_timer(Timer::LeaseEnd(n), tick.plus(left));
        self.plan_warning(n, at(WARN_AT));
        if may_extend {
            self.timers.set_timer(Timer::Extend(n), at(EXTEND_AT));
        }
    }

    /// Handles the half-way moment of an attempt's leases.
    pub(super) fn on_half_over(&mut self, n: u32) {
        let attempt = self.attempts.get(&n);
        if !attempt.is_some_and(Attempt::is_worth_more_time) {
            return;
        }
        if self.is_buying() {
            let again = self.now.tick.plus(BUYING_PAUSE);
            self.timers.set_timer(Timer::Extend(n), again);
            return;
        }
        let ids = self.attempt_ids();
        self.request_effect(Action::Look { ids }, Wait::LookToExtend(n));
    }

    /// Extends the leases within the rest of the budget, now that the job's cost and escrow are
    /// known.
    pub(super) fn on_looked_to_extend(&mut self, n: u32, answer: Answer) {
        let Answer::Leases(leases) = answer else {
            // Without an answer, the leases end at their present deadlines.
            return;
        };
        let Some(attempt) = self.attempts.get(&n).filter(|it| it.is_worth_more_time()) else {
            return;
        };
        let spending = Spending::from_leases(&leases);
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
            let duration = lease.deadline.saturating_since(lease.start);
            let most = lease.duration_max.min(time_max).saturating_since(duration);
            duration.min(most)
        });
        let passed = self.now.tick.since(self.begun);
        let deadline = self.spec.limits.deadline;
        let of_deadline = deadline.map(|deadline| Millis(deadline.since(passed).0 / 1_000));
        // The market rounds each lease's escrow up.
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
            .map(|lease| (lease.id, lease.deadline.saturating_add(by)))
            .collect();
        for (lease, until) in asked {
            let legs = self.attempts.get_mut(&n).into_iter();
            let mut legs = legs.flat_map(|attempt| &mut attempt.legs);
            if let Some(leg) = legs.find(|leg| leg.terms.lease == lease) {
                leg.asked_until = leg.asked_until.max(until);
            }
            self.submit_command(Command::Extend { lease, by }, Wait::Extend(lease));
        }
    }

    /// Takes the deadlines from the market, because an earlier life may have extended the leases.
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

    /// Takes the market's deadline for the lease of a leg at work.
    pub(super) fn on_prolonged(&mut self, leg: Leg, deadline: Millis) {
        let attempt = self.attempt_mut(leg.attempt);
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
    /// Returns the latest possible end of the lease, as far as its buyer can know.
    pub(super) fn ends_at_most(&self) -> Millis {
        self.terms.deadline.max(self.asked_until)
    }
}

impl Attempt {
    /// Returns whether the length of some part is unknown before it runs.
    fn has_open_ended(&self) -> bool {
        self.plan.parts.iter().any(|part| part.is_open_ended)
    }

    /// Returns whether the length of a leg's part is unknown before it runs.
    pub(super) fn is_open_ended(&self, leg: Leg, part: u32) -> bool {
        let mut parts = self.plan.parts_at(leg.place);
        parts
            .nth(part as usize)
            .is_some_and(|(_, part)| part.is_open_ended)
    }

    /// Returns whether it runs with no losses and no leg to end.
    fn is_worth_more_time(&self) -> bool {
        let is_at_work =
            |leg: &LegState| leg.stage == Stage::Working && leg.limit.is_none() && !leg.has_stalled;
        self.judging == Judging::Running
            && self.failed.is_none()
            && self.stalled.is_none()
            && self.legs.iter().any(is_at_work)
    }
}
