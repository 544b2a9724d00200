//! Earliest completion: tasks in topological order, each where it ends first, like a scheduler
//! without a view of the future.

use super::Pace;
use super::state::{PartialSchedule, Placing};
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let mut state = PartialSchedule::new(problem, Placing::Append);
    for &task in problem.topological_order() {
        let (device, spot) = state.earliest_finish(task)?;
        state.place_task(task, device, spot);
    }
    Ok(state.into_schedule())
}
