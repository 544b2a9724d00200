//! Plans by list rules that weigh the cost of a task on a device against its end there. The plans
//! are starting points for searches with objectives other than time.

use super::rank::{ExecSummary, exec_summary, ready_by_rank, upward_rank};
use super::state::{GapPolicy, PartialSchedule};
use crate::planning::objective::Objective;
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::Time;

/// Exchange rates between time and cost, as multiples of the rate that makes the mean task's time
/// and cost worth the same. The last one counts almost nothing but cost.
const EXCHANGES: [f64; 5] = [0.1, 0.4, 1.6, 6.4, 1e6];

/// Returns list plans that weigh cost against time; none if the objective is time only. There can
/// be fewer than exchange rates, because with some rates a task finds no room.
pub(super) fn cost_plans(problem: &Problem) -> Vec<Schedule> {
    let costs = task_costs(problem);
    let total: f64 = costs.iter().sum();
    if total <= 0.0 {
        return Vec::new();
    }
    let exec = exec_summary(problem, ExecSummary::Mean);
    let order = ready_by_rank(problem, &upward_rank(problem, &exec, 1.0));
    let entries = (problem.task_count() * problem.device_count()) as f64;
    let scale = exec.iter().sum::<f64>() / problem.task_count() as f64 / (total / entries);
    let plan = |exchange: f64| by_cost(problem, &order, &costs, exchange * scale);
    EXCHANGES.into_iter().filter_map(plan).collect()
}

/// Returns the cost of each task on each device by the objective, in rows of devices.
fn task_costs(problem: &Problem) -> Vec<f64> {
    let rate = |device: usize| {
        let (price, power) = (
            problem.device_price(device) as f64,
            problem.device_power(device) as f64,
        );
        match problem.objective() {
            Objective::Fastest => 0.0,
            Objective::Cheapest | Objective::Balanced => price,
            Objective::Greenest => power,
            Objective::Weighted { cost, .. } => price * cost,
        }
    };
    let rates: Vec<f64> = (0..problem.device_count()).map(rate).collect();
    let row = |task: usize| {
        let times = problem.exec_row(task).iter().zip(&rates);
        times.map(|(&time, rate)| if *rate > 0.0 { time as f64 * rate } else { 0.0 })
    };
    (0..problem.task_count()).flat_map(row).collect()
}

fn by_cost(problem: &Problem, order: &[usize], costs: &[f64], rate: f64) -> Option<Schedule> {
    let mut state = PartialSchedule::new(problem, GapPolicy::Insert);
    for &task in order {
        let key = |device: usize, finish: Time| {
            finish as f64 + rate * costs[task * problem.device_count() + device]
        };
        let best = state.best_by(task, |device, slot| key(device, slot.finish));
        let (device, slot) = best.ok()?;
        state.place_task(task, device, slot);
    }
    Some(state.into_schedule())
}
