//! Handles usage notes: a provider states in the log how much of a lease was used, and the buyer
//! accepts, disputes or stays silent.
//!
//! If the buyer stays silent, it pays for work whose beginning it has signed, and before that for
//! at most a few seconds, which a rule states: so a provider gets paid for short work whose buyer
//! took the result and left. Module `reserve` describes the beginning of work and the price of
//! holding a device without using it.

use crate::command::Acceptance;
use crate::event::Event;
use crate::ids::LeaseId;
use crate::lease::{CloseReason, Lease, LeaseState, Note, NoteState};
use crate::refusal::Refusal;
use crate::units::{DeviceMicros, Millis};

use super::leases::{must_be_buyer, must_be_provider};
use super::{Context, Exchange, Timer};

impl Exchange {
    pub(super) fn on_note(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
        usage: DeviceMicros,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.open_lease(id)?;
        must_be_provider(lease, context)?;
        let possible = lease.usage_notable(self.now, &self.rules);
        if !lease.work_started && lease.accepted >= possible {
            return Err(Refusal::WorkUnstarted { lease: id });
        }
        if let Some(Note { accepted_at, .. }) = lease.note {
            return Err(Refusal::NoteOpen {
                lease: id,
                accepted_at,
            });
        }
        if usage <= lease.accepted {
            return Err(Refusal::UsageStale {
                claimed: usage,
                accepted: lease.accepted,
            });
        }
        if usage > possible {
            return Err(Refusal::UsageOver {
                claimed: usage,
                possible,
            });
        }
        self.check_note_time(lease)?;
        assert!(usage > lease.accepted, "a note says more than the last");
        if let LeaseState::Due { reason, .. } = lease.state {
            self.lease_mut(id).claimed = true;
            if reason == CloseReason::Disputed {
                self.lease_mut(id).refused = usage;
                return Ok(self.close_on_accepted(id, reason, context.events));
            }
        }
        let accepted_at = self.now.saturating_add(self.rules.note_deadline);
        assert!(accepted_at >= self.now, "the buyer has time to answer");
        self.set_note(id, Some(Note { usage, accepted_at }));
        self.put_off_closing(id, accepted_at);
        self.tell_note(id, usage, NoteState::Open(accepted_at), context.events);
        Ok(Acceptance::Noted { accepted_at })
    }

    /// Checks that a lease can still take notes: after its end, only for one grace period, however
    /// often the market postpones its close.
    fn check_note_time(&self, lease: &Lease) -> Result<(), Refusal> {
        match lease.state {
            LeaseState::Due { ended, .. }
                if self.now >= ended.saturating_add(self.rules.settle_grace) =>
            {
                Err(Refusal::LeaseEnded {
                    lease: lease.id,
                    at: ended,
                })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn on_accept(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
        usage: DeviceMicros,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.open_lease(id)?;
        must_be_buyer(lease, context)?;
        let note = lease.note.ok_or(Refusal::NoteNone { lease: id })?;
        if note.usage != usage {
            return Err(Refusal::NoteDiffers {
                noted: note.usage,
                accepted: usage,
            });
        }
        self.set_note(id, None);
        let lease = self.lease_mut(id);
        assert!(usage > lease.accepted, "what is accepted only grows");
        (lease.accepted, lease.agreed) = (usage, usage);
        lease.silent_notes = 0;
        self.tell_note(id, usage, NoteState::Accepted, context.events);
        Ok(Acceptance::NoteAccepted)
    }

    pub(super) fn accept_silently(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        let note = self.leases[&id].note.expect("a note's timer has a note");
        self.set_note(id, None);
        assert!(note.accepted_at <= self.now, "the buyer had its time");
        let lease = self.lease_mut(id);
        assert!(note.usage > lease.accepted, "what is accepted only grows");
        lease.accepted = note.usage;
        lease.silent_notes = lease.silent_notes.saturating_add(1);
        let (silent, running) = (lease.silent_notes, lease.is_running());
        self.tell_note(id, note.usage, NoteState::Silent, events);
        if running && silent >= self.rules.silent_notes_max {
            self.end_lease(id, CloseReason::BuyerSilent, events);
        }
    }

    pub(super) fn on_dispute(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.open_lease(id)?;
        must_be_buyer(lease, context)?;
        let (provider, note, state) = (lease.parties.provider, lease.note, lease.state);
        assert!(provider != context.slot, "nobody trades with itself");
        if let LeaseState::Due {
            ended,
            reason: CloseReason::Disputed,
            ..
        } = state
        {
            return Ok(Acceptance::Ending { at: ended });
        }
        self.ledger.get_mut(provider).reputation.on_disputed();
        self.ledger.get_mut(context.slot).reputation.on_disputed();
        if let Some(note) = note {
            let lease = self.lease_mut(id);
            (lease.claimed, lease.refused) = (true, note.usage);
            return Ok(self.close_on_accepted(id, CloseReason::Disputed, context.events));
        }
        match state {
            LeaseState::Due { ended, until, .. } => {
                self.lease_mut(id).state = LeaseState::Due {
                    ended,
                    until,
                    reason: CloseReason::Disputed,
                };
                Ok(Acceptance::Ending { at: ended })
            }
            LeaseState::Active | LeaseState::Ending { .. } => {
                self.end_lease(id, CloseReason::Disputed, context.events);
                Ok(Acceptance::Ending { at: self.now })
            }
            LeaseState::Waiting { .. } | LeaseState::Closed { .. } => {
                Ok(self.close_on_accepted(id, CloseReason::Disputed, context.events))
            }
        }
    }

    pub(super) fn set_note(&mut self, id: LeaseId, note: Option<Note>) {
        let lease = self.leases.get_mut(id).expect("the lease is known");
        if let Some(old) = std::mem::replace(&mut lease.note, note) {
            assert!(note.is_none(), "one note is open at a time");
            self.timers.remove(&(old.accepted_at, Timer::Note(id)));
        }
        if let Some(new) = note {
            let timed = self.timers.insert((new.accepted_at, Timer::Note(id)));
            assert!(timed, "a note is accepted once");
        }
    }

    /// Postpones the close of a lease that is due until its open note is answered.
    fn put_off_closing(&mut self, id: LeaseId, at: Millis) {
        let lease = self.leases.get_mut(id).expect("the lease is known");
        if let LeaseState::Due { until, .. } = &mut lease.state
            && *until < at
        {
            let timed = self.timers.remove(&(*until, Timer::LeaseCloses(id)));
            assert!(timed && at >= self.now, "it closes, and later");
            *until = at;
            self.timers.insert((at, Timer::LeaseCloses(id)));
        }
    }

    fn tell_note(
        &self,
        id: LeaseId,
        usage: DeviceMicros,
        state: NoteState,
        events: &mut Vec<Event>,
    ) {
        let Lease {
            buyer, provider, ..
        } = self.leases[&id];
        events.push(Event::Note {
            lease: id,
            buyer,
            provider,
            usage,
            state,
        });
    }
}
