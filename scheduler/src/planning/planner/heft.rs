//! Plans by HEFT (heterogeneous earliest finish time), a list rule: it places tasks by upward rank,
//! each where it ends first, and fills gaps.
//!
//! Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for
//! heterogeneous computing", 2002.

use super::Pace;
use super::rank::{ExecSummary, by_rank, exec_summary, upward_rank};
use super::state::{GapPolicy, PartialSchedule};
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let rank = upward_rank(problem, &exec_summary(problem, ExecSummary::Mean), 1.0);
    let mut state = PartialSchedule::new(problem, GapPolicy::Insert);
    for task in by_rank(problem, &rank) {
        let (device, slot) = state.earliest_finish(task)?;
        state.place_task(task, device, slot);
    }
    Ok(state.into_schedule())
}
