//! Tightens a plan: pushes its tasks towards its end and back again, while each task stays on its
//! device (forward-backward improvement). It closes gaps that the list rule left open, and never
//! makes a plan worse.

use super::state::{GapPolicy, PartialSchedule};
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::Time;

/// Passes to the end and back; more passes gain almost nothing.
const PASSES: usize = 2;

/// Returns `plan` after tightening.
pub(super) fn plan(problem: &Problem, plan: &Schedule) -> Schedule {
    let mut best = plan.clone();
    for _ in 0..PASSES {
        let pushed = push(problem, &best);
        let pulled = pull_tasks(problem, &pushed, &best);
        if pulled.makespan >= best.makespan {
            break;
        }
        best = pulled;
    }
    best
}

/// Returns the latest start of each task on its device if all end by the makespan, latest ends
/// first.
fn push(problem: &Problem, plan: &Schedule) -> Vec<Time> {
    let mut tasks: Vec<usize> = topological_by(problem, |task| plan.finish_time(problem, task));
    tasks.reverse();
    let mut lines = Lines::new(problem.device_count());
    let mut start_back: Vec<Time> = vec![0; problem.task_count()];
    for task in tasks {
        let device = plan.device[task];
        let exec = problem.exec_time(task, device);
        // In time counted backward from the makespan.
        let ready = problem.readers_of(task).map(|(after, bytes)| {
            let end = start_back[after] + problem.exec_time(after, plan.device[after]);
            end + problem.transfer_time(device, plan.device[after], bytes)
        });
        start_back[task] = lines.occupy_slot(device, ready.max().unwrap_or(0), exec);
    }
    let latest = |task: usize| {
        let end_back = start_back[task] + problem.exec_time(task, plan.device[task]);
        // A pushed plan can be longer than the original by rounding of gaps; the start must not
        // become negative.
        plan.makespan.saturating_sub(end_back)
    };
    (0..problem.task_count()).map(latest).collect()
}

/// Returns the tasks in the order of `key`, each after the tasks that it depends on.
fn topological_by(problem: &Problem, key: impl Fn(usize) -> Time) -> Vec<usize> {
    let mut tasks = problem.topological_order().to_vec();
    tasks.sort_by_key(|&task| key(task));
    tasks
}

/// Returns the plan with each task as early as its device and data permit, in the order of
/// `latest`.
fn pull_tasks(problem: &Problem, latest: &[Time], plan: &Schedule) -> Schedule {
    let mut state = PartialSchedule::new(problem, GapPolicy::Insert);
    for task in topological_by(problem, |task| latest[task]) {
        let device = plan.device[task];
        let Some(slot) = state.earliest_slot(task, device) else {
            return plan.clone();
        };
        state.place_task(task, device, slot);
    }
    state.into_schedule()
}

/// Reads a plan of the reversed problem from its end; returns none if memory forbids it.
pub(super) fn from_reversed_plan(problem: &Problem, plan: &Schedule) -> Option<Schedule> {
    let key =
        |task: usize| plan.makespan - plan.start[task] - problem.exec_time(task, plan.device[task]);
    let mut state = PartialSchedule::new(problem, GapPolicy::Insert);
    // Zero-length tasks end where they start: reversed topological order among equals.
    for task in topological_by(problem, key) {
        let device = plan.device[task];
        let slot = state.earliest_slot(task, device)?;
        state.place_task(task, device, slot);
    }
    Some(state.into_schedule())
}

/// Busy periods of the devices in backward time.
struct Lines {
    taken: Vec<Vec<(Time, Time)>>,
}

impl Lines {
    fn new(devices: usize) -> Self {
        Self {
            taken: vec![Vec::new(); devices],
        }
    }

    /// Takes the first free stretch of `length` from `ready` on and returns its start.
    fn occupy_slot(&mut self, device: usize, ready: Time, length: Time) -> Time {
        if length == 0 {
            return ready;
        }
        let taken = &mut self.taken[device];
        let mut start = ready;
        let mut index = taken.partition_point(|span| span.1 <= ready);
        while let Some(&(begin, end)) = taken.get(index) {
            if start + length <= begin {
                break;
            }
            start = start.max(end);
            index += 1;
        }
        taken.insert(index, (start, start + length));
        start
    }
}
