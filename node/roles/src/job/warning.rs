//! Warns the caller of a session before its leases end.
//!
//! The states of a session end with its leases. A caller that wants them must ask for them with its
//! last request, so the core warns it while the attempt can still send that request, have it
//! answered and fetch its states. How long this takes follows from the pace of the answers so far,
//! which can be far below the plan's.

use super::JobCore;
use super::action::Action;
use super::state::Progress;
use super::timer::Timer;
use crate::clock::Micros;

impl JobCore {
    /// Notes that an answer is here.
    pub(super) fn note_answer(&mut self, n: u32) {
        let now = self.now.tick;
        let attempt = self.attempt_mut(n);
        let is_next_begun = attempt.progress.values().any(|it| *it < Progress::Here);
        attempt.warning.note_answer(now, is_next_begun);
        self.set_warning_timer(n);
    }

    /// Has an attempt's caller be warned at a moment, or earlier if its answers are slow.
    pub(super) fn plan_warning(&mut self, n: u32, latest: Micros) {
        self.attempt_mut(n).warning.latest = latest;
        self.set_warning_timer(n);
    }

    fn set_warning_timer(&mut self, n: u32) {
        let warning = self.attempts[&n].warning;
        let moments =
            [Timer::SendDeadline(n), Timer::AnswerDeadline(n)].map(|it| self.timers.moment(it));
        if let [Some(send_until), Some(await_until)] = moments
            && self.spec.sequences > 0
            && !warning.is_over
        {
            let moment = warning.moment(send_until, await_until, self.spec.window);
            // If the answers are too slow for that moment, it is now.
            let moment = moment.max(self.now.tick);
            self.timers.set_timer(Timer::Warn(n), moment);
        }
    }

    /// Warns the caller that the leases end soon.
    pub(super) fn on_warning_due(&mut self, n: u32) {
        let attempt = self.attempt_mut(n);
        attempt.warning.is_over = true;
        if !attempt.no_more {
            self.push_effect(Action::Warn);
        }
    }
}
