//! Computes the money of a job: what its leases cost and hold in escrow, how long a lease its
//! budget allows, and the bid for each leg of a plan (one lease with its provider). The purchase
//! steps of a job and a node's resting bids use it.

use std::collections::BTreeMap;

use souk_market::{
    Bid, Credits, EXCLUDED_MAX, JobId, Lease, LeaseId, Limit, Millis, Term, TimeInForce, Units,
    Wants,
};

use super::JobCore;
use super::action::Spending;
use super::facts::Past;
use super::plan::{Plan, PlanLeg};
use super::reason::Reason;
use super::spec::Limits;
use crate::clock::Micros;

/// The time for sending, compiling and settling, on top of four times the planned time.
const ALLOWANCE: Millis = Millis(15_000);

/// The least allowance under a small budget, on top of one and a half times the planned time: twice
/// the time that a small job takes on an idle machine from the trade to the receipt.
const ALLOWANCE_MIN: Millis = Millis(100);

impl Spending {
    /// Returns the cost and escrow of leases.
    #[must_use]
    pub fn from_leases(leases: &[Lease]) -> Spending {
        let sum = |part: fn(&Lease) -> u64| Credits(leases.iter().map(part).sum());
        Spending {
            spent: sum(|lease| lease.cost.0),
            held: sum(|lease| lease.escrow.0),
        }
    }

    /// Returns a spending of paid credits only.
    pub(super) fn from_paid(spent: Credits) -> Spending {
        let held = Credits(0);
        Spending { spent, held }
    }

    /// Returns a spending of escrow only.
    pub(super) fn from_held(held: Credits) -> Spending {
        let spent = Credits(0);
        Spending { spent, held }
    }

    /// Returns the sum of both.
    fn total(self) -> Credits {
        Credits(self.spent.0.saturating_add(self.held.0))
    }
}

impl Past {
    /// Returns the most that each lease costs or holds, as far as the journal knows.
    pub(super) fn max_lease_costs(&self) -> BTreeMap<LeaseId, Spending> {
        let terms = self.attempts.values().flat_map(|past| &past.terms);
        let mut costs: BTreeMap<LeaseId, Spending> = terms
            .map(|terms| (terms.lease, Spending::from_held(terms.escrow)))
            .collect();
        let right = self
            .right
            .values()
            .map(|it| (it.body.lease, it.body.amount));
        let closed = self.closed.iter().map(|(lease, cost)| (*lease, *cost));
        costs.extend(
            right
                .chain(closed)
                .map(|(lease, cost)| (lease, Spending::from_paid(cost))),
        );
        costs
    }
}

impl JobCore {
    /// Counts the cost and escrow of the job's leases, where the log has these. A lease that the
    /// log has forgotten must be closed: it cost the amount known here, or its whole escrow.
    pub(super) fn count_costs(&mut self, leases: &[Lease]) -> Spending {
        let of = |lease: &Lease| (lease.id, Spending::from_leases(std::slice::from_ref(lease)));
        let seen: BTreeMap<LeaseId, Spending> = leases.iter().map(of).collect();
        self.costs.extend(&seen);
        let mut all = Spending::default();
        for (lease, cost) in &self.costs {
            let cost = match seen.contains_key(lease) {
                true => *cost,
                false => Spending::from_paid(cost.total()),
            };
            all.spent = Credits(all.spent.0.saturating_add(cost.spent.0));
            all.held = Credits(all.held.0.saturating_add(cost.held.0));
        }
        all
    }
}

/// Returns the length of leases: generous, but within the rest of the budget.
///
/// # Errors
/// Returns [`Reason::Escrow`] if even the shortest lease costs too much.
pub(super) fn lease_duration(plan: &Plan, left: Option<Credits>) -> Result<Millis, Reason> {
    let longest = plan.legs.iter().map(|leg| leg.listing.duration_max).min();
    let wanted = Millis(scale_to_millis(plan.makespan, 4, 1).saturating_add(ALLOWANCE.0));
    let wanted = wanted.min(longest.unwrap_or(wanted));
    let Some(left) = left else {
        return Ok(wanted);
    };
    let per_second = plan.total_price().0.max(1);
    // The market rounds each lease's escrow up.
    let whole = left.0.saturating_sub(plan.legs.len() as u64);
    let affordable = Millis(whole.saturating_mul(1_000) / per_second);
    let shortest = Millis(scale_to_millis(plan.makespan, 3, 2).saturating_add(ALLOWANCE_MIN.0));
    let shortest = shortest.min(wanted);
    if affordable < shortest {
        let needed = u128::from(per_second) * u128::from(shortest.0) / 1_000;
        let needed = Credits(u64::try_from(needed).unwrap_or(u64::MAX));
        return Err(Reason::Escrow {
            needed,
            budget: left,
        });
    }
    Ok(wanted.min(affordable))
}

/// Returns the escrow of a plan's leases until they settle, and their length, given the rest of the
/// budget.
///
/// # Errors
/// Returns [`Reason::Escrow`] if even the shortest leases cost too much.
pub fn escrow_and_duration(
    plan: &Plan,
    left: Option<Credits>,
) -> Result<(Credits, Millis), Reason> {
    let duration = lease_duration(plan, left)?;
    let held = plan.legs.iter().map(|leg| leg_escrow(leg, duration).0);
    Ok((Credits(held.fold(0, u64::saturating_add)), duration))
}

/// Returns a multiple of a time, in milliseconds, rounded up.
fn scale_to_millis(time: Micros, times: u64, over: u64) -> u64 {
    time.0.saturating_mul(times).div_ceil(over * 1_000)
}

/// Returns the bid for one leg of a plan.
#[must_use]
pub fn bid_for_leg(
    leg: &PlanLeg,
    limits: &Limits,
    excluded: &[souk_market::AccountKey],
    duration: Millis,
    job: JobId,
) -> Bid {
    let listing = &leg.listing;
    // A bid can name only a few providers; the last excluded ones are those that just failed.
    let excluded = &excluded[excluded.len().saturating_sub(EXCLUDED_MAX)..];
    let wants = Wants {
        memory_bytes: listing.resources.memory_bytes,
        memory_bandwidth: listing.resources.memory_bandwidth,
        throughput: listing.resources.throughput,
        regions: limits.regions,
        features: listing.resources.features,
        operators: listing.resources.operators.clone(),
        reputation: limits.reputation_min,
        notice: limits.notice_min,
        excluded: excluded.to_vec(),
        ..Wants::default()
    };
    Bid {
        class: listing.class,
        wants,
        limit: Limit::Price(listing.price),
        budget: leg_escrow(leg, duration),
        quantity: Units(1),
        all_or_none: true,
        duration,
        start_delay_max: Millis(0),
        term: if limits.spot { Term::Spot } else { Term::Firm },
        tif: TimeInForce::Fok,
        job,
    }
}

/// Returns the escrow of a leg's lease.
pub(super) fn leg_escrow(leg: &PlanLeg, duration: Millis) -> Credits {
    let escrow = leg.listing.price.escrow_for(Units(1), duration);
    escrow.unwrap_or(Credits(u64::MAX))
}
