//! Computes how long the leases of a plan must last: the planned time, the waiting of a session's
//! requests, and spare time for a busy machine.

use std::time::Duration;

use souk_market::Millis;
use souk_scheduler::planning::Plan;

use super::job::Limits;

/// Micro-credits in a credit.
pub const MICRO: f64 = 1e6;

/// Added to a comfortable lease. If the budget is too small for it, a plan with longer leases for
/// the same money is better.
const COMFORT: Duration = Duration::from_secs(2);

/// The smallest margin and allowance that a small budget permits: twice what a small job takes from
/// the trade to the receipt on an idle machine.
pub(super) const TIME_MARGIN_MIN: f64 = 1.5;
const ALLOWANCE_MIN: Duration = Duration::from_millis(100);

/// How long a request of a session waits at each provider beyond its plan, on a busy machine.
const HOP: Duration = Duration::from_millis(5);

/// Returns how long a session's requests wait in total, in seconds, because they run one after the
/// other. If requests took longer at an earlier lease, they wait as long as then. A measured time
/// needs less margin than a planned one: half of it counts, since a comfortable lease is four times
/// as long.
pub(super) fn session_hop_seconds(limits: &Limits, plan: &Plan) -> f64 {
    let is_session = limits.sequences > 0;
    let rounds = f64::from(if is_session { limits.requests } else { 0 });
    let hops = HOP.as_secs_f64() * rounds * plan.used_offers().len() as f64;
    let seen = limits.request_time.unwrap_or_default().as_secs_f64() * rounds / 2.0;
    hops.max(seen - plan.makespan_seconds)
}

/// Returns the shortest lease for a plan of this length.
pub(super) fn shortest_lease(makespan_seconds: f64) -> Millis {
    to_millis(makespan_seconds * TIME_MARGIN_MIN + ALLOWANCE_MIN.as_secs_f64())
}

/// Returns a lease with spare time for a busy machine and for sending the weights.
pub(super) fn comfortable_lease(makespan_seconds: f64) -> Millis {
    to_millis(makespan_seconds * 4.0 + COMFORT.as_secs_f64())
}

/// Converts seconds into the market's unit, rounded up.
fn to_millis(seconds: f64) -> Millis {
    Millis(
        Duration::try_from_secs_f64(seconds).map_or(u64::MAX, |time| {
            u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(requests: u32, request_time: Option<Duration>) -> f64 {
        let limits = Limits {
            requests,
            sequences: 1,
            request_time,
            ..Limits::default()
        };
        let plan = Plan {
            parts: Vec::new(),
            transfers: Vec::new(),
            makespan_seconds: 2.0,
            cost: 0.0,
            joules: None,
            best_single: None,
            speedup: None,
            critical_path: Vec::new(),
            utilisation: Vec::new(),
            assignment: Vec::new(),
        };
        session_hop_seconds(&limits, &plan)
    }

    #[test]
    fn requests_that_took_longer_than_planned_are_expected_to_take_as_long_again() {
        let seen = |millis| Some(Duration::from_millis(millis));
        assert!((wait(10, seen(1_000)) - 3.0).abs() < 1e-9);
        assert!(wait(10, seen(100)).abs() < 1e-9, "the plan expects more");
        assert!(wait(10, None).abs() < 1e-9);
    }
}
