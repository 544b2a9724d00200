//! Opens disputes over outputs of exact leases (those whose outputs must be the same bits on every
//! machine), counts the validators' verdicts, and moves the accuser's bond and the provider's stake
//! when enough agree.
//!
//! A stake answers for a lease until the rule `stake_hold` after its end, and for as long as a
//! dispute about it is open. So a provider that is accused in time still has its stake.

use crate::command::Acceptance;
use crate::dispute::{
    ACCUSED_WEIGHTS_MAX, Accusation, DISPUTE_BOND, DISPUTE_LIFE, DISPUTES_CLOSED_KEPT,
    DISPUTES_CLOSED_MAX, DISPUTES_OPEN_MAX, DISPUTES_OPEN_OF_ONE_MAX, Dispute, DisputeId,
    DisputeState, Verdict, verdicts_needed,
};
use crate::event::Event;
use crate::ids::{AccountKey, LeaseId};
use crate::lease::{Lease, LeaseState};
use crate::receipt::Receipt;
use crate::refusal::Refusal;
use crate::rules::RECOUNTING_RULES_VERSION;
use crate::units::{Count, Credits, Millis};

use super::{Context, Exchange, Timer};

impl Exchange {
    /// Opens a dispute over a receipt that its provider signed.
    pub(super) fn on_accuse(
        &mut self,
        context: &mut Context<'_>,
        accusation: &Accusation,
    ) -> Result<Acceptance, Refusal> {
        let Accusation { receipt, weights } = accusation;
        let body = &receipt.body;
        self.check_accusation(context, receipt)?;
        if weights.len() > ACCUSED_WEIGHTS_MAX {
            let (count, limit) = (weights.len() as u64, ACCUSED_WEIGHTS_MAX as u64);
            return Err(Refusal::AccusationLarge { count, limit });
        }
        self.check_dispute_room(context)?;
        self.ledger.check_available(context.slot, DISPUTE_BOND)?;
        let accused = self.ledger.find_slot(body.provider);
        let accused = accused.ok_or(Refusal::AccountUnknown {
            account: body.provider,
        })?;
        self.ledger.hold_in_escrow(context.slot, DISPUTE_BOND);
        self.disputes_made.count_up();
        let (id, until) = (
            DisputeId(self.disputes_made),
            self.now.saturating_add(DISPUTE_LIFE),
        );
        for party in [context.slot, accused] {
            self.ledger.get_mut(party).open_disputes.count_up();
        }
        let dispute = Dispute {
            id,
            lease: body.lease,
            job: body.job,
            buyer: body.buyer,
            provider: body.provider,
            graph: body.graph,
            inputs: body.inputs.clone(),
            weights: weights.clone(),
            outputs: body.outputs.clone(),
            bond: DISPUTE_BOND,
            opened: self.now,
            verdicts: Vec::new(),
            state: DisputeState::Open { until },
        };
        let fresh = self.timers.insert((until, Timer::Dispute(id)));
        assert!(fresh, "a dispute ends once");
        context.events.push(Event::Accused {
            dispute: id,
            lease: dispute.lease,
            buyer: dispute.buyer,
            provider: dispute.provider,
            bond: dispute.bond,
            until,
        });
        self.lease_mut(dispute.lease).disputed = Some(id);
        let earlier = self.disputes.insert(id, dispute);
        assert!(earlier.is_none(), "a dispute's number is new");
        Ok(Acceptance::Accused { dispute: id, until })
    }

    /// Checks that a receipt is of an exact lease of this accuser, for which the provider's stake
    /// still answers, and that no dispute or proof has decided about it.
    fn check_accusation(&self, context: &Context<'_>, receipt: &Receipt) -> Result<(), Refusal> {
        let body = &receipt.body;
        if body.market != self.market {
            return Err(Refusal::ReceiptMarket {
                market: self.market,
                receipt: body.market,
            });
        }
        let id = body.lease;
        let lease = self.leases.get(id);
        let lease = lease.ok_or(Refusal::LeaseUnknown { lease: id })?;
        if (body.buyer, body.provider) != (lease.buyer, lease.provider) {
            let (buyer, provider) = (lease.buyer, lease.provider);
            return Err(Refusal::ReceiptParties {
                lease: id,
                buyer,
                provider,
            });
        }
        if body.job != lease.job {
            return Err(Refusal::ReceiptTerms { lease: id });
        }
        if context.key != lease.buyer {
            let buyer = lease.buyer;
            return Err(Refusal::BuyerOnly { lease: id, buyer });
        }
        if !lease.exact {
            return Err(Refusal::LeaseInexact { lease: id });
        }
        if body.inputs.is_empty() || body.outputs.is_empty() {
            return Err(Refusal::AccusationEmpty { lease: id });
        }
        if lease.faulted {
            return Err(Refusal::FaultKnown { lease: id });
        }
        if let Some(dispute) = lease.disputed {
            return Err(Refusal::DisputeKnown { lease: id, dispute });
        }
        self.check_accusation_time(lease)
    }

    fn check_accusation_time(&self, lease: &Lease) -> Result<(), Refusal> {
        let LeaseState::Closed { at, .. } = lease.state else {
            return Ok(());
        };
        match self.can_be_accused(at) {
            true => Ok(()),
            false => Err(Refusal::AccusationLate {
                lease: lease.id,
                until: at.saturating_add(self.rules.stake_hold),
            }),
        }
    }

    fn check_dispute_room(&self, context: &Context<'_>) -> Result<(), Refusal> {
        let open = || self.disputes.values().filter(|it| it.is_open());
        if open().count() >= DISPUTES_OPEN_MAX {
            let limit = DISPUTES_OPEN_MAX as u32;
            return Err(Refusal::DisputesMany { limit });
        }
        let own = open().filter(|it| it.buyer == context.key).count();
        if own >= DISPUTES_OPEN_OF_ONE_MAX as usize {
            let limit = DISPUTES_OPEN_OF_ONE_MAX;
            return Err(Refusal::DisputesMany { limit });
        }
        Ok(())
    }

    /// Counts a validator's verdict at a log time. `jury` are the validators of now: only they
    /// count, each once. Returns the events, also those of time passing.
    ///
    /// # Errors
    /// If the dispute is unknown or closed, the juror is no validator, or has judged already.
    pub fn count_verdict(
        &mut self,
        now: Millis,
        dispute: DisputeId,
        juror: AccountKey,
        verdict: Verdict,
        jury: &[AccountKey],
    ) -> (Result<(), Refusal>, Vec<Event>) {
        let mut events = Vec::new();
        self.advance_time(now, &mut events);
        let counted = self.check_verdict(dispute, juror, jury);
        if counted.is_ok() {
            let open = self.disputes.get_mut(&dispute).expect("it was checked");
            open.verdicts.push((juror, verdict));
            self.decide_dispute(dispute, jury, &mut events);
        }
        self.ledger.report_balances(&mut events);
        self.ledger.assert_balanced();
        let code = counted.as_ref().err().map_or("", Refusal::code);
        self.chain
            .extend(&(self.now, dispute, juror, verdict, &events, code));
        (counted, events)
    }

    /// Returns whether a change of the list of validators at a log time decides the open disputes
    /// again. Whoever leaves lowers the number of verdicts that are needed. Whoever comes back
    /// brings an earlier verdict along, and need not raise that number: of three validators three
    /// must agree, and of four as well. Version 1 of the rules overlooks those.
    pub fn is_recount_due(&self, now: Millis, before: &[AccountKey], after: &[AccountKey]) -> bool {
        let is_due = match self.version_at(now) {
            ..RECOUNTING_RULES_VERSION => before.iter().any(|it| !after.contains(it)),
            _ => before != after,
        };
        is_due && self.has_open_disputes()
    }

    /// Ends all open disputes undecided, for a market that its first validators found again: those
    /// who gave the verdicts need not be the validators of then. Nobody is to blame, so the bonds
    /// go back, and the buyers can accuse again. Version 1 of the rules keeps such disputes open.
    pub fn end_disputes(&mut self) {
        if self.version < RECOUNTING_RULES_VERSION {
            return;
        }
        let mut events = Vec::new();
        for id in self.list_open_disputes() {
            self.release_bond(id);
            let at = self.now;
            self.close_dispute(id, DisputeState::Undecided { at }, &mut events);
        }
        self.ledger.report_balances(&mut events);
        self.ledger.assert_balanced();
        self.chain.extend(&(self.now, &events));
    }

    fn list_open_disputes(&self) -> Vec<DisputeId> {
        let open = self.disputes.values().filter(|it| it.is_open());
        open.map(|it| it.id).collect()
    }

    /// Decides the open disputes again after a change of the list of validators: the verdicts of
    /// those who left no longer count, and fewer validators need fewer verdicts. `jury` are the
    /// validators after the change. Returns the events, also those of time passing.
    pub fn recount_verdicts(&mut self, now: Millis, jury: &[AccountKey]) -> Vec<Event> {
        let mut events = Vec::new();
        self.advance_time(now, &mut events);
        for id in self.list_open_disputes() {
            self.decide_dispute(id, jury, &mut events);
        }
        self.ledger.report_balances(&mut events);
        self.ledger.assert_balanced();
        self.chain.extend(&(self.now, jury, &events));
        events
    }

    /// Returns whether a dispute is open.
    fn has_open_disputes(&self) -> bool {
        self.disputes.values().any(Dispute::is_open)
    }

    /// Checks whether a validator's verdict about a dispute would count.
    ///
    /// # Errors
    /// If the dispute is unknown or closed, the juror is no validator, or has judged already.
    pub fn check_verdict(
        &self,
        id: DisputeId,
        juror: AccountKey,
        jury: &[AccountKey],
    ) -> Result<(), Refusal> {
        let dispute = self.disputes.get(&id).filter(|it| it.is_open());
        let dispute = dispute.ok_or(Refusal::DisputeUnknown { dispute: id })?;
        if !jury.contains(&juror) {
            return Err(Refusal::JurorOnly { account: juror });
        }
        if dispute.has_judged(juror) {
            return Err(Refusal::VerdictKnown {
                dispute: id,
                account: juror,
            });
        }
        Ok(())
    }

    /// Closes a dispute on which enough validators agree.
    fn decide_dispute(&mut self, id: DisputeId, jury: &[AccountKey], events: &mut Vec<Event>) {
        let needed = verdicts_needed(jury.len());
        let dispute = &self.disputes[&id];
        let agree = |verdict| dispute.count_verdicts(verdict, jury) >= needed;
        if agree(Verdict::Guilty) {
            self.convict_provider(id, events);
        } else if agree(Verdict::Innocent) {
            self.clear_provider(id, events);
        }
    }

    fn convict_provider(&mut self, id: DisputeId, events: &mut Vec<Event>) {
        let (lease, buyer, provider) = {
            let dispute = &self.disputes[&id];
            (dispute.lease, dispute.buyer, dispute.provider)
        };
        let guilty = self.ledger.expect_slot(provider);
        let account = self.ledger.get(guilty);
        let is_known = match self.leases.get(lease) {
            Some(lease) => lease.faulted,
            None => account.faulted >= Some(lease),
        };
        // A contradiction that somebody proved meanwhile has cost the stake already.
        let (slashed, compensated) = match is_known {
            true => (Credits::ZERO, Credits::ZERO),
            false => self.slash_provider(lease, buyer, guilty, events),
        };
        self.release_bond(id);
        let at = self.now;
        let state = DisputeState::Guilty {
            at,
            slashed,
            compensated,
        };
        self.close_dispute(id, state, events);
    }

    fn clear_provider(&mut self, id: DisputeId, events: &mut Vec<Event>) {
        let (buyer, provider, bond) = {
            let dispute = &self.disputes[&id];
            (dispute.buyer, dispute.provider, dispute.bond)
        };
        let (accuser, cleared) = (
            self.ledger.expect_slot(buyer),
            self.ledger.expect_slot(provider),
        );
        let fee = self.ledger.pay_provider(accuser, cleared, bond, 0);
        assert_eq!(fee, Credits::ZERO, "all of the bond is the provider's");
        let at = self.now;
        self.close_dispute(id, DisputeState::Innocent { at }, events);
    }

    /// Ends a dispute on which too few validators agreed in time. If none gave a verdict, the
    /// accuser served nothing that can be judged, and its bond goes to the fees: else it could take
    /// all places again and again for nothing.
    pub(super) fn end_undecided(&mut self, id: DisputeId, events: &mut Vec<Event>) {
        match self.disputes[&id].verdicts.is_empty() {
            true => self.forfeit_bond(id),
            false => self.release_bond(id),
        }
        let at = self.now;
        self.close_dispute(id, DisputeState::Undecided { at }, events);
    }

    fn forfeit_bond(&mut self, id: DisputeId) {
        let dispute = &self.disputes[&id];
        let accuser = self.ledger.expect_slot(dispute.buyer);
        let bond = dispute.bond;
        let fee = self.ledger.pay_provider(accuser, accuser, bond, 10_000);
        assert_eq!(fee, bond, "all of the bond is the market's");
    }

    fn release_bond(&mut self, id: DisputeId) {
        let dispute = &self.disputes[&id];
        let accuser = self.ledger.expect_slot(dispute.buyer);
        self.ledger.release_escrow(accuser, dispute.bond);
    }

    fn close_dispute(&mut self, id: DisputeId, state: DisputeState, events: &mut Vec<Event>) {
        let dispute = self.disputes.get_mut(&id).expect("it is open");
        let DisputeState::Open { until } = dispute.state else {
            unreachable!("a dispute is closed once");
        };
        dispute.state = state;
        // Only validators that still judge need them.
        (dispute.inputs, dispute.weights) = (Vec::new(), Vec::new());
        dispute.outputs = Vec::new();
        let (lease, buyer, provider) = (dispute.lease, dispute.buyer, dispute.provider);
        events.push(Event::DisputeClosed {
            dispute: id,
            lease,
            buyer,
            provider,
            state,
        });
        self.timers.remove(&(until, Timer::Dispute(id)));
        for party in [buyer, provider] {
            let slot = self.ledger.expect_slot(party);
            self.ledger.get_mut(slot).open_disputes.count_down();
        }
        if let Some(lease) = self.leases.get_mut(lease) {
            // The validators did not decide, so the buyer can try again while the stake answers.
            lease.disputed = match state {
                DisputeState::Undecided { .. } => None,
                _ => lease.disputed,
            };
        }
        self.forget_old_disputes();
    }

    /// Forgets closed disputes beyond those that closed last, in the order of their closing: by
    /// their numbers, one that was open for long would go at once.
    fn forget_old_disputes(&mut self) {
        let closed = self.disputes.values();
        let closed = closed.filter_map(|it| Some((it.closed_at()?, it.id, it.lease)));
        let mut closed: Vec<(Millis, DisputeId, LeaseId)> = closed.collect();
        closed.sort_unstable();
        let excess = closed.len().saturating_sub(DISPUTES_CLOSED_KEPT);
        let surplus = closed.len().saturating_sub(DISPUTES_CLOSED_MAX);
        for (place, (_, id, lease)) in closed[..excess].iter().enumerate() {
            if place < surplus || !self.is_accusable(*lease) {
                self.disputes.remove(id);
            }
        }
    }

    /// Returns whether a lease is known and its time for accusations is not over.
    fn is_accusable(&self, id: LeaseId) -> bool {
        let lease = self.leases.get(id);
        lease.is_some_and(|lease| self.check_accusation_time(lease).is_ok())
    }

    /// Iterates over the disputes that the exchange still knows, by id.
    pub fn disputes(&self) -> impl DoubleEndedIterator<Item = &Dispute> {
        self.disputes.values()
    }

    /// Returns a dispute, if the exchange still knows it.
    pub fn dispute(&self, id: DisputeId) -> Option<&Dispute> {
        self.disputes.get(&id)
    }
}
