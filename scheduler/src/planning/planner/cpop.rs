//! CPOP: runs the critical path on the one device that is fastest for it, and each other task where
//! it ends first.
//!
//! From the same paper as HEFT.

use super::Pace;
use super::rank::{ExecSummary, downward_rank, exec_summary, ready_by_rank, upward_rank};
use super::state::{PartialSchedule, Placing};
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::NEVER;

/// Tolerance for rounding between sums of floats that should be equal.
const CLOSE: f64 = 1e-9;

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let exec = exec_summary(problem, ExecSummary::Mean);
    let up = upward_rank(problem, &exec, 1.0);
    let down = downward_rank(problem, &exec);
    let priority: Vec<f64> = up.iter().zip(&down).map(|(up, down)| up + down).collect();
    let path = critical_path(problem, &priority);
    let device = path_device(problem, &path);
    let mut state = PartialSchedule::new(problem, Placing::Insert);
    for task in ready_by_rank(problem, &priority) {
        let on_path = path
            .contains(&task)
            .then(|| state.earliest_spot(task, device?))
            .flatten();
        let (device, spot) = match (on_path, device) {
            (Some(spot), Some(device)) => (device, spot),
            _ => state.earliest_finish(task)?,
        };
        state.place_task(task, device, spot);
    }
    Ok(state.into_schedule())
}

/// Returns the path from the first task of greatest priority onward along equal priorities.
fn critical_path(problem: &Problem, priority: &[f64]) -> Vec<usize> {
    let entries = problem
        .topological_order()
        .iter()
        .copied()
        .filter(|&task| problem.inputs_of(task).len() == 0);
    let first = entries.reduce(|best, next| {
        if priority[next] > priority[best] {
            next
        } else {
            best
        }
    });
    let Some(mut task) = first else {
        return Vec::new();
    };
    let length = priority[task];
    let mut path = vec![task];
    let critical = |task: usize| (priority[task] - length).abs() <= CLOSE * length.max(1.0);
    while let Some((next, _)) = problem.readers_of(task).find(|(next, _)| critical(*next)) {
        path.push(next);
        task = next;
    }
    path
}

/// Returns the device on which the path takes least time; `None` if none can run all of it.
fn path_device(problem: &Problem, path: &[usize]) -> Option<usize> {
    let time = |device: usize| {
        path.iter()
            .try_fold(0u64, |sum, &task| match problem.exec_time(task, device) {
                NEVER => None,
                time => Some(sum + time),
            })
    };
    let timed = (0..problem.device_count()).filter_map(|device| Some((time(device)?, device)));
    timed.min().map(|(_, device)| device)
}
