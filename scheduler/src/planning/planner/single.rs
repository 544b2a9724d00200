//! Plans all tasks on the best single device. The plan of every other planner must be better than
//! this one.

use super::Pace;
use super::free_memory::FreeMemory;
use super::state::{GapPolicy, PartialSchedule};
use crate::planning::objective::Objective;
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::{NEVER, Time};

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let best = best_single_device(problem);
    // If no device can run everything, returns HEFT's plan.
    best.map_or_else(|| super::heft::plan(problem, &mut super::step_pace(0)), Ok)
}

/// Returns the best plan on one device, if one can run everything and has the memory.
pub(crate) fn best_single_device(problem: &Problem) -> Option<Schedule> {
    if problem.objective() != Objective::Fastest {
        let plans =
            (0..problem.device_count()).filter_map(|device| plan_on_device(problem, device));
        return plans.min_by_key(|plan| plan.score(problem));
    }
    let lengths = (0..problem.device_count())
        .filter_map(|device| Some((total_time(problem, device)?, device)));
    plan_on_device(problem, lengths.min()?.1)
}

/// Returns the time of everything on one device; `None` if it cannot run or hold all of it.
fn total_time(problem: &Problem, device: usize) -> Option<Time> {
    let mut end: Time = 0;
    let all = problem.topological_order().iter().copied();
    if !FreeMemory::new(problem).has_room_for_all(problem, all, device) {
        return None;
    }
    for &task in problem.topological_order() {
        let exec = problem.exec_time(task, device);
        if exec == NEVER {
            return None;
        }
        end += exec;
    }
    Some(end)
}

fn plan_on_device(problem: &Problem, device: usize) -> Option<Schedule> {
    let mut state = PartialSchedule::new(problem, GapPolicy::Append);
    for &task in problem.topological_order() {
        let slot = state.earliest_slot(task, device)?;
        state.place_task(task, device, slot);
    }
    Some(state.into_schedule())
}
