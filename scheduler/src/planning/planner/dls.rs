//! Plans by DLS (dynamic level scheduling), a list rule: it picks the pair of ready task and device
//! with the greatest dynamic level: the remaining path, less the start, plus the device's gain over
//! the mean.
//!
//! Sih and Lee, "A compile-time scheduling heuristic for interconnection-constrained heterogeneous
//! processor architectures", 1993.

use super::Pace;
use super::rank::{ExecSummary, exec_summary, upward_rank};
use super::ready::place_all;
use super::state::GapPolicy;
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let mean = exec_summary(problem, ExecSummary::Mean);
    let level = upward_rank(problem, &mean, 0.0);
    place_all(problem, GapPolicy::Append, |state, ready| {
        let mut best = None;
        let mut most = f64::NEG_INFINITY;
        for (index, entry) in ready.iter().enumerate() {
            for device in 0..problem.device_count() {
                let Some(slot) = entry.earliest_slot(state, device) else {
                    continue;
                };
                let start = entry
                    .arrival_time(device)
                    .max(state.device_end(device))
                    .max(slot.start);
                let gain = mean[entry.task] - problem.exec_time(entry.task, device) as f64;
                let value = level[entry.task] - start as f64 + gain;
                if value > most {
                    most = value;
                    best = Some((index, device, slot));
                }
            }
        }
        best
    })
}
