//! Plans by PEFT (predict earliest finish time), a list rule: it places each task where its end
//! plus the best possible remainder is least.
//!
//! Arabnejad and Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic
//! cost table", 2014.

use super::Pace;
use super::rank::{optimistic_costs, ready_by_rank};
use super::state::{GapPolicy, PartialSchedule};
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let devices = problem.device_count();
    let table = optimistic_costs(problem);
    let row = |task: usize| &table[task * devices..(task + 1) * devices];
    let mean = |task: usize| row(task).iter().sum::<f64>() / devices as f64;
    let rank: Vec<f64> = (0..problem.task_count()).map(mean).collect();
    let mut state = PartialSchedule::new(problem, GapPolicy::Insert);
    for task in ready_by_rank(problem, &rank) {
        let key = |device: usize, finish: u64| finish as f64 + row(task)[device];
        let (device, slot) = state.best_by(task, |device, slot| key(device, slot.finish))?;
        state.place_task(task, device, slot);
    }
    Ok(state.into_schedule())
}
