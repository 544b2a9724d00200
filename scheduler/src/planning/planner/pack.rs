//! Plans by packing tasks into the devices' memories by size, for problems whose memory is so tight
//! that other planners find no place for the last tasks. Tasks that can run on the fewest devices
//! come first, then the largest.

use super::free_memory::FreeMemory;
use super::rank::{ExecSummary, exec_summary, ready_by_rank, upward_rank};
use super::state::{GapPolicy, PartialSchedule};
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::NEVER;

/// Rules for choosing a device, tried in turn until one packs everything.
#[derive(Clone, Copy)]
enum PackRule {
    /// The fastest device for the task.
    Fastest,
    /// The device with the most free memory.
    Roomiest,
    /// The device with the least free memory.
    Tightest,
}

/// Returns a plan that fits, if packing finds one. Others can exist even if it finds none.
pub(super) fn plan(problem: &Problem) -> Option<Schedule> {
    let choices = [PackRule::Fastest, PackRule::Roomiest, PackRule::Tightest];
    let device = choices
        .into_iter()
        .find_map(|choice| pack_tasks(problem, choice))?;
    let rank = upward_rank(problem, &exec_summary(problem, ExecSummary::Mean), 1.0);
    let mut state = PartialSchedule::new(problem, GapPolicy::Insert);
    for task in ready_by_rank(problem, &rank) {
        let slot = state.earliest_slot(task, device[task])?;
        state.place_task(task, device[task], slot);
    }
    Some(state.into_schedule())
}

/// Returns a device for each task.
fn pack_tasks(problem: &Problem, choice: PackRule) -> Option<Vec<usize>> {
    let mut room = FreeMemory::new(problem);
    let mut tasks: Vec<usize> = (0..problem.task_count()).collect();
    let homes = |task: usize| {
        let row = problem.exec_row(task).iter();
        row.filter(|&&time| time != NEVER).count()
    };
    // An early task has the most room, so the least flexible tasks come first.
    tasks.sort_by_key(|&task| {
        (
            homes(task),
            std::cmp::Reverse(problem.task_memory(task)),
            task,
        )
    });
    let mut device = vec![0; problem.task_count()];
    for task in tasks {
        let fits = |device: &usize| {
            problem.exec_time(task, *device) != NEVER && room.has_room(problem, task, *device)
        };
        let key = |device: &usize| match choice {
            PackRule::Fastest => problem.exec_time(task, *device),
            PackRule::Roomiest => u64::MAX - room.free_bytes(*device),
            PackRule::Tightest => room.free_bytes(*device),
        };
        let own = (0..problem.device_count()).filter(fits).min_by_key(key)?;
        room.take_bytes(problem, task, own);
        device[task] = own;
    }
    Some(device)
}
