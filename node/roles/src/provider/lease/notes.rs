//! Files usage notes: statements in the log of the device time that a lease at work has used so
//! far, so that the provider risks at most one note's worth. If the market accepts no further note,
//! because the buyer has not reported the begin of the work or answers no notes, the core begins no
//! more work.

use souk_market::{Command, DeviceMicros, Refusal};

use super::*;
use crate::provider::event::NotDone;

/// The period of notes. A note adds at most five minutes of device time, and silence accepts it
/// after one: usage until then goes into the next.
const NOTE_PERIOD: Micros = Micros::from_seconds(240);

/// When the core files the first note. By then a buyer should have reported the begin of the work;
/// one that does not will get no more work.
const FIRST_NOTE: Micros = Micros::from_seconds(30);

impl LeaseCore {
    pub(super) fn note_later(&self, shared: &mut SharedState) {
        shared.wake_in(Timer::Note(self.id()), FIRST_NOTE);
    }

    /// Notes the usage so far.
    pub(in crate::provider) fn on_note_due(&self, shared: &mut SharedState) {
        let since = Micros::from_millis(shared.now.log.saturating_since(self.started).0);
        if self.lease.work_started && since < NOTE_PERIOD {
            let left = Micros(NOTE_PERIOD.0 - since.0);
            return shared.wake_in(Timer::Note(self.id()), left);
        }
        let usage = match self.start.is_tab() {
            // A buyer disputes an answer that it does not have yet. Tokens of a fast engine cost
            // more time than there was.
            true => self.bill.known_time(&self.lease).min(DeviceMicros(since.0)),
            false => self.device_time_used(shared.now.tick),
        };
        if usage > self.lease.accepted && self.lease.note.is_none() {
            self.note_usage(shared, usage);
        }
        shared.wake_in(Timer::Note(self.id()), NOTE_PERIOD);
    }

    fn note_usage(&self, shared: &mut SharedState, usage: DeviceMicros) {
        let lease = self.id();
        let command = Command::NoteUsage { lease, usage };
        shared.request_effect(Wait::Note(lease), Action::Command(Box::new(command)));
    }

    /// Returns the device time so far. A run under way counts at most its expected time, and counts
    /// as 0 after an unanswered note: a buyer pays only once for work it has not seen.
    fn device_time_used(&self, now: Micros) -> DeviceMicros {
        let is_answered = self.lease.silent_notes == 0;
        let unended = self.runs.iter();
        let unended = unended.filter(|run| is_answered && run.ended.is_none());
        let so_far = unended.map(|run| {
            let expected = self.start.parts[run.part as usize].expected;
            Micros(now.0.saturating_sub(run.began.0)).min(expected)
        });
        DeviceMicros(so_far.fold(self.bill.busy(), Micros::plus).0)
    }

    /// Handles the market's result for a note.
    pub(in crate::provider) fn on_noted(
        &mut self,
        shared: &mut SharedState,
        noted: Result<(), NotDone>,
    ) -> Option<End> {
        match noted {
            Err(NotDone::Refused(Refusal::UsageOver { possible, .. }))
                if possible > self.lease.accepted =>
            {
                self.note_usage(shared, possible);
                if self.start.is_tab() && self.lease.work_started {
                    // The log's clock runs late, or earlier notes were not accepted yet.
                    return None;
                }
                let why = "its buyer answers no notes, or did not say that the work began";
                self.stall_work(shared, Failure::Lease(why.to_owned()));
                return self.pump_runs(shared);
            }
            // No buyer would pay for more of it.
            Err(NotDone::Refused(
                refusal @ (Refusal::WorkUnstarted { .. } | Refusal::UsageOver { .. }),
            )) => {
                self.stall_work(shared, Failure::Lease(refusal.to_string()));
                return self.pump_runs(shared);
            }
            // The next note will include this usage.
            Err(NotDone::Refused(_) | NotDone::Uncertain(_)) | Ok(()) => {}
        }
        None
    }
}
