//! Opens a lease when a bid and an ask trade, starts its time, and ends it on a command or at its
//! deadline. The end frees the device. The payment stays open until the lease is settled, in
//! `settle`.

use crate::class::Features;
use crate::command::Acceptance;
use crate::event::{Event, OrderEnd};
use crate::ids::{DeviceId, LeaseId, OrderId, Slot, TermsId, TradeId};
use crate::lease::{CloseReason, Lease, LeaseState, Parties};
use crate::order::{Side, Term, Trade};
use crate::refusal::Refusal;
use crate::units::{Count, Credits, DeviceMicros, Millis, Permille, Price, Units};

use super::bid::LiveBid;
use super::{Context, Exchange, Timer, spot_key};

/// The data from which the exchange opens a lease.
pub(super) struct LeaseOpening<'a> {
    pub bid: &'a LiveBid,
    pub notice: Millis,
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
    /// Opens a lease and moves its escrow. The caller must account for the units.
    pub(super) fn open_new_lease(
        &mut self,
        opening: &LeaseOpening<'_>,
        events: &mut Vec<Event>,
    ) -> Trade {
        self.trades_made.count_up();
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
            tokens: lease.tokens,
        };
        assert!(lease.quantity.0 > 0, "a lease is of something");
        assert!(lease.deadline > lease.start, "a lease has a length");
        assert_ne!(lease.buyer, lease.provider, "nobody trades with itself");
        self.ledger
            .hold_in_escrow(lease.parties.buyer, lease.escrow);
        let provider = self.ledger.get_mut(lease.parties.provider);
        provider.open_leases.count_up();
        let buyer = self.ledger.get_mut(lease.parties.buyer);
        buyer.leases_bought.count_up();
        let terms = self.books.ask_terms.add_user(lease.parties.terms);
        self.books.on_lease_opened(self.now, &lease, terms);
        events.push(Event::Traded(trade));
        let (id, active) = (lease.id, lease.state == LeaseState::Active);
        self.leases.push(lease);
        assert_eq!(self.trades_made, id.0, "a lease has its trade's number");
        if active {
            self.run_lease(id);
        }
        trade
    }

    fn new_lease(&self, opening: &LeaseOpening<'_>) -> Lease {
        let LiveBid { order, terms, job } = opening.bid;
        debug_assert_eq!(order.side(), Side::Bid, "a lease is opened by a bid");
        let ask_terms = self.books.ask_terms.get(opening.terms);
        let duration = terms.duration;
        let tokens = ask_terms.resources.tokens;
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
            deadline: opening.start.saturating_add(terms.duration),
            term: terms.term,
            notice: opening.notice,
            fee_basis_points: self.rules.fee_basis_points,
            work_started: false,
            idle: ask_terms.idle.clamp(self.rules.reserve, Permille(1_000)),
            tokens,
            reserved_until: None,
            claimed: false,
            refused: DeviceMicros(0),
            accepted: DeviceMicros(0),
            agreed: DeviceMicros(0),
            silent_notes: 0,
            note: None,
            duration_max: ask_terms.duration_max,
            state: opening.state,
            successor: None,
            resale_ask: None,
            resale: None,
            faulted: false,
            exact: terms.wants.features.has_all(Features::EXACT_1),
            disputed: None,
            parties: Parties {
                buyer: order.slot(),
                provider: opening.provider,
                book: order.detail.book,
                terms: opening.terms,
            },
        }
    }

    /// Starts a lease's time and, for a spot lease, lists it as displaceable.
    fn run_lease(&mut self, id: LeaseId) {
        let lease = &self.leases[&id];
        assert_eq!(lease.state, LeaseState::Active, "only an active lease runs");
        assert!(lease.deadline >= self.now, "it has time left");
        let ends = (lease.deadline, Timer::LeaseEnds(id));
        assert!(self.timers.insert(ends), "a lease ends once");
        if lease.term == Term::Spot {
            let listed = self.spot.insert(spot_key(lease));
            assert!(listed, "a lease is displaceable once");
        }
    }

    /// Ends a lease: its device is free again, and payment stays open for the grace period.
    pub(super) fn end_lease(&mut self, id: LeaseId, reason: CloseReason, events: &mut Vec<Event>) {
        let (ended, grace) = (self.now, self.rules.settle_grace);
        self.stop_lease(id, events);
        let lease = self.leases.get_mut(id).expect("the lease is known");
        // An open note keeps its deadline.
        let open_until = lease.note.map_or(Millis(0), |note| note.accepted_at);
        let until = ended.saturating_add(grace).max(open_until);
        assert!(until >= ended, "a lease closes after its end");
        lease.state = LeaseState::Due {
            ended,
            until,
            reason,
        };
        let closes = (until, Timer::LeaseCloses(id));
        assert!(self.timers.insert(closes), "a lease closes once");
        let (buyer, provider) = (lease.buyer, lease.provider);
        events.push(Event::LeaseEnded {
            lease: id,
            buyer,
            provider,
            until,
            reason,
        });
    }

    /// Passes a running lease's units to its successor, or returns them to the provider's pool.
    pub(super) fn stop_lease(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        let lease = &self.leases[&id];
        assert!(lease.is_running(), "a device is given back once");
        let Lease {
            device,
            quantity,
            successor,
            ..
        } = *lease;
        let provider = lease.parties.provider;
        self.timers
            .remove(&(lease.end_time(), Timer::LeaseEnds(id)));
        self.spot.remove(&spot_key(lease));
        self.drop_reserve(id);
        self.drop_resale(id, events);
        assert!(
            self.leases[&id].resale_ask.is_none(),
            "what has ended is not resold"
        );
        match successor {
            Some(next) => self.start_next(next, events),
            None => self.ledger.get_mut(provider).take_back(device, quantity),
        }
    }

    /// Starts the lease that waited for the device.
    fn start_next(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        let now = self.now;
        let lease = self.lease_mut(id);
        if !matches!(lease.state, LeaseState::Waiting { .. }) {
            return;
        }
        let duration = lease.deadline.saturating_since(lease.start);
        assert!(now <= lease.start, "it starts no later than it was told");
        assert!(duration.0 > 0, "a lease has a length");
        lease.start = now;
        lease.deadline = now.saturating_add(duration);
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

    /// Removes a waiting lease that will not start: the lease before it ends without a successor.
    pub(super) fn leave_queue(&mut self, behind: LeaseId) {
        let next = self.lease_mut(behind).successor.take();
        assert!(next.is_some(), "it was waited for");
    }

    fn drop_resale(&mut self, id: LeaseId, events: &mut Vec<Event>) {
        if let Some(ask) = self.leases[&id].resale_ask {
            let released = self.drop_order(ask, OrderEnd::Cancelled, events);
            assert_eq!(released, Credits::ZERO, "nothing is held for an ask");
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
        assert!(at <= lease.deadline, "and never makes a lease longer");
        self.timers
            .remove(&(lease.end_time(), Timer::LeaseEnds(id)));
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

    /// Returns why a lease ends whose end has come.
    pub(super) fn end_reason(&self, id: LeaseId) -> CloseReason {
        match self.leases[&id].state {
            LeaseState::Ending { reason, .. } => reason,
            _ => CloseReason::Deadline,
        }
    }
}

/// The ways in which a party can end a lease.
impl Exchange {
    pub(super) fn on_end(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.running_lease(id)?;
        must_be_buyer(lease, context)?;
        if let LeaseState::Waiting { .. } = lease.state {
            return Ok(self.close_on_accepted(id, CloseReason::BuyerEnded, context.events));
        }
        let at = self.now;
        self.end_lease(id, CloseReason::BuyerEnded, context.events);
        assert!(!self.leases[&id].is_running(), "the device is free");
        Ok(Acceptance::Ending { at })
    }

    pub(super) fn on_give_up(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.sold_lease(context, id)?;
        assert_eq!(lease.parties.provider, context.slot, "the provider speaks");
        let (buyer, step) = (lease.buyer, self.rules.reputation_step);
        let provider = self.ledger.get_mut(context.slot);
        let steps = provider.dealings.settled_steps(buyer, step);
        provider.reputation.on_gave_up(steps);
        Ok(self.close_on_accepted(id, CloseReason::GaveUp, context.events))
    }

    pub(super) fn on_reclaim(
        &mut self,
        context: &mut Context<'_>,
        id: LeaseId,
    ) -> Result<Acceptance, Refusal> {
        let lease = self.sold_lease(context, id)?;
        if lease.term == Term::Firm {
            return Err(Refusal::LeaseFirm {
                lease: id,
                deadline: lease.deadline,
            });
        }
        if lease.state != LeaseState::Active {
            return Err(Refusal::LeaseEnded {
                lease: id,
                at: lease.end_time(),
            });
        }
        assert!(
            lease.successor.is_none(),
            "an active lease was not displaced"
        );
        let at = self.now.saturating_add(lease.notice).min(lease.deadline);
        self.give_notice(id, at, CloseReason::Reclaimed, context.events);
        Ok(Acceptance::Ending { at })
    }

    pub(super) fn lease_mut(&mut self, id: LeaseId) -> &mut Lease {
        self.leases.get_mut(id).expect("the lease is known")
    }

    /// Returns a lease that is not closed.
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

    /// Returns a running lease if the account that gives the command is its provider.
    fn sold_lease(&self, context: &Context<'_>, id: LeaseId) -> Result<&Lease, Refusal> {
        let lease = self.running_lease(id)?;
        must_be_provider(lease, context)?;
        Ok(lease)
    }

    /// Returns a lease whose device the buyer has now.
    pub(super) fn running_lease(&self, id: LeaseId) -> Result<&Lease, Refusal> {
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

pub(super) fn must_be_buyer(lease: &Lease, context: &Context<'_>) -> Result<(), Refusal> {
    if lease.buyer != context.key {
        return Err(Refusal::BuyerOnly {
            lease: lease.id,
            buyer: lease.buyer,
        });
    }
    Ok(())
}

pub(super) fn must_be_provider(lease: &Lease, context: &Context<'_>) -> Result<(), Refusal> {
    if lease.provider != context.key {
        return Err(Refusal::ProviderOnly {
            lease: lease.id,
            provider: lease.provider,
        });
    }
    Ok(())
}
