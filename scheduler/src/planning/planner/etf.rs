//! ETF: picks the pair of ready task and device that can start first; among equals, the task with
//! the longest remaining path.
//!
//! Hwang, Chow, Anger and Lee, "Scheduling precedence graphs in systems with interprocessor
//! communication times", 1989.

use super::Pace;
use super::rank::{ExecSummary, exec_summary, upward_rank};
use super::ready::place_all;
use super::state::Placing;
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let level = upward_rank(problem, &exec_summary(problem, ExecSummary::Mean), 0.0);
    place_all(problem, Placing::Append, |state, ready| {
        let pairs = ready.iter().enumerate().flat_map(|(index, task)| {
            let devices = 0..problem.device_count();
            devices
                .filter_map(move |device| Some((index, device, task.earliest_spot(state, device)?)))
        });
        pairs.min_by(|a, b| {
            let level = |pair: usize| level[ready[pair].task];
            let start = a.2.start.cmp(&b.2.start);
            let order = start.then(level(b.0).total_cmp(&level(a.0)));
            order
                .then(ready[a.0].task.cmp(&ready[b.0].task))
                .then(a.1.cmp(&b.1))
        })
    })
}
