//! Earliest completion: tasks in topological order, each where it ends first. What a scheduler
//! without a view of the future does.

use super::Pace;
use super::state::{Placing, State};
use crate::problem::{Problem, ProblemError};
use crate::schedule::Schedule;

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let mut state = State::new(problem, Placing::Append);
    for &task in problem.order() {
        let (device, spot) = state.earliest_finish(task)?;
        state.place(task, device, spot);
    }
    Ok(state.into_schedule())
}
