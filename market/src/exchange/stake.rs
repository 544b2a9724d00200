//! Moves the stake of a provider (credits that it can lose), and takes it away if someone proves a
//! fault.
//!
//! Contradiction is the only fault that signatures prove without a judge: two receipts of one
//! lease, both signed by its provider, that name different outputs for the same graph and inputs.
//! So a provider must sign only one receipt for one run.
//!
//! The two receipts alone are the proof: even if the market has forgotten the lease, because many
//! others closed since, the fault costs the provider its stake.

use crate::command::Acceptance;
use crate::event::{Event, MoveReason};
use crate::ids::{AccountKey, LeaseId, Slot};
use crate::lease::{Lease, LeaseState};
use crate::receipt::Receipt;
use crate::refusal::Refusal;
use crate::units::{Credits, Rounding, divide_rounded, widening_product};

use super::{Context, Exchange};

impl Exchange {
    pub(super) fn on_stake(
        &mut self,
        context: &mut Context<'_>,
        amount: Credits,
    ) -> Result<Acceptance, Refusal> {
        self.ledger.check_available(context.slot, amount)?;
        self.ledger.add_stake(context.slot, amount);
        context.push_move_event(MoveReason::Staked, amount);
        let stake = self.ledger.get(context.slot).stake;
        assert!(stake >= amount, "it is at stake");
        Ok(Acceptance::Staked { stake })
    }

    pub(super) fn on_unstake(
        &mut self,
        context: &mut Context<'_>,
        wanted: Credits,
    ) -> Result<Acceptance, Refusal> {
        let account = self.ledger.get(context.slot);
        let (stake, open_leases) = (account.stake, account.open_leases);
        if wanted > stake {
            return Err(Refusal::StakeShort { stake, wanted });
        }
        let until = account.last_closed.saturating_add(self.rules.stake_hold);
        let answered = account.last_closed.0 == 0 || self.now >= until;
        if account.open_disputes > 0 {
            return Err(Refusal::StakeDisputed {
                open_disputes: account.open_disputes,
            });
        }
        if open_leases > 0 || !answered {
            return Err(Refusal::StakeHeld { open_leases, until });
        }
        assert_eq!(open_leases, 0, "stake stands for open leases");
        self.ledger.remove_stake(context.slot, wanted);
        context.push_move_event(MoveReason::Unstaked, wanted);
        Ok(Acceptance::Staked {
            stake: self.ledger.get(context.slot).stake,
        })
    }

    pub(super) fn on_fault(
        &mut self,
        context: &mut Context<'_>,
        pair: &[Receipt; 2],
    ) -> Result<Acceptance, Refusal> {
        let [first, second] = pair;
        let id = first.body.lease;
        if id.0 > self.trades_made {
            return Err(Refusal::LeaseUnknown { lease: id });
        }
        let lease = self.leases.get(id);
        let account = lease.map_or(first.body.provider, |lease| lease.provider);
        if lease.is_some_and(|lease| lease.faulted) {
            return Err(Refusal::FaultKnown { lease: id });
        }
        let of_lease = |one: &Receipt| {
            let body = &one.body;
            (body.market, body.lease, body.provider) == (self.market, id, account)
        };
        if !of_lease(first) || !of_lease(second) || !is_contradiction(first, second) {
            return Err(Refusal::FaultNone { lease: id });
        }
        // An account without credits may have made room for others since the lease closed.
        let guilty = self.ledger.find_slot(account);
        let guilty = guilty.ok_or(Refusal::AccountUnknown { account })?;
        // For forgotten leases the account stores only one lease number, so faults must be proven
        // in order.
        if lease.is_none() && self.ledger.get(guilty).faulted >= Some(id) {
            return Err(Refusal::FaultKnown { lease: id });
        }
        let buyer = first.body.buyer;
        let (slashed, compensated) = self.slash_provider(id, buyer, guilty, context.events);
        Ok(Acceptance::Slashed {
            slashed,
            compensated,
        })
    }

    /// Takes the stake of a guilty provider: up to the cost of the lease, and at most half of what
    /// the provider loses, goes to its buyer, the rest to the fees. `buyer` counts only if the
    /// market has forgotten the lease. Returns what the provider lost, and what the buyer got.
    pub(super) fn slash_provider(
        &mut self,
        id: LeaseId,
        buyer: AccountKey,
        guilty: Slot,
        events: &mut Vec<Event>,
    ) -> (Credits, Credits) {
        let provider = self.ledger.get(guilty).key;
        // The compensation follows from the market's record of the lease, not from the claim.
        let lease = self.leases.get(id);
        let buyer = lease.map_or(buyer, |lease| lease.buyer);
        let cost = lease.map_or(Credits::ZERO, cost_to_buyer);
        let harmed = self
            .ledger
            .find_slot(buyer)
            .filter(|harmed| *harmed != guilty);
        let stake = self.ledger.get(guilty).stake;
        let part = widening_product(stake.0, self.rules.slash.0.into());
        let slashed = divide_rounded(part, 1_000, Rounding::Up);
        let slashed = slashed.expect("a part is no more than the whole");
        let compensated = match harmed {
            Some(_) => compensation_max(slashed).min(cost),
            None => Credits::ZERO,
        };
        assert!(slashed <= stake, "no more is lost than is at stake");
        let fees = slashed.minus(compensated);
        self.ledger.slash_stake(guilty, harmed, compensated, fees);
        let account = self.ledger.get_mut(guilty);
        account.reputation.on_fault();
        account.faulted = account.faulted.max(Some(id));
        if let Some(lease) = self.leases.get_mut(id) {
            assert!(!lease.faulted, "a fault is proven once");
            lease.faulted = true;
        }
        assert!(
            compensated <= compensation_max(slashed),
            "the buyer gets at most half of what was lost"
        );
        events.push(Event::Slashed {
            lease: id,
            buyer,
            provider,
            slashed,
            compensated,
        });
        (slashed, compensated)
    }
}

/// Returns the most that the buyer gets of a slashed stake: half of it. A guilty provider chooses
/// the lease of the contradiction that it signs, so it can choose one that a confederate bought. Of
/// each slash one buyer gets a part, so all buyers together get at most half of the stake.
fn compensation_max(slashed: Credits) -> Credits {
    Credits(slashed.0 / 2)
}

/// Returns the buyer's payment, or the credits that it still has in escrow.
fn cost_to_buyer(lease: &Lease) -> Credits {
    match lease.state {
        LeaseState::Closed { .. } => lease.cost,
        _ => lease.escrow,
    }
}

fn is_contradiction(first: &Receipt, second: &Receipt) -> bool {
    let (one, other) = (&first.body, &second.body);
    one.graph == other.graph && one.inputs == other.inputs && one.outputs != other.outputs
}
