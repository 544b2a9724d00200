//! Everything on one device: what every plan must beat.

use super::Pace;
use super::state::{Placing, State};
use crate::problem::{Problem, ProblemError};
use crate::schedule::Schedule;

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let best = best(problem);
    // Without a device for all, the plan that has one device for as long as it can.
    best.map_or_else(|| super::heft::plan(problem, &mut super::steps(0)), Ok)
}

/// The best plan on one device, if one runs everything and has the memory.
pub(super) fn best(problem: &Problem) -> Option<Schedule> {
    let plans = (0..problem.devices()).filter_map(|device| on(problem, device));
    plans.min_by_key(|plan| plan.makespan)
}

fn on(problem: &Problem, device: usize) -> Option<Schedule> {
    let mut state = State::new(problem, Placing::Append);
    for &task in problem.order() {
        let spot = state.spot(task, device)?;
        state.place(task, device, spot);
    }
    Some(state.into_schedule())
}
