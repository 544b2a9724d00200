//! Plans by Sufferage, a list rule: it always places the ready task that would lose most on its
//! second-best device.

use std::cmp::Reverse;

use super::Pace;
use super::ready::place_all;
use super::state::GapPolicy;
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    place_all(problem, GapPolicy::Append, |state, ready| {
        let losses = ready.iter().enumerate().filter_map(|(index, task)| {
            let best = task.two_earliest(state)?;
            Some((best.second - best.slot.finish, task.task, index, best))
        });
        let worst = losses.max_by_key(|loss| (loss.0, Reverse(loss.1)));
        worst.map(|(_, _, index, best)| (index, best.device, best.slot))
    })
}
