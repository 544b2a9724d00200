//! Where searches for goals other than the makespan begin, and how they end.

use super::rank::{Summary, exec_summary, ready_by_rank, upward};
use super::state::{Placing, State};
use super::{Pace, portfolio};
use crate::goal::Goal;
use crate::problem::{Problem, ProblemError, Time};
use crate::schedule::Schedule;

/// Exchange rates between time and cost that are tried, as shares of the one that makes the mean
/// task's time and cost worth the same. The last counts next to nothing but cost.
const EXCHANGES: [f64; 5] = [0.1, 0.4, 1.6, 6.4, 1e6];

/// Share of the effort given to finding any plan within the deadline.
const DEADLINE_SHARE: f64 = 0.5;

/// List plans that weigh what a task costs where it runs against when it would end there. None for
/// goals that time alone decides.
pub(super) fn starts(problem: &Problem) -> Vec<Schedule> {
    let costs = costs(problem);
    let total: f64 = costs.iter().sum();
    if total <= 0.0 {
        return Vec::new();
    }
    let exec = exec_summary(problem, Summary::Mean);
    let order = ready_by_rank(problem, &upward(problem, &exec, 1.0));
    let entries = (problem.tasks() * problem.devices()) as f64;
    let scale = exec.iter().sum::<f64>() / problem.tasks() as f64 / (total / entries);
    let plan = |exchange: f64| by_cost(problem, &order, &costs, exchange * scale);
    EXCHANGES.into_iter().filter_map(plan).collect()
}

/// What each task costs on each device, by the goal, in rows of devices.
fn costs(problem: &Problem) -> Vec<f64> {
    let rate = |device: usize| {
        let (price, power) = (problem.price(device) as f64, problem.power(device).0 as f64);
        match problem.goal() {
            Goal::Makespan | Goal::FirstOutput => 0.0,
            Goal::Price { .. } => price,
            Goal::Energy { .. } => power,
            Goal::Weighted {
                price: money,
                energy,
                ..
            } => price * money as f64 + power * energy as f64,
        }
    };
    let rates: Vec<f64> = (0..problem.devices()).map(rate).collect();
    let row = |task: usize| {
        let times = problem.exec_row(task).iter().zip(&rates);
        times.map(|(&time, rate)| if *rate > 0.0 { time as f64 * rate } else { 0.0 })
    };
    (0..problem.tasks()).flat_map(row).collect()
}

fn by_cost(problem: &Problem, order: &[usize], costs: &[f64], rate: f64) -> Option<Schedule> {
    let mut state = State::new(problem, Placing::Insert);
    for &task in order {
        let key = |device: usize, finish: Time| {
            finish as f64 + rate * costs[task * problem.devices() + device]
        };
        let best = state.best_by(task, |device, spot| key(device, spot.finish));
        let (device, spot) = best.ok()?;
        state.place(task, device, spot);
    }
    Some(state.into_schedule())
}

/// `plan`, if it keeps the deadline of the problem's goal.
pub(super) fn in_time(problem: &Problem, plan: Schedule) -> Result<Schedule, ProblemError> {
    match problem.goal().deadline() {
        Some(deadline) if plan.makespan > deadline => Err(ProblemError::Deadline {
            deadline,
            reachable: plan.makespan,
        }),
        _ => Ok(plan),
    }
}

/// Where none of `plans` keeps the deadline, the shortest plan that a part of the effort finds,
/// beside them; and the steps it took.
///
/// The goal's own search goes on from there.
pub(super) fn hurry(
    problem: &Problem,
    mut plans: portfolio::Plans,
    pace: &mut Pace<'_>,
) -> Result<(portfolio::Plans, u64), ProblemError> {
    if plans.best.score(problem).late == 0 {
        return Ok((plans, 0));
    }
    let short = problem.with_goal(Goal::Makespan);
    let mut taken = 0;
    let found = super::anneal::improve(
        &short,
        portfolio::Plans::only(plans.best.clone()),
        &mut |steps| {
            taken = steps;
            pace(steps) / DEADLINE_SHARE
        },
    )?;
    plans.best = in_time(problem, found)?;
    Ok((plans, taken))
}
