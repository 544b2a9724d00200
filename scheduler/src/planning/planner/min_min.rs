//! Plans by Min-Min, a list rule: it always places the ready task that can end earliest, on the
//! device where it does.

use super::Pace;
use super::ready::place_all;
use super::state::GapPolicy;
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    place_all(problem, GapPolicy::Append, |state, ready| {
        let ends = ready.iter().enumerate().filter_map(|(index, task)| {
            let best = task.two_earliest(state)?;
            Some((best.slot.finish, task.task, index, best))
        });
        let first = ends.min_by_key(|end| (end.0, end.1));
        first.map(|(_, _, index, best)| (index, best.device, best.slot))
    })
}
