//! Planners: one file each, one signature, compared by one harness.
//!
//! All of them place tasks through the same `PartialSchedule`, so each respects memory and pins.
//! Effort is given as a [`Pace`], not as time: a planner asks how much of its effort is used up
//! after so many steps. With [`steps`] equal inputs give equal plans; a benchmark may answer by the
//! clock instead.
//!
//! The list rules are those of the literature and know the makespan only. `portfolio`, `anneal`,
//! `exact` and `auto` look for the best by the problem's
//! [`Objective`](crate::planning::objective::Objective), and say so if they find no plan within its
//! deadline.

mod anneal;
mod auto;
mod by_cost;
mod cpop;
mod dls;
mod earliest;
mod etf;
mod exact;
mod heft;
mod lookahead;
mod max_min;
mod min_min;
mod pack;
mod peft;
mod portfolio;
mod rank;
mod ready;
mod room;
mod single;
mod state;
mod sufferage;
mod tighten;

use super::problem::{Problem, ProblemError};
use super::schedule::Schedule;

pub use anneal::Random;
pub use exact::{Exact, prove};

/// Says which share of the effort is used up after so many steps: 1 or more ends the search.
pub type Pace<'a> = dyn FnMut(u64) -> f64 + 'a;

/// The one signature.
pub type Planner = fn(&Problem, &mut Pace<'_>) -> Result<Schedule, ProblemError>;

/// A pace of so many steps.
pub fn steps(limit: u64) -> impl FnMut(u64) -> f64 {
    move |done| {
        if limit == 0 {
            1.0
        } else {
            done as f64 / limit as f64
        }
    }
}

/// `plan`, if it keeps the problem's deadline.
fn in_time(problem: &Problem, plan: Schedule) -> Result<Schedule, ProblemError> {
    match problem.deadline() {
        Some(deadline) if plan.makespan > deadline => Err(ProblemError::Deadline {
            deadline,
            reachable: plan.makespan,
        }),
        _ => Ok(plan),
    }
}

/// Every planner by the name the command line uses.
pub const PLANNERS: [(&str, Planner); 16] = [
    ("auto", auto::plan),
    ("heft", heft::plan),
    ("heft-append", heft::plan_append),
    ("peft", peft::plan),
    ("cpop", cpop::plan),
    ("lookahead", lookahead::plan),
    ("dls", dls::plan),
    ("min-min", min_min::plan),
    ("max-min", max_min::plan),
    ("sufferage", sufferage::plan),
    ("etf", etf::plan),
    ("earliest", earliest::plan),
    ("single", single::plan),
    ("portfolio", portfolio::plan),
    ("anneal", anneal::plan),
    ("exact", exact::plan),
];

/// The planner called `name`.
#[must_use]
pub fn planner(name: &str) -> Option<Planner> {
    let mut all = PLANNERS.iter();
    all.find(|(known, _)| *known == name).map(|(_, plan)| *plan)
}
