//! Plans a job several times between fastest and cheapest, and returns the plans among which a
//! buyer can choose: none is both faster and cheaper than another.

use super::{Plan, PlanError, PlanOptions, plan_graph};
use crate::graph::Graph;
use crate::planning::objective::Objective;
use crate::planning::offer::{Links, Offer};

/// Steps between "time only" and "cost only"; more steps find next to nothing new.
const WEIGHTS: i32 = 7;

/// Returns plans of which none is both faster and cheaper than another, fastest first. Ignores the
/// options' objective but keeps their limits.
///
/// # Errors
/// [`PlanError`] if there is no plan at all.
pub fn pareto_plans(
    graph: &Graph,
    offers: &[Offer],
    links: &Links,
    options: &PlanOptions,
) -> Result<Vec<Plan>, PlanError> {
    let with = |objective: Objective| {
        let options = PlanOptions {
            objective,
            ..options.clone()
        };
        plan_graph(graph, offers, links, &options)
    };
    let fastest = with(Objective::Fastest)?;
    let cheapest = with(Objective::Cheapest)?;
    let mut plans = Vec::new();
    // Weights that make the two ends worth the same, and factors of four around that.
    let exchange = cheapest.makespan_seconds / cheapest.cost.max(f64::MIN_POSITIVE);
    for step in 0..WEIGHTS {
        let cost = exchange * 4f64.powi(step - WEIGHTS / 2);
        if cost.is_finite() {
            plans.push(with(Objective::Weighted { time: 1.0, cost })?);
        }
    }
    plans.extend([fastest, cheapest]);
    plans.sort_by(|a, b| {
        let time = a.makespan_seconds.total_cmp(&b.makespan_seconds);
        time.then(a.cost.total_cmp(&b.cost))
    });
    let mut least = f64::INFINITY;
    plans.retain(|plan| {
        plan.cost < least && {
            least = plan.cost;
            true
        }
    });
    Ok(plans)
}
