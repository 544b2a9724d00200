//! Limits an attempt after one of its legs is lost. A leg is one lease with its provider. This file
//! ends the lease of the lost leg and tells the others how many parts they can still run, because
//! parts that need lost values cannot run. It also ends the attempt when its time to send or to
//! wait is over.

use std::collections::BTreeMap;

use super::action::Action;
use super::event::Leg;
use super::facts::Fact;
use super::reason::{Loss, Reason, WorkUnit};
use super::running::max_work_time;
use super::state::{Attempt, Progress, Stage, Wait};
use super::timer::Timer;
use super::{JobCore, lineage};
use crate::clock::Micros;
use crate::lease::BuyerMessage;

impl JobCore {
    /// Loses a leg whose provider can still report, because of what the buyer saw.
    pub(super) fn lose_reporting_leg(&mut self, leg: Leg, loss: Loss) {
        if let Some(provider) = self.talking_leg(leg).map(|state| state.terms.provider) {
            self.lose_leg(leg, Reason::Lost { provider, loss });
        }
    }

    /// Handles a leg whose provider gives no result: ends its lease, and lets the others run what
    /// they still can. If the provider began, made nothing and cannot blame the input, the core
    /// disputes the lease, because the market pays a usage note that nobody disputes.
    pub(super) fn lose_leg(&mut self, leg: Leg, reason: Reason) {
        let is_blamed = reason.bad_input().is_none();
        let attempt = self.attempt_mut(leg.attempt);
        attempt.failed.get_or_insert(reason);
        let state = attempt.leg(leg.place);
        let is_disputed = is_blamed && state.has_started && state.outputs_made.is_empty();
        self.end_or_dispute_leg(leg, is_disputed);
        self.limit_others(leg.attempt);
    }

    /// Gives up a leg: ends its lease, or disputes it.
    pub(super) fn end_or_dispute_leg(&mut self, leg: Leg, is_disputed: bool) {
        self.mark_leg_lost(leg);
        let lease = self.attempt_mut(leg.attempt).leg(leg.place).terms.lease;
        match is_disputed {
            true => self.dispute_lease(lease),
            false => self.end_lease(lease),
        }
    }

    /// Gives up a leg, and ends its lease.
    pub(super) fn end_leg_unpaid(&mut self, leg: Leg) {
        self.end_or_dispute_leg(leg, false);
    }

    /// Marks a leg as lost, and closes its stream and its timers.
    fn mark_leg_lost(&mut self, leg: Leg) {
        self.timers.stop_all(|timer| timer.leg() == Some(leg));
        let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
        let before = state.stage;
        assert!(
            before <= Stage::Doubted,
            "a paid or refused leg cannot be lost"
        );
        state.stage = Stage::Lost;
        if before != Stage::Sold {
            self.push_effect(Action::CloseStream { leg });
        }
    }

    /// Limits the other legs after a leg is lost or ends early, because they cannot run parts that
    /// would read its results.
    pub(super) fn limit_others(&mut self, n: u32) {
        let attempt = self.attempt_mut(n);
        attempt.no_more = true;
        let mut limits: Vec<u32> = vec![0; attempt.legs.len()];
        if let ([request], true) = (&attempt.sent[..], attempt.has_begun) {
            let mut ended = BTreeMap::new();
            for place in attempt.places() {
                let leg = attempt.leg(place);
                if leg.stage.is_over() || leg.has_stalled {
                    let is_lost = leg.stage == Stage::Lost;
                    let run = if is_lost { 0 } else { leg.parts_made(*request) };
                    ended.insert(place, run);
                }
            }
            limits = lineage::runnable_counts(&attempt.plan, &ended);
        }
        for (place, parts) in (0..).zip(limits) {
            self.limit_leg(Leg { attempt: n, place }, parts);
        }
    }

    /// Limits a leg to its first `parts` parts of each request. Gives it up if none of its work
    /// can still be used.
    pub(super) fn limit_leg(&mut self, leg: Leg, parts: u32) {
        let attempt = self.attempt_mut(leg.attempt);
        let state = &mut attempt.legs[leg.place as usize];
        if state.stage.is_over() || state.has_stalled || state.limit.is_some_and(|it| it <= parts) {
            return;
        }
        let all = attempt.plan.parts_at(leg.place).count();
        if parts as usize >= all {
            return self.catch_up(leg);
        }
        let has_made = !state.outputs_made.is_empty();
        let is_working = state.stage == Stage::Working;
        state.limit = Some(parts);
        if is_working {
            self.push_effect(Action::SendMessage {
                leg,
                message: BuyerMessage::Limit { parts },
            });
        }
        if is_working && (parts > 0 || has_made) {
            let start = self.attempt_mut(leg.attempt).leg(leg.place).start.as_ref();
            let run = start.expect("the core built its work").parts[..parts as usize].iter();
            let expected = run.fold(Micros(0), |sum, part| sum.plus(part.expected));
            let sizes = self.requests.values().map(|asked| asked.size);
            let expected = Micros(expected.0.saturating_mul(sizes.max().unwrap_or(1).into()));
            self.set_last_result_timer(leg, max_work_time(expected));
        } else {
            self.end_leg_unpaid(leg);
        }
    }

    pub(super) fn set_last_result_timer(&mut self, leg: Leg, time: Micros) {
        let until = self.now.tick.plus(time);
        self.timers.set_timer(Timer::LastResult(leg), until);
    }

    /// Ends an attempt whose work has not begun, because of a fault.
    pub(super) fn abandon_attempt(&mut self, n: u32, reason: Reason) {
        self.attempt_mut(n).failed.get_or_insert(reason);
        self.skip_attempt(n);
    }

    /// Ends an attempt whose work has not begun, and records that it was skipped.
    pub(super) fn skip_attempt(&mut self, n: u32) {
        for place in self.attempt_mut(n).places() {
            self.end_leg_unpaid(Leg { attempt: n, place });
        }
        self.attempt_mut(n).no_more = true;
        // Its leases have ended, so no money of it is open.
        let (escrow, until) = Default::default();
        let skipped = Fact::Skipped { n, escrow, until };
        self.record_facts(vec![skipped], Wait::RecordSkipped(n));
    }

    /// Handles the end of the time to send: the attempt must not send another request.
    pub(super) fn on_send_deadline(&mut self, n: u32) {
        let attempt = self.attempt_mut(n);
        attempt.requests_max = attempt.sent.len();
        self.fill_window(n);
    }

    /// Stops the attempt because its leases are about to end: the next attempt does the rest. If
    /// this one answered nothing, a leg that is behind counts as lost, so that the next one
    /// differs.
    pub(super) fn on_answer_deadline(&mut self, n: u32) {
        let attempt = self.attempt_mut(n);
        if attempt.legs.iter().all(|leg| leg.stage.is_over()) {
            return;
        }
        let next = attempt
            .sent
            .iter()
            .find(|it| attempt.progress[it] < Progress::Comparing);
        let is_silent = |place: &u32| {
            let leg = attempt.leg(*place);
            let is_behind = match (attempt.has_begun, next) {
                (false, _) => leg.stage < Stage::Accepted,
                (true, None) => false,
                (true, Some(request)) => {
                    let parts = attempt.plan.parts_at(*place).count();
                    (leg.parts_made(*request) as usize) < parts
                }
            };
            !leg.stage.is_over() && is_behind
        };
        let slow = attempt.places().find(is_silent);
        let is_fruitless = attempt.answer_count() == 0;
        match slow.filter(|_| is_fruitless) {
            Some(place) => self.lose_reporting_leg(Leg { attempt: n, place }, Loss::Deadline),
            None => {
                for place in self.attempt_mut(n).places() {
                    self.attempt_mut(n).no_more = true;
                    self.limit_leg(Leg { attempt: n, place }, 0);
                }
            }
        }
    }

    /// Handles the end of the leases: every leg whose provider can still report is lost.
    pub(super) fn on_lease_end(&mut self, n: u32) {
        for place in self.attempt_mut(n).places() {
            self.lose_reporting_leg(Leg { attempt: n, place }, Loss::Deadline);
        }
    }
}

impl Attempt {
    /// Returns the reason for a leg whose provider took its device back, with the work that it did.
    pub(super) fn reclaim_reason(&self, place: u32) -> Reason {
        let leg = self.leg(place);
        let parts = self.plan.parts_at(place).count();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (done, all, what) = match &self.sent[..] {
            [only] => (leg.parts_made(*only), count(parts), WorkUnit::Parts),
            sent => {
                let done = sent
                    .iter()
                    .filter(|it| leg.parts_made(**it) as usize == parts);
                (count(done.count()), count(sent.len()), WorkUnit::Requests)
            }
        };
        let provider = leg.terms.provider;
        Reason::Reclaimed {
            provider,
            done,
            all,
            what,
        }
    }
}
