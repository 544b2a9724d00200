//! Plans by the default planner: it tries list rules first, and then anneals from the best of their
//! plans. It solves small problems exactly. It respects the problem's objective, its deadline and
//! memory.

use super::{Pace, anneal, exact, portfolio};
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;

/// Part of the effort for list rules. Beyond [`MANY_TASKS`] annealing gets too few steps for each
/// task to make up for a skipped rule.
const LIST_SHARE: f64 = 0.2;
const LIST_SHARE_MANY: f64 = 0.7;
const MANY_TASKS: usize = 500;

pub(super) fn plan(problem: &Problem, pace: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    if problem.task_count() <= exact::AUTO_TASKS_MAX {
        return exact::plan(problem, pace);
    }
    let share = if problem.task_count() > MANY_TASKS {
        LIST_SHARE_MANY
    } else {
        LIST_SHARE
    };
    let (plans, taken) = portfolio::collect_plans(problem, &mut |steps| pace(steps) / share)?;
    anneal::improve_plans(problem, plans, &mut |steps| pace(taken + steps))
}
