//! What happens to a lease between its trade and its settlement.

use crate::accounts::Account;
use crate::command::Accepted;
use crate::event::Event;
use crate::ids::LeaseId;
use crate::lease::{CloseReason, Lease, LeaseState, Note, NoteState};
use crate::order::Term;
use crate::refusal::Refusal;
use crate::units::{DeviceMicros, Millis};

use super::{Exchange, Scene, Timer};

impl Exchange {
    pub(super) fn on_note(
        &mut self,
        scene: &mut Scene<'_>,
        id: LeaseId,
        usage: DeviceMicros,
    ) -> Result<Accepted, Refusal> {
        let lease = self.open_lease(id)?;
        must_be_provider(lease, scene)?;
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
        let possible = lease.usage_possible(self.now);
        if usage > possible {
            return Err(Refusal::UsageOver {
                claimed: usage,
                possible,
            });
        }
        self.check_note_time(lease)?;
        let accepted_at = self.now.after(self.rules.note_deadline);
        self.set_note(id, Some(Note { usage, accepted_at }));
        self.put_off_closing(id, accepted_at);
        self.tell_note(id, usage, NoteState::Open(accepted_at), scene.events);
        Ok(Accepted::Noted { accepted_at })
    }

    /// After its end a lease takes notes for one grace only, however often that is put off.
    fn check_note_time(&self, lease: &Lease) -> Result<(), Refusal> {
        match lease.state {
            LeaseState::Due { ended, .. } if self.now >= ended.after(self.rules.settle_grace) => {
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
        scene: &mut Scene<'_>,
        id: LeaseId,
        usage: DeviceMicros,
    ) -> Result<Accepted, Refusal> {
        let lease = self.open_lease(id)?;
        must_be_buyer(lease, scene)?;
        let note = lease.note.ok_or(Refusal::NoteNone { lease: id })?;
        if note.usage != usage {
            return Err(Refusal::NoteDiffers {
                noted: note.usage,
                accepted: usage,
            });
        }
        self.set_note(id, None);
        let lease = self.lease_mut(id);
        lease.accepted = usage;
        lease.silent_notes = 0;
        self.tell_note(id, usage, NoteState::Accepted, scene.events);
        Ok(Accepted::NoteAccepted)
    }

    pub(super) fn accept_silently(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        let note = self.leases[&id].note.expect("a note's timer has a note");
        self.set_note(id, None);
        let lease = self.lease_mut(id);
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
        scene: &mut Scene<'_>,
        id: LeaseId,
    ) -> Result<Accepted, Refusal> {
        let lease = self.open_lease(id)?;
        must_be_buyer(lease, scene)?;
        lease.note.ok_or(Refusal::NoteNone { lease: id })?;
        let provider = self.ledger.known(lease.provider);
        self.ledger.get_mut(provider).reputation.on_disputed();
        self.ledger.get_mut(scene.slot).reputation.on_disputed();
        Ok(self.close_on_accepted(id, CloseReason::Disputed, false, scene.events))
    }

    pub(super) fn on_end(
        &mut self,
        scene: &mut Scene<'_>,
        id: LeaseId,
    ) -> Result<Accepted, Refusal> {
        let lease = self.running_lease(id)?;
        must_be_buyer(lease, scene)?;
        let at = self.now;
        self.end_lease(id, CloseReason::BuyerEnded, scene.events);
        Ok(Accepted::Ending { at })
    }

    pub(super) fn on_give_up(
        &mut self,
        scene: &mut Scene<'_>,
        id: LeaseId,
    ) -> Result<Accepted, Refusal> {
        let lease = self.running_lease(id)?;
        must_be_provider(lease, scene)?;
        self.ledger.get_mut(scene.slot).reputation.on_gave_up();
        Ok(self.close_on_accepted(id, CloseReason::GaveUp, false, scene.events))
    }

    pub(super) fn on_reclaim(
        &mut self,
        scene: &mut Scene<'_>,
        id: LeaseId,
    ) -> Result<Accepted, Refusal> {
        let lease = self.running_lease(id)?;
        must_be_provider(lease, scene)?;
        if lease.term == Term::Firm {
            return Err(Refusal::LeaseFirm {
                lease: id,
                deadline: lease.deadline,
            });
        }
        if let LeaseState::Ending { at, .. } = lease.state {
            return Err(Refusal::LeaseEnded { lease: id, at });
        }
        let at = self.now.after(lease.notice).min(lease.deadline);
        self.give_notice(id, at, CloseReason::Reclaimed, scene.events);
        Ok(Accepted::Ending { at })
    }

    fn give_notice(
        &mut self,
        id: LeaseId,
        at: Millis,
        reason: CloseReason,
        events: &mut Vec<Event>,
    ) {
        let lease = self.leases.get_mut(&id).expect("the lease is known");
        self.timers.remove(&(lease.ends(), Timer::LeaseEnds(id)));
        lease.state = LeaseState::Ending { at, reason };
        self.timers.insert((at, Timer::LeaseEnds(id)));
        let (buyer, provider) = (lease.buyer, lease.provider);
        events.push(Event::LeaseEnding {
            lease: id,
            buyer,
            provider,
            at,
            reason,
        });
    }

    /// Why a lease whose end has come ends.
    pub(super) fn end_reason(&self, id: LeaseId) -> CloseReason {
        match self.leases[&id].state {
            LeaseState::Ending { reason, .. } => reason,
            _ => CloseReason::Deadline,
        }
    }

    /// The device is free again; the money stays open for the grace.
    pub(super) fn end_lease(&mut self, id: LeaseId, reason: CloseReason, events: &mut Vec<Event>) {
        let (ended, grace) = (self.now, self.rules.settle_grace);
        self.stop(id);
        let lease = self.leases.get_mut(&id).expect("the lease is known");
        // A note that is open keeps its deadline.
        let open_until = lease.note.map_or(Millis(0), |note| note.accepted_at);
        let until = ended.after(grace).max(open_until);
        lease.state = LeaseState::Due {
            ended,
            until,
            reason,
        };
        self.timers.insert((until, Timer::LeaseCloses(id)));
        let (buyer, provider) = (lease.buyer, lease.provider);
        events.push(Event::LeaseEnded {
            lease: id,
            buyer,
            provider,
            until,
            reason,
        });
    }

    /// Gives a running lease's units back to the provider's pool.
    pub(super) fn stop(&mut self, id: LeaseId) {
        let lease = &self.leases[&id];
        assert!(lease.is_running(), "a device is given back once");
        self.timers.remove(&(lease.ends(), Timer::LeaseEnds(id)));
        let provider = self.ledger.known(lease.provider);
        let (device, quantity) = (lease.device, lease.quantity);
        self.ledger.get_mut(provider).take_back(device, quantity);
    }

    pub(super) fn set_note(&mut self, id: LeaseId, note: Option<Note>) {
        let lease = self.leases.get_mut(&id).expect("the lease is known");
        if let Some(old) = std::mem::replace(&mut lease.note, note) {
            self.timers.remove(&(old.accepted_at, Timer::Note(id)));
        }
        if let Some(new) = note {
            self.timers.insert((new.accepted_at, Timer::Note(id)));
        }
    }

    /// A lease that is due does not close before its open note is answered.
    fn put_off_closing(&mut self, id: LeaseId, at: Millis) {
        let lease = self.leases.get_mut(&id).expect("the lease is known");
        if let LeaseState::Due { until, .. } = &mut lease.state
            && *until < at
        {
            self.timers.remove(&(*until, Timer::LeaseCloses(id)));
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

    pub(super) fn lease_mut(&mut self, id: LeaseId) -> &mut Lease {
        self.leases.get_mut(&id).expect("the lease is known")
    }

    /// A lease that is not closed.
    pub(super) fn open_lease(&self, id: LeaseId) -> Result<&Lease, Refusal> {
        let lease = self
            .leases
            .get(&id)
            .ok_or(Refusal::LeaseUnknown { lease: id })?;
        match lease.state {
            LeaseState::Closed { at, paid, .. } => Err(Refusal::LeaseClosed {
                lease: id,
                closed_at: at,
                paid,
            }),
            _ => Ok(lease),
        }
    }

    /// A lease whose device is the buyer's now.
    fn running_lease(&self, id: LeaseId) -> Result<&Lease, Refusal> {
        let lease = self.open_lease(id)?;
        match lease.state {
            LeaseState::Due { ended, .. } => Err(Refusal::LeaseEnded {
                lease: id,
                at: ended,
            }),
            _ => Ok(lease),
        }
    }
}

fn must_be_buyer(lease: &Lease, scene: &Scene<'_>) -> Result<(), Refusal> {
    if lease.buyer != scene.key {
        return Err(Refusal::BuyerOnly {
            lease: lease.id,
            buyer: lease.buyer,
        });
    }
    Ok(())
}

fn must_be_provider(lease: &Lease, scene: &Scene<'_>) -> Result<(), Refusal> {
    if lease.provider != scene.key {
        return Err(Refusal::ProviderOnly {
            lease: lease.id,
            provider: lease.provider,
        });
    }
    Ok(())
}

impl Account {
    /// Device units on lease now, over all pools.
    pub fn units_leased(&self) -> u64 {
        self.pools
            .values()
            .map(|pool| u64::from(pool.leased.0))
            .sum()
    }
}
