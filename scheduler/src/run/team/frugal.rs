//! Plans that draw the fewest joules within the time there is.
//!
//! A device draws while it computes, by its history or by its profile; what it draws while it waits
//! it draws in any plan. Whose power nobody states counts as the hungriest that is known. Shared
//! operators save time and no joules, so none are; and what is planned on a device stays there, for
//! one that waits would only be faster.

use std::time::Duration;

use super::laid::Offered;
use super::place::{Placed, gather, singles, tasks};
use crate::goal::Goal;
use crate::planner::{planner, steps};
use crate::problem::{NEVER, Problem, ProblemError, Time};
use crate::tasks::time_of;

/// Effort of planning a subgraph, in a planner's steps, as where time is made small.
const STEPS: u64 = 2_000;
/// Several devices must save at least this part of the joules of the best single one.
const GAIN_MIN: f64 = 0.05;
/// Parts of a watt that powers are counted in.
const WATT: f64 = 1e3;

/// What a team makes small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TeamGoal {
    /// The time of a run.
    #[default]
    Time,
    /// The joules of a run, within its deadline.
    Energy,
}

/// A plan, and its joules in units of its own.
pub(super) struct Least {
    pub placed: Placed,
    pub joules: u128,
}

/// Plans a graph over devices so that it takes the fewest joules of all that ends in time; none
/// where nobody's power is known, or nothing ends in time.
pub(super) fn place(
    offered: &Offered,
    within: Option<Duration>,
) -> Result<Option<Least>, ProblemError> {
    let graph = &offered.graph;
    let known = offered.watts.iter().flatten().copied();
    let Some(most) = known.reduce(f64::max).filter(|most| *most > 0.0) else {
        return Ok(None);
    };
    let power = offered.watts.iter().map(|watts| watts.unwrap_or(most));
    let power: Vec<u64> = power.map(|watts| (watts * WATT).ceil() as u64).collect();
    let deadline = within.map_or(Time::MAX, |left| time_of(left.as_secs_f64()));
    let graph_tasks = tasks(
        graph,
        &offered.stated,
        &offered.known.seconds,
        &offered.links,
    )?;
    let problem = graph_tasks
        .problem
        .drawing(&power, Goal::Energy { deadline });
    let held = graph.activation_bytes().into_iter().max().unwrap_or(0);
    let devices = offered.stated.len();
    let singles = singles(&problem, held, devices);
    let fastest = singles.iter().copied().min_by_key(|(_, time)| *time);
    let in_time = singles.iter().filter(|(_, time)| *time <= deadline);
    let drawn = in_time.map(|&(device, time)| (alone(&problem, device), time, device));
    let single = drawn.min();
    let plan = planner("auto").expect("the planner is among those there are");
    let schedule = match plan(&problem, &mut steps(STEPS)) {
        Ok(schedule) => Some(schedule),
        Err(ProblemError::Deadline { .. }) => None,
        Err(error) => return Err(error),
    };
    let several = schedule.map(|schedule| (schedule.score(&problem).value, schedule));
    // Several hand over tensors, which nobody counts joules of.
    let several = several.filter(|(joules, _)| {
        single.is_none_or(|(limit, ..)| (*joules as f64) < limit as f64 * (1.0 - GAIN_MIN))
    });
    let found = match (several, single) {
        (Some((joules, schedule)), _) => {
            let placed = gather(graph, &graph_tasks, &schedule);
            Some(Least { placed, joules })
        }
        (None, Some((joules, time, device))) => {
            let placed = Placed::on(device, time, graph.nodes().len());
            Some(Least { placed, joules })
        }
        (None, None) => None,
    };
    Ok(found.map(|least| Least {
        placed: Placed {
            single: fastest,
            ..least.placed
        },
        ..least
    }))
}

/// What it takes to run everything on one device.
fn alone(problem: &Problem, device: usize) -> u128 {
    let own = (0..problem.tasks()).map(|task| problem.exec(task, device));
    let busy = own.filter(|time| *time != NEVER).map(u128::from);
    busy.sum::<u128>() * u128::from(problem.power(device).0)
}

/// The joules of so many seconds of devices; none where the power of one is not known.
pub(super) fn joules(
    work: impl Iterator<Item = (usize, f64)>,
    watts: &[Option<f64>],
) -> Option<f64> {
    let each = work.map(|(device, seconds)| Some(watts[device]? * seconds));
    each.sum()
}
