//! Work that takes long is begun in the log, and paid as it goes: its provider notes what was used.

use souk_market::{Command, Millis, Note};

use super::JobCore;
use super::event::{Answer, CommandError, Leg};
use super::reason::Loss;
use super::running::{START_AFTER, until};
use super::state::{Stage, Timer, Wait};
use crate::clock::Micros;

/// The share of a note's time that is kept for answering it, and the most that is.
const ANSWERED_SHARE: u64 = 3;
const ANSWERED_WITHIN: Millis = Millis(10_000);

impl JobCore {
    /// Tells the log that the work of a leg has begun: from now on its provider may note usage.
    pub(super) fn start_work(&mut self, leg: Leg) {
        let Some(lease) = self.talking(leg).map(|state| state.terms.lease) else {
            return;
        };
        self.attempt(leg.attempt).legs[leg.place as usize].has_started = true;
        self.command(Command::StartWork { lease }, Wait::StartWork(leg));
    }

    pub(super) fn on_work_started(&mut self, leg: Leg, answer: Answer) {
        let is_lost = matches!(answer, Answer::Commanded(Err(CommandError::Unreachable(_))));
        if is_lost && self.attempts.contains_key(&leg.attempt) && self.talking(leg).is_some() {
            let again = self.now.tick.plus(START_AFTER);
            self.timers.set(Timer::Start(leg), again);
        }
    }

    /// The legs at work whose notes are answered.
    pub(super) fn paid_as_they_go(&self) -> impl Iterator<Item = (Leg, souk_market::LeaseId)> {
        self.attempts.iter().flat_map(|(n, attempt)| {
            let legs = (0..).zip(&attempt.legs);
            let legs = legs.filter(|(_, leg)| leg.has_started && leg.stage.is_talking());
            legs.map(|(place, leg)| (Leg { attempt: *n, place }, leg.terms.lease))
        })
    }

    /// A provider at work has noted what it used: the market allows no more than there was time,
    /// and before it was told to go it can have used nothing. A note is accepted as late as may be:
    /// who gives nothing in the time that was planned is refused before.
    pub(super) fn on_noted(&mut self, leg: Leg, note: Note) {
        let moment = self
            .now
            .tick
            .plus(answer_within(note.accepted_at, self.now.log));
        let state = &mut self.attempt(leg.attempt).legs[leg.place as usize];
        if state.noted.replace(note) == Some(note) {
            return;
        }
        if state.stage < Stage::Working && state.stage != Stage::Asked {
            return self.lose_for(leg, Loss::Confused);
        }
        self.timers.set(Timer::Accept(leg), moment);
    }

    /// A note of a leg at work is about to be accepted by silence, which ends a lease in the end.
    pub(super) fn accept_note(&mut self, leg: Leg) {
        let Some(state) = self.talking(leg) else {
            return;
        };
        let (lease, noted) = (state.terms.lease, state.noted);
        if let Some(Note { usage, .. }) = noted {
            let accept = Command::AcceptNote { lease, usage };
            self.command(accept, Wait::AcceptNote(lease));
        }
    }
}

/// How long the answer to a note may wait.
pub(super) fn answer_within(accepted_at: Millis, now: Millis) -> Micros {
    let left = accepted_at.since(now);
    let kept = Millis((left.0 / ANSWERED_SHARE).min(ANSWERED_WITHIN.0));
    until(Millis(left.0 - kept.0), Millis(0))
}
