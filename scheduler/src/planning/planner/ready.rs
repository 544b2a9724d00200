//! Places all tasks of a problem for planners that choose the next task and its device together,
//! such as DLS and Min-Min. It offers them the ready tasks, whose predecessors are all placed, with
//! the arrival time of their data on each device.

use super::state::{GapPolicy, PartialSchedule, Slot};
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::{NEVER, Time};

/// A ready task with the arrival of its data on each device, which no longer changes.
pub(crate) struct ReadyTask {
    pub(crate) task: usize,
    arrivals: Vec<Time>,
}

impl ReadyTask {
    /// Returns the earliest place on `device`, given the tasks placed so far.
    pub(crate) fn earliest_slot(&self, state: &PartialSchedule<'_>, device: usize) -> Option<Slot> {
        state.slot_at(self.task, device, self.arrivals[device])
    }

    /// Returns the arrival of its data on `device`.
    pub(crate) fn arrival_time(&self, device: usize) -> Time {
        self.arrivals[device]
    }

    /// Returns the device where it ends first, and its end on the second-best device.
    pub(crate) fn two_earliest(&self, state: &PartialSchedule<'_>) -> Option<TwoEarliest> {
        let mut best: Option<TwoEarliest> = None;
        for device in 0..state.problem.device_count() {
            let Some(slot) = self.earliest_slot(state, device) else {
                continue;
            };
            best = Some(match best {
                None => TwoEarliest {
                    device,
                    slot,
                    second: NEVER,
                },
                Some(two) if slot.finish < two.slot.finish => {
                    let second = two.slot.finish;
                    TwoEarliest {
                        device,
                        slot,
                        second,
                    }
                }
                Some(two) => TwoEarliest {
                    second: two.second.min(slot.finish),
                    ..two
                },
            });
        }
        best
    }
}

/// The device and place where a task ends first, and its end on the second-best device.
#[derive(Clone, Copy)]
pub(crate) struct TwoEarliest {
    pub(crate) device: usize,
    pub(crate) slot: Slot,
    pub(crate) second: Time,
}

/// Places all tasks: `choose` must pick one of the ready ones, its device and its place, or none if
/// no ready task has room.
pub(crate) fn place_all(
    problem: &Problem,
    placing: GapPolicy,
    mut choose: impl FnMut(&PartialSchedule<'_>, &[ReadyTask]) -> Option<(usize, usize, Slot)>,
) -> Result<Schedule, ProblemError> {
    let mut state = PartialSchedule::new(problem, placing);
    let mut waiting: Vec<usize> = (0..problem.task_count())
        .map(|t| problem.inputs_of(t).len())
        .collect();
    let mut ready: Vec<ReadyTask> = Vec::new();
    for &task in problem.topological_order() {
        if waiting[task] == 0 {
            ready.push(new_ready(&state, task));
        }
    }
    while let Some(first) = ready.first() {
        let stuck = first.task;
        let (index, device, slot) =
            choose(&state, &ready).ok_or_else(|| state.full_error(stuck))?;
        let task = ready.remove(index).task;
        state.place_task(task, device, slot);
        for (after, _) in problem.readers_of(task) {
            waiting[after] -= 1;
            if waiting[after] == 0 {
                ready.push(new_ready(&state, after));
            }
        }
    }
    Ok(state.into_schedule())
}

fn new_ready(state: &PartialSchedule<'_>, task: usize) -> ReadyTask {
    let arrivals = state.ready_everywhere(task);
    ReadyTask { task, arrivals }
}
