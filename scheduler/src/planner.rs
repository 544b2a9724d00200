//! Planners: one file each, one signature, compared by one harness.
//!
//! All of them place tasks through the same `State`, so each respects memory, pins, releases and,
//! where asked, contention. Effort is given as a [`Pace`], not as time: a planner asks how much of
//! its effort is used up after so many steps. With [`steps`] equal inputs give equal plans; a
//! benchmark may answer by the clock instead.
//!
//! The list rules are those of the literature and know the makespan only. `portfolio`, `anneal`,
//! `exact` and `auto` look for the best by the problem's [`Goal`](crate::goal::Goal), and say so if
//! they find no plan within its deadline.

mod anneal;
mod auto;
mod cpop;
mod dls;
mod earliest;
mod etf;
mod exact;
mod goal;
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

use crate::problem::{Problem, ProblemError};
use crate::schedule::Schedule;

pub(crate) use anneal::Random;
pub use exact::{Exact, prove};
pub(crate) use single::best as single;
pub(crate) use tighten::in_order;

/// Says which share of the effort is used up after so many steps: 1 or more ends the search.
pub type Pace<'a> = dyn FnMut(u64) -> f64 + 'a;

/// The one signature.
pub type Plan = fn(&Problem, &mut Pace<'_>) -> Result<Schedule, ProblemError>;

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

/// Every planner by the name the command line uses.
pub const PLANNERS: [(&str, Plan); 16] = [
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
pub fn planner(name: &str) -> Option<Plan> {
    let mut all = PLANNERS.iter();
    all.find(|(known, _)| *known == name).map(|(_, plan)| *plan)
}
