//! Pays for work that is still under way. A provider can state the usage of a lease in the log (a
//! usage note), and the market takes the buyer's silence as consent. This file reports the begin of
//! the work to the log, and accepts or disputes each note before silence would accept it.

use souk_market::{Command, Millis, Note};

use super::JobCore;
use super::event::{Answer, CommandError, Leg};
use super::reason::{Loss, Objection, Reason};
use super::running::{START_AFTER, time_until};
use super::state::{LegState, Stage, Wait};
use super::timer::Timer;
use crate::clock::Micros;

/// The share of a note's time that the core keeps for its answer, and the most of it.
const ANSWERED_SHARE: u64 = 3;
const ANSWERED_WITHIN: Millis = Millis(10_000);

/// How long a note waits for its answer in every market.
const NOTE_DEADLINE: Millis = Millis(60_000);

impl JobCore {
    /// Reports to the log that the work of a leg has begun: from now on its provider can note
    /// usage.
    pub(super) fn start_work(&mut self, leg: Leg) {
        let Some(lease) = self.talking_leg(leg).map(|state| state.terms.lease) else {
            return;
        };
        self.attempt_mut(leg.attempt).legs[leg.place as usize].has_started = true;
        self.submit_command(Command::StartWork { lease }, Wait::StartWork(leg));
    }

    pub(super) fn on_work_started(&mut self, leg: Leg, answer: Answer) {
        let is_lost = matches!(answer, Answer::Commanded(Err(CommandError::Unreachable(_))));
        if is_lost && self.attempts.contains_key(&leg.attempt) && self.talking_leg(leg).is_some() {
            let again = self.now.tick.plus(START_AFTER);
            self.timers.set_timer(Timer::Start(leg), again);
        }
    }

    /// Returns the legs whose notes the core answers: those at work, and those whose results are
    /// not judged.
    pub(super) fn paid_as_they_go(&self) -> impl Iterator<Item = (Leg, souk_market::LeaseId)> {
        self.attempts.iter().flat_map(|(n, attempt)| {
            let legs = (0..).zip(&attempt.legs);
            let legs = legs.filter(|(_, leg)| leg.has_started && leg.is_noted());
            legs.map(|(place, leg)| (Leg { attempt: *n, place }, leg.terms.lease))
        })
    }

    /// Handles a provider's note: it must not exceed the usage that the buyer saw, nor the
    /// provider's own receipt. The core accepts a note as late as possible, so that it can first
    /// refuse a provider without results.
    pub(super) fn on_noted(&mut self, leg: Leg, note: Note) {
        let moment = self
            .now
            .tick
            .plus(answer_within(note.accepted_at, self.now.log));
        let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
        if state.last_note.replace(note) == Some(note) {
            return;
        }
        if state.stage < Stage::Working && state.stage != Stage::Asked {
            return self.lose_reporting_leg(leg, Loss::Confused);
        }
        let (stage, receipt) = (state.stage, &state.receipt);
        let is_over_own = receipt
            .as_ref()
            .is_some_and(|it| note.usage > it.body.usage);
        let (noted, seen) = (Micros(note.usage.0), self.payable_time(leg));
        let is_over = is_over_own || noted > seen;
        let loss = Loss::Overnoted { noted, seen };
        match (is_over, stage) {
            (false, _) => self.timers.set_timer(Timer::Note(leg), moment),
            (true, Stage::Finished) => {
                let provider = self.leg_provider(leg);
                self.hold_back(leg, &Reason::Lost { provider, loss });
            }
            (true, _) => self.lose_reporting_leg(leg, loss),
        }
    }

    /// Answers a note before silence would accept it, which ends a lease in time. The core accepts
    /// a note in the log if the provider has made outputs since the last one. A provider without
    /// outputs is paid by silence, which covers one note's span only. The core also accepts the
    /// note of a complete result, if no evidence contradicts it and none is still to come.
    pub(super) fn answer_note(&mut self, leg: Leg) {
        let attempt = self.attempt_mut(leg.attempt);
        let state = attempt.leg(leg.place);
        let (lease, noted) = (state.terms.lease, state.last_note);
        if !state.is_noted() {
            return;
        }
        if state.stage == Stage::Finished && !attempt.is_borne_out(leg.place) {
            let provider = state.terms.provider;
            let objection = Objection::Late;
            let why = Reason::Receipt {
                provider,
                objection,
            };
            return self.hold_back(leg, &why);
        }
        let parts: usize = state.outputs_made.values().map(Vec::len).sum();
        let is_late = state.stage.is_talking() && parts <= state.agreed_parts;
        if let Some(Note { usage, .. }) = noted
            && !is_late
        {
            self.attempt_mut(leg.attempt).legs[leg.place as usize].agreed_parts = parts;
            let accept = Command::AcceptNote { lease, usage };
            self.submit_command(accept, Wait::AcceptNote(lease));
        }
    }

    /// Disputes in the log a usage that silence would pay for. The leg's outputs remain evidence,
    /// and the core uses them if they are right.
    fn hold_back(&mut self, leg: Leg, reason: &Reason) {
        self.attempt_mut(leg.attempt).legs[leg.place as usize].is_disputed = true;
        self.record_refused(leg, reason.to_string());
    }
}

impl LegState {
    /// Returns whether the core answers notes of the leg.
    fn is_noted(&self) -> bool {
        self.stage.is_talking() || (self.stage == Stage::Finished && !self.is_disputed)
    }
}

/// Returns how long the answer to a note can wait, also by a clock that runs late.
pub(super) fn answer_within(accepted_at: Millis, now: Millis) -> Micros {
    let left = accepted_at.saturating_since(now).min(NOTE_DEADLINE);
    let kept = Millis((left.0 / ANSWERED_SHARE).min(ANSWERED_WITHIN.0));
    time_until(Millis(left.0 - kept.0), Millis(0))
}
