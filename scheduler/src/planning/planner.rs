//! Collects all planners under one signature: each is an algorithm in a file of its own that
//! assigns the tasks of a problem to devices and times. [`find_planner`] finds a planner by its
//! name on the command line.
//!
//! A *list rule* is a planner that places one task after the other by a fixed rule. All list rules
//! use the same `PartialSchedule`, so each respects memory and pins. A [`Pace`] limits a planner's
//! effort: after a number of steps, the planner asks which part of its effort is used up. With
//! [`step_pace`], equal inputs give equal plans; a benchmark can answer by the clock instead.
//!
//! The list rules come from the literature and minimise the makespan only. `portfolio`, `anneal`,
//! `exact` and `auto` search for the best by the problem's
//! [`Objective`](crate::planning::objective::Objective), and fail if they find no plan within its
//! deadline.

mod anneal;
mod auto;
mod by_cost;
mod dls;
mod exact;
mod free_memory;
mod heft;
mod lookahead;
mod min_min;
mod pack;
mod peft;
mod portfolio;
mod rank;
mod ready;
mod single;
mod state;
mod sufferage;
mod tighten;

use super::problem::{Problem, ProblemError};
use super::schedule::Schedule;

pub use anneal::Random;
pub use exact::{ProvenSchedule, prove_optimal};

/// Returns the part of the effort that is used up after a number of steps: 1 or more ends the
/// search.
pub type Pace<'a> = dyn FnMut(u64) -> f64 + 'a;

/// The signature of every planner.
pub type Planner = fn(&Problem, &mut Pace<'_>) -> Result<Schedule, ProblemError>;

/// Returns a pace of `limit` steps. With a limit of 0, the planner must stop after its least
/// effort.
pub fn step_pace(limit: u64) -> impl FnMut(u64) -> f64 {
    move |done| {
        if limit == 0 {
            1.0
        } else {
            done as f64 / limit as f64
        }
    }
}

/// Returns `plan` if it meets the problem's deadline.
fn in_time(problem: &Problem, plan: Schedule) -> Result<Schedule, ProblemError> {
    match problem.deadline() {
        Some(deadline) if plan.makespan > deadline => Err(ProblemError::Deadline {
            deadline,
            reachable: plan.makespan,
        }),
        _ => Ok(plan),
    }
}

/// Every planner by its name on the command line.
pub const PLANNERS: [(&str, Planner); 11] = [
    ("auto", auto::plan),
    ("heft", heft::plan),
    ("peft", peft::plan),
    ("lookahead", lookahead::plan),
    ("dls", dls::plan),
    ("min-min", min_min::plan),
    ("sufferage", sufferage::plan),
    ("single", single::plan),
    ("portfolio", portfolio::plan),
    ("anneal", anneal::plan),
    ("exact", exact::plan),
];

/// Returns the planner called `name`.
#[must_use]
pub fn find_planner(name: &str) -> Option<Planner> {
    let mut all = PLANNERS.iter();
    all.find(|(known, _)| *known == name).map(|(_, plan)| *plan)
}
