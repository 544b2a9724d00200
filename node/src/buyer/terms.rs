//! How long a lease is bought for, and how money and time are counted.

use std::time::Duration;

use souk_market::Millis;
use souk_scheduler::planning::Plan;

use super::job::Limits;

/// Micro-credits in a credit.
pub const MICRO: f64 = 1e6;

/// An allowance below which another plan, with longer leases for the same money, is better.
const COMFORT: Duration = Duration::from_secs(2);

/// The shortest margin and allowance a small budget may press it down to: what a small job takes
/// from the trade to the receipt on an idle machine, twice.
const TIME_MARGIN_MIN: f64 = 1.5;
const ALLOWANCE_MIN: Duration = Duration::from_millis(100);

/// What a request of a session waits at each provider beside what is planned, on a busy machine.
const HOP: Duration = Duration::from_millis(5);

/// What the requests of a session wait in all, since they go round one by one.
pub(super) fn hops(limits: &Limits, plan: &Plan) -> f64 {
    let is_session = limits.sequences > 0;
    let rounds = if is_session { limits.requests } else { 0 };
    HOP.as_secs_f64() * f64::from(rounds) * plan.offers().len() as f64
}

/// The shortest lease under which a plan of that length may be run.
pub(super) fn shortest(makespan_seconds: f64) -> Millis {
    millis(makespan_seconds * TIME_MARGIN_MIN + ALLOWANCE_MIN.as_secs_f64())
}

/// A lease with time to spare for a busy machine and for weights that are sent first.
pub(super) fn comfortable(makespan_seconds: f64) -> Millis {
    millis(makespan_seconds * 4.0 + COMFORT.as_secs_f64())
}

/// The length of a lease as the market counts it.
fn millis(seconds: f64) -> Millis {
    Millis(
        Duration::try_from_secs_f64(seconds).map_or(u64::MAX, |time| {
            u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
        }),
    )
}
