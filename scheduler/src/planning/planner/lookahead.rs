//! Plans by lookahead HEFT, a list rule: a task goes to the device from which the last of its
//! children can end first.
//!
//! Bittencourt, Sakellariou and Madeira, "DAG scheduling using a lookahead variant of the
//! heterogeneous earliest finish time algorithm", 2010.

use super::Pace;
use super::rank::{ExecSummary, by_rank, exec_summary, upward_rank};
use super::state::{GapPolicy, PartialSchedule, Slot};
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::{NEVER, Time};

pub(super) fn plan(problem: &Problem, _: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let rank = upward_rank(problem, &exec_summary(problem, ExecSummary::Mean), 1.0);
    by_order(problem, &by_rank(problem, &rank))
}

/// Plans by lookahead with tasks in the given order, which must be topological.
pub(super) fn by_order(problem: &Problem, order: &[usize]) -> Result<Schedule, ProblemError> {
    let mut state = PartialSchedule::new(problem, GapPolicy::Insert);
    let mut place = vec![0; problem.task_count()];
    for (index, &task) in order.iter().enumerate() {
        place[task] = index;
    }
    for &task in order {
        let mut best: Option<((Time, Time), usize)> = None;
        for device in 0..problem.device_count() {
            let Some(slot) = state.earliest_slot(task, device) else {
                continue;
            };
            let key = (
                latest_child(&state, task, device, slot, &place),
                slot.finish,
            );
            if best.is_none_or(|(least, _)| key < least) {
                best = Some((key, device));
            }
        }
        let (_, device) = best.ok_or_else(|| state.full_error(task))?;
        let slot = state
            .earliest_slot(task, device)
            .ok_or_else(|| state.full_error(task))?;
        state.place_task(task, device, slot);
    }
    Ok(state.into_schedule())
}

/// Returns the latest end among the children of `task` on `device`, each placed in turn where it
/// ends first.
fn latest_child(
    state: &PartialSchedule<'_>,
    task: usize,
    device: usize,
    slot: Slot,
    rank: &[usize],
) -> Time {
    let problem = state.problem;
    let mut children: Vec<usize> = problem.readers_of(task).map(|(child, _)| child).collect();
    children.sort_unstable_by_key(|&child| rank[child]);
    children.dedup();
    let mut beside = TentativeSchedule {
        state,
        taken: vec![(device, slot)],
    };
    let mut latest = slot.finish;
    for child in children {
        let ends = (0..problem.device_count()).filter_map(|place| {
            let bytes = problem
                .inputs_of(child)
                .filter(|(before, _)| *before == task);
            let arrivals =
                bytes.map(|(_, bytes)| slot.finish + problem.transfer_time(device, place, bytes));
            let ready = state
                .ready_time(child, place)
                .max(arrivals.max().unwrap_or(0));
            Some((beside.earliest_slot(child, place, ready)?, place))
        });
        match ends.min_by_key(|(slot, place)| (slot.finish, *place)) {
            Some((slot, place)) => {
                latest = latest.max(slot.finish);
                beside.taken.push((place, slot));
            }
            None => return NEVER,
        }
    }
    latest
}

/// A state with a few more tasks placed temporarily.
struct TentativeSchedule<'a> {
    state: &'a PartialSchedule<'a>,
    taken: Vec<(usize, Slot)>,
}

impl TentativeSchedule<'_> {
    /// Returns the earliest place of `task` on `device` that also avoids the temporary tasks.
    fn earliest_slot(&self, task: usize, device: usize, mut ready: Time) -> Option<Slot> {
        loop {
            let free = self.state.slot_at(task, device, ready)?;
            let clash = self.taken.iter().find(|(place, taken)| {
                *place == device && free.start < taken.finish && free.finish > taken.start
            });
            match clash {
                None => return Some(free),
                Some((_, taken)) => ready = ready.max(taken.finish),
            }
        }
    }
}
