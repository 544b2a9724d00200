//! What happens to a lease between its trade and its settlement.

use crate::accounts::Account;
use crate::command::Accepted;
use crate::event::{Event, OrderEnd};
use crate::ids::{DeviceId, LeaseId, OrderId, TradeId};
use crate::lease::{CloseReason, Lease, LeaseState, Note, NoteState, Parties};
use crate::ledger::Slot;
use crate::order::{Side, Term, Trade};
use crate::refusal::Refusal;
use crate::terms::TermsId;
use crate::units::{Credits, DeviceMicros, Millis, Price, Units};

use super::matching::LiveBid;
use super::resale::spot_key;
use super::{Exchange, Scene, Timer};

/// All that a new lease follows from.
pub(super) struct Opening<'a> {
    pub bid: &'a LiveBid,
    pub ask: OrderId,
    pub device: DeviceId,
    pub provider: Slot,
    pub terms: TermsId,
    pub price: Price,
    pub quantity: Units,
    pub escrow: Credits,
    pub start: Millis,
    pub state: LeaseState,
}

/// The beginning and the end of a lease.
impl Exchange {
    /// Opens a lease and takes its escrow; the units are the caller's to account for.
    pub(super) fn open_new_lease(
        &mut self,
        opening: &Opening<'_>,
        events: &mut Vec<Event>,
    ) -> Trade {
        self.trades_made += 1;
        let lease = self.new_lease(opening);
        let trade = Trade {
            id: TradeId(lease.id.0),
            lease: lease.id,
            bid: lease.bid,
            ask: lease.ask,
            buyer: lease.buyer,
            provider: lease.provider,
            device: lease.device,
            job: lease.job,
            price: lease.price,
            quantity: lease.quantity,
            escrow: lease.escrow,
            start: lease.start,
            deadline: lease.deadline,
        };
        assert!(lease.quantity.0 > 0, "a lease is of something");
        assert!(lease.deadline > lease.start, "a lease has a length");
        debug_assert_ne!(lease.buyer, lease.provider, "nobody trades with itself");
        self.ledger.hold(lease.parties.buyer, lease.escrow);
        self.ledger.get_mut(lease.parties.provider).open_leases += 1;
        let terms = self.books.ask_terms.share(lease.parties.terms);
        self.books.on_lease_opened(self.now, &lease, terms);
        events.push(Event::Traded(trade));
        let (id, active) = (lease.id, lease.state == LeaseState::Active);
        self.leases.push(lease);
        if active {
            self.run_lease(id);
        }
        trade
    }

    fn new_lease(&self, opening: &Opening<'_>) -> Lease {
        let LiveBid { order, terms, job } = opening.bid;
        debug_assert_eq!(order.side(), Side::Bid, "a lease is opened by a bid");
        let ask_terms = self.books.ask_terms.get(opening.terms);
        let duration = terms.duration;
        debug_assert!(duration >= ask_terms.duration_min && duration <= ask_terms.duration_max);
        Lease {
            id: LeaseId(self.trades_made),
            buyer: self.ledger.get(order.slot()).key,
            provider: self.ledger.get(opening.provider).key,
            device: opening.device,
            class: self.books.book(order.detail.book).class,
            model: ask_terms.resources.model.clone(),
            ask: opening.ask,
            bid: order.id,
            job: *job,
            price: opening.price,
            quantity: opening.quantity,
            escrow: opening.escrow,
            cost: Credits::ZERO,
            start: opening.start,
            deadline: opening.start.after(terms.duration),
            term: terms.term,
            notice: ask_terms.notice,
            accepted: DeviceMicros(0),
            silent_notes: 0,
            note: None,
            duration_max: ask_terms.duration_max,
            state: opening.state,
            successor: None,
            resale_ask: None,
            resale: None,
            faulted: false,
            parties: Parties {
                buyer: order.slot(),
                provider: opening.provider,
                book: order.detail.book,
                terms: opening.terms,
            },
        }
    }

    /// From now on the lease's time runs, and if it is spot it can be displaced.
    fn run_lease(&mut self, id: LeaseId) {
        let lease = &self.leases[&id];
        assert_eq!(lease.state, LeaseState::Active, "only an active lease runs");
        debug_assert!(lease.deadline >= self.now, "it has time left");
        self.timers.insert((lease.deadline, Timer::LeaseEnds(id)));
        if lease.term == Term::Spot {
            self.spot.insert(spot_key(lease));
        }
    }

    /// The device is free again; the money stays open for the grace.
    pub(super) fn end_lease(&mut self, id: LeaseId, reason: CloseReason, events: &mut Vec<Event>) {
        let (ended, grace) = (self.now, self.rules.settle_grace);
        self.stop(id, events);
        let lease = self.leases.get_mut(id).expect("the lease is known");
        // A note that is open keeps its deadline.
        let open_until = lease.note.map_or(Millis(0), |note| note.accepted_at);
        let until = ended.after(grace).max(open_until);
        debug_assert!(until >= ended, "a lease closes after its end");
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

    /// A running lease's units go to its successor, or back to the provider's pool.
    pub(super) fn stop(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        let lease = &self.leases[&id];
        assert!(lease.is_running(), "a device is given back once");
        let Lease {
            device,
            quantity,
            successor,
            ..
        } = *lease;
        let provider = lease.parties.provider;
        self.timers.remove(&(lease.ends(), Timer::LeaseEnds(id)));
        self.spot.remove(&spot_key(lease));
        self.drop_resale(id, events);
        match successor {
            Some(next) => self.start_next(next, events),
            None => self.ledger.get_mut(provider).take_back(device, quantity),
        }
    }

    /// The lease that waited for the device has it now.
    fn start_next(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        let now = self.now;
        let lease = self.lease_mut(id);
        if !matches!(lease.state, LeaseState::Waiting { .. }) {
            return;
        }
        let duration = lease.deadline.since(lease.start);
        debug_assert!(now <= lease.start, "it starts no later than it was told");
        lease.start = now;
        lease.deadline = now.after(duration);
        lease.state = LeaseState::Active;
        let Lease {
            buyer,
            provider,
            deadline,
            ..
        } = *lease;
        events.push(Event::LeaseStarted {
            lease: id,
            buyer,
            provider,
            deadline,
        });
        self.run_lease(id);
    }

    /// A lease that waited will not start: the one before it ends without a successor.
    pub(super) fn leave_queue(&mut self, behind: LeaseId) {
        debug_assert!(
            self.leases[&behind].successor.is_some(),
            "it was waited for"
        );
        self.lease_mut(behind).successor = None;
    }

    fn drop_resale(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        if let Some(ask) = self.leases[&id].resale_ask {
            self.drop_order(ask, OrderEnd::Cancelled, events);
        }
    }

    pub(super) fn give_notice(
        &mut self,
        id: LeaseId,
        at: Millis,
        reason: CloseReason,
        events: &mut Vec<Event>,
    ) {
        assert!(at >= self.now, "notice is given beforehand");
        self.drop_resale(id, events);
        let lease = self.leases.get_mut(id).expect("the lease is known");
        assert_eq!(lease.state, LeaseState::Active, "notice is given once");
        debug_assert!(at <= lease.deadline, "and never makes a lease longer");
        self.timers.remove(&(lease.ends(), Timer::LeaseEnds(id)));
        self.spot.remove(&spot_key(lease));
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
}

/// Usage notes, and the parties' ways out.
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
        let possible = lease.usage_notable(self.now, self.rules.note_span);
        if usage > possible {
            return Err(Refusal::UsageOver {
                claimed: usage,
                possible,
            });
        }
        self.check_note_time(lease)?;
        let accepted_at = self.now.after(self.rules.note_deadline);
        debug_assert!(usage > lease.accepted, "a note says more than the last");
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
        let (_, note) = self.noted_lease(scene, id)?;
        if note.usage != usage {
            return Err(Refusal::NoteDiffers {
                noted: note.usage,
                accepted: usage,
            });
        }
        self.set_note(id, None);
        let lease = self.lease_mut(id);
        debug_assert!(usage > lease.accepted, "what is accepted only grows");
        lease.accepted = usage;
        lease.silent_notes = 0;
        self.tell_note(id, usage, NoteState::Accepted, scene.events);
        Ok(Accepted::NoteAccepted)
    }

    pub(super) fn accept_silently(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        let note = self.leases[&id].note.expect("a note's timer has a note");
        self.set_note(id, None);
        assert!(note.accepted_at <= self.now, "the buyer had its time");
        let lease = self.lease_mut(id);
        debug_assert!(note.usage > lease.accepted, "what is accepted only grows");
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
        let (lease, _) = self.noted_lease(scene, id)?;
        let provider = lease.parties.provider;
        self.ledger.get_mut(provider).reputation.on_disputed();
        self.ledger.get_mut(scene.slot).reputation.on_disputed();
        Ok(self.close_on_accepted(id, CloseReason::Disputed, scene.events))
    }

    pub(super) fn on_end(
        &mut self,
        scene: &mut Scene<'_>,
        id: LeaseId,
    ) -> Result<Accepted, Refusal> {
        let lease = self.running_lease(id)?;
        must_be_buyer(lease, scene)?;
        if let LeaseState::Waiting { .. } = lease.state {
            return Ok(self.close_on_accepted(id, CloseReason::BuyerEnded, scene.events));
        }
        let at = self.now;
        self.end_lease(id, CloseReason::BuyerEnded, scene.events);
        Ok(Accepted::Ending { at })
    }

    pub(super) fn on_give_up(
        &mut self,
        scene: &mut Scene<'_>,
        id: LeaseId,
    ) -> Result<Accepted, Refusal> {
        self.sold_lease(scene, id)?;
        self.ledger.get_mut(scene.slot).reputation.on_gave_up();
        Ok(self.close_on_accepted(id, CloseReason::GaveUp, scene.events))
    }

    pub(super) fn on_reclaim(
        &mut self,
        scene: &mut Scene<'_>,
        id: LeaseId,
    ) -> Result<Accepted, Refusal> {
        let lease = self.sold_lease(scene, id)?;
        if lease.term == Term::Firm {
            return Err(Refusal::LeaseFirm {
                lease: id,
                deadline: lease.deadline,
            });
        }
        if lease.state != LeaseState::Active {
            return Err(Refusal::LeaseEnded {
                lease: id,
                at: lease.ends(),
            });
        }
        let at = self.now.after(lease.notice).min(lease.deadline);
        self.give_notice(id, at, CloseReason::Reclaimed, scene.events);
        Ok(Accepted::Ending { at })
    }

    pub(super) fn set_note(&mut self, id: LeaseId, note: Option<Note>) {
        let lease = self.leases.get_mut(id).expect("the lease is known");
        if let Some(old) = std::mem::replace(&mut lease.note, note) {
            self.timers.remove(&(old.accepted_at, Timer::Note(id)));
        }
        if let Some(new) = note {
            debug_assert!(new.accepted_at >= self.now, "the buyer has time to answer");
            self.timers.insert((new.accepted_at, Timer::Note(id)));
        }
    }

    /// A lease that is due does not close before its open note is answered.
    fn put_off_closing(&mut self, id: LeaseId, at: Millis) {
        let lease = self.leases.get_mut(id).expect("the lease is known");
        if let LeaseState::Due { until, .. } = &mut lease.state
            && *until < at
        {
            self.timers.remove(&(*until, Timer::LeaseCloses(id)));
            debug_assert!(at >= self.now, "it closes later");
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
        self.leases.get_mut(id).expect("the lease is known")
    }

    /// A lease that is not closed.
    pub(super) fn open_lease(&self, id: LeaseId) -> Result<&Lease, Refusal> {
        let lease = self
            .leases
            .get(id)
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

    /// A lease with a note that its buyer, who speaks, may answer.
    fn noted_lease(&self, scene: &Scene<'_>, id: LeaseId) -> Result<(&Lease, Note), Refusal> {
        let lease = self.open_lease(id)?;
        must_be_buyer(lease, scene)?;
        let note = lease.note.ok_or(Refusal::NoteNone { lease: id })?;
        Ok((lease, note))
    }

    /// A lease on which its provider, who speaks, still owes the device.
    fn sold_lease(&self, scene: &Scene<'_>, id: LeaseId) -> Result<&Lease, Refusal> {
        let lease = self.running_lease(id)?;
        must_be_provider(lease, scene)?;
        Ok(lease)
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

pub(super) fn must_be_buyer(lease: &Lease, scene: &Scene<'_>) -> Result<(), Refusal> {
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
