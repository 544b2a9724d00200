//! What a lease at work has used so far is noted in the log, so that never more than one note's
//! worth is at risk. Nothing more is begun where the market lets nothing more be noted: its buyer
//! has not said that the work began, or answers no notes.

use souk_market::{Command, DeviceMicros, Refusal};

use super::*;
use crate::provider::event::NotDone;

/// So often. A note adds five minutes of device time at most, and silence accepts it after one:
/// what was used by then is within the next.
const NOTE_PERIOD: Micros = Micros::seconds(240);

/// When the first note is filed: by then a buyer has long said that the work began. Who takes work
/// and does not say so gets no more of it.
const FIRST_NOTE: Micros = Micros::seconds(30);

impl LeaseCore {
    pub(super) fn note_later(&self, shared: &mut SharedState) {
        shared.wake_in(Timer::Note(self.id()), FIRST_NOTE);
    }

    /// It is time to note what was used.
    pub(in crate::provider) fn on_note_due(&self, shared: &mut SharedState) {
        let since = Micros::millis(shared.now.log.since(self.started).0);
        if self.lease.work_started && since < NOTE_PERIOD {
            let left = Micros(NOTE_PERIOD.0 - since.0);
            return shared.wake_in(Timer::Note(self.id()), left);
        }
        let usage = self.used(shared.now.tick);
        if usage > self.lease.accepted && self.lease.note.is_none() {
            self.note(shared, usage);
        }
        shared.wake_in(Timer::Note(self.id()), NOTE_PERIOD);
    }

    fn note(&self, shared: &mut SharedState, usage: DeviceMicros) {
        let lease = self.id();
        let command = Command::NoteUsage { lease, usage };
        shared.ask(Wait::Note(lease), Action::Command(Box::new(command)));
    }

    /// Device time so far: of a run that goes on no more than was expected of it, and nothing where
    /// a note was left unanswered: a buyer pays for what it saw nothing of once and no more.
    fn used(&self, now: Micros) -> DeviceMicros {
        let is_answered = self.lease.silent_notes == 0;
        let unended = self.runs.iter();
        let unended = unended.filter(|run| is_answered && run.ended.is_none());
        let so_far = unended.map(|run| {
            let expected = self.start.parts[run.part as usize].expected;
            Micros(now.0.saturating_sub(run.began.0)).min(expected)
        });
        DeviceMicros(so_far.fold(self.bill.busy(), Micros::plus).0)
    }

    /// What the market made of a note.
    pub(in crate::provider) fn on_noted(
        &mut self,
        shared: &mut SharedState,
        noted: Result<(), NotDone>,
    ) -> Option<End> {
        match noted {
            Err(NotDone::Refused(Refusal::UsageOver { possible, .. }))
                if possible > self.lease.accepted =>
            {
                self.note(shared, possible);
                let why = "its buyer answers no notes, or did not say that the work began";
                self.stall(shared, Failure::Lease(why.to_owned()));
                return self.pump(shared);
            }
            // Nobody would pay for more of it.
            Err(NotDone::Refused(
                refusal @ (Refusal::WorkUnstarted { .. } | Refusal::UsageOver { .. }),
            )) => {
                self.stall(shared, Failure::Lease(refusal.to_string()));
                return self.pump(shared);
            }
            // What was not noted now is noted with what comes.
            Err(NotDone::Refused(_) | NotDone::Uncertain(_)) | Ok(()) => {}
        }
        None
    }
}
