//! How long leases are bought for, and what is left of a budget.

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

/// Time for sending, compiling and settling on top of four times the planned time.
const ALLOWANCE: Millis = Millis(15_000);

/// The shortest allowance that a small budget may press it down to, on top of one and a half times
/// the planned time: what a small job takes from the trade to the receipt on an idle machine,
/// twice.
const ALLOWANCE_MIN: Millis = Millis(100);

impl Spending {
    /// What leases have cost, and what they still hold.
    #[must_use]
    pub fn of(leases: &[Lease]) -> Spending {
        let sum = |part: fn(&Lease) -> u64| Credits(leases.iter().map(part).sum());
        Spending {
            spent: sum(|lease| lease.cost.0),
            held: sum(|lease| lease.escrow.0),
        }
    }

    /// What is paid.
    pub(super) fn from_paid(spent: Credits) -> Spending {
        let held = Credits(0);
        Spending { spent, held }
    }

    /// What is in escrow.
    pub(super) fn from_held(held: Credits) -> Spending {
        let spent = Credits(0);
        Spending { spent, held }
    }

    /// Both together.
    fn total(self) -> Credits {
        Credits(self.spent.0.saturating_add(self.held.0))
    }
}

impl Past {
    /// What each of its leases cost or holds at most, as far as that is put down.
    pub(super) fn costs(&self) -> BTreeMap<LeaseId, Spending> {
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
    /// What the job's leases have cost and hold, where the log has these of them. One that it has
    /// forgotten is closed: it cost what is known here, or all that it held.
    pub(super) fn count_costs(&mut self, leases: &[Lease]) -> Spending {
        let of = |lease: &Lease| (lease.id, Spending::of(std::slice::from_ref(lease)));
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

/// How long to lease: generously, but never for more than is left of the budget.
///
/// # Errors
/// [`Reason::Escrow`] where not even the shortest lease can be held.
pub(super) fn duration(plan: &Plan, left: Option<Credits>) -> Result<Millis, Reason> {
    let longest = plan.legs.iter().map(|leg| leg.listing.duration_max).min();
    let wanted = Millis(millis(plan.makespan, 4, 1).saturating_add(ALLOWANCE.0));
    let wanted = wanted.min(longest.unwrap_or(wanted));
    let Some(left) = left else {
        return Ok(wanted);
    };
    let per_second = plan.price().0.max(1);
    // Each lease's escrow is rounded up.
    let whole = left.0.saturating_sub(plan.legs.len() as u64);
    let affordable = Millis(whole.saturating_mul(1_000) / per_second);
    let shortest = Millis(millis(plan.makespan, 3, 2).saturating_add(ALLOWANCE_MIN.0));
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

/// What the leases of a plan hold until they are settled, and how long they are, where so much is
/// left of a budget.
///
/// # Errors
/// [`Reason::Escrow`] where not even the shortest leases can be held.
pub fn holds(plan: &Plan, left: Option<Credits>) -> Result<(Credits, Millis), Reason> {
    let duration = duration(plan, left)?;
    let held = plan.legs.iter().map(|leg| escrow(leg, duration).0);
    Ok((Credits(held.fold(0, u64::saturating_add)), duration))
}

/// So many times a time, in milliseconds, rounded up.
fn millis(time: Micros, times: u64, over: u64) -> u64 {
    time.0.saturating_mul(times).div_ceil(over * 1_000)
}

/// The bid for one leg of a plan.
#[must_use]
pub fn bid(
    leg: &PlanLeg,
    limits: &Limits,
    excluded: &[souk_market::AccountKey],
    (duration, job): (Millis, JobId),
) -> Bid {
    let listing = &leg.listing;
    // A bid names few; the last excluded are those that failed just now.
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
        budget: escrow(leg, duration),
        quantity: Units(1),
        all_or_none: true,
        duration,
        start_delay_max: Millis(0),
        term: if limits.spot { Term::Spot } else { Term::Firm },
        tif: TimeInForce::Fok,
        job,
    }
}

/// What a leg's lease holds.
pub(super) fn escrow(leg: &PlanLeg, duration: Millis) -> Credits {
    let escrow = leg.listing.price.escrow(Units(1), duration);
    escrow.unwrap_or(Credits(u64::MAX))
}
