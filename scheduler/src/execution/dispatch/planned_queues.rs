//! Queues the tasks of a planned job, for the dispatch: each device runs the tasks of its own list
//! in the order of the plan, and waits only for inputs from other devices. A device without a ready
//! task runs a later one first, or steals one from the end of another device's list.

use super::{
    BATCH_TASKS, BATCH_TIME, Dispatch, DispatchMode, STEAL_GAIN, TaskState, can_join_batch,
};
use crate::planning::problem::Problem;
use crate::planning::time::{NEVER, Time};

/// Number of tasks after a blocked one that a device examines.
const AHEAD_MAX: usize = 32;
/// Number of tasks at the end of another device's list that an idle device examines.
const STEAL_MAX: usize = 128;

/// The tasks that a device can steal from one list.
#[derive(Debug, Default)]
struct Stealable {
    tasks: Vec<u32>,
    /// Time until they are done, from now.
    time: Time,
    /// Largest gain of a single task.
    gain: Time,
}

/// The planned lists of tasks of all devices.
#[derive(Clone, Debug)]
pub(super) struct PlannedQueues {
    /// For each device, its tasks in the order of their planned start.
    order: Vec<Vec<u32>>,
    /// For each device, the position of its next task in its list.
    cursor: Vec<usize>,
    /// For each task, the device whose list it is in.
    home: Vec<u8>,
    /// For each task, the number of unfinished inputs that its own device's list does not order
    /// before it.
    pending: Vec<u32>,
    /// Tasks that run outside the order of their list: their end must be reported to all readers,
    /// on any device.
    out_of_order: Vec<bool>,
}

impl PlannedQueues {
    /// Creates the lists of the waiting tasks, by start.
    pub fn new(problem: &Problem, device: &[usize], start: &[Time], state: &[TaskState]) -> Self {
        let tasks = problem.task_count();
        let mut order = vec![Vec::new(); problem.device_count()];
        let mut position = vec![0u32; tasks];
        for (index, &task) in problem.topological_order().iter().enumerate() {
            position[task] = index as u32;
            if state[task] == TaskState::Waiting {
                order[device[task]].push(task as u32);
            }
        }
        for list in &mut order {
            list.sort_by_key(|&task| (start[task as usize], position[task as usize]));
        }
        let out_of_order: Vec<bool> = state
            .iter()
            .map(|state| *state == TaskState::Taken)
            .collect();
        let mut pending = vec![0; tasks];
        for task in (0..tasks).filter(|&task| state[task] == TaskState::Waiting) {
            let waits = |&(before, _): &(usize, u64)| match state[before] {
                TaskState::Done => false,
                TaskState::Taken => true,
                TaskState::Waiting => device[before] != device[task],
            };
            pending[task] = problem.inputs_of(task).filter(waits).count() as u32;
        }
        Self {
            cursor: vec![0; order.len()],
            home: device.iter().map(|&device| device as u8).collect(),
            order,
            pending,
            out_of_order,
        }
    }
}

impl Dispatch {
    fn lists_mut(&mut self) -> &mut PlannedQueues {
        match &mut self.mode {
            DispatchMode::Planned(planned) => planned,
            DispatchMode::Dynamic(_) => unreachable!("only a planned job has lists"),
        }
    }

    fn lists_now(&self) -> &PlannedQueues {
        match &self.mode {
            DispatchMode::Planned(planned) => planned,
            DispatchMode::Dynamic(_) => unreachable!("only a planned job has lists"),
        }
    }

    /// Sums the estimates of every list again.
    pub(super) fn sum_planned_loads(&mut self) {
        self.planned_speeds.clone_from(&self.speeds);
        for device in 0..self.load.len() {
            let list = &self.lists_now().order[device];
            let estimates = list
                .iter()
                .map(|&task| self.estimate_time(task as usize, device));
            let load: Time = estimates.sum();
            self.drift[device] = super::Drift {
                planned: load as f64,
                ..super::Drift::default()
            };
            self.load[device] = load;
        }
    }

    pub(super) fn take_planned(&mut self, device: usize, now: Time, batch: &mut Vec<u32>) {
        let mut time = 0;
        while batch.len() < BATCH_TASKS && time < BATCH_TIME {
            let lists = self.lists_now();
            let Some(&task) = lists.order[device].get(lists.cursor[device]) else {
                break;
            };
            let waits = self.state[task as usize] == TaskState::Waiting;
            if waits && lists.pending[task as usize] > 0 {
                break;
            }
            let estimate = match waits {
                true => self.estimate_time(task as usize, device),
                false => 0,
            };
            if !can_join_batch(batch, time, estimate) {
                break;
            }
            self.lists_mut().cursor[device] += 1;
            if waits {
                time += estimate;
                self.assign_task(task, device, batch);
            }
        }
        if batch.is_empty() && !self.keeps_plan {
            time = self.take_ahead(device, now, batch);
        }
        self.load[device] = self.load[device].saturating_sub(time);
        if batch.is_empty() && !self.keeps_plan {
            time = self.steal_planned(device, now, batch);
        }
        self.busy_until[device] = now + time;
    }

    /// Takes a task that can run while the first planned one waits, and that will end by then.
    fn take_ahead(&mut self, device: usize, now: Time, batch: &mut Vec<u32>) -> Time {
        let lists = self.lists_now();
        let rest = &lists.order[device][lists.cursor[device]..];
        let Some((&first, behind)) = rest.split_first() else {
            return 0;
        };
        let wait = self.wait_for(first as usize, now);
        let ready = |task: &u32| {
            self.is_ready(*task as usize) && self.estimate_time(*task as usize, device) <= wait
        };
        let Some(task) = behind.iter().take(AHEAD_MAX).copied().find(ready) else {
            return 0;
        };
        self.counts.ahead += 1;
        self.lists_mut().out_of_order[task as usize] = true;
        self.count_for_local_readers(task);
        let time = self.estimate_time(task as usize, device);
        self.assign_task(task, device, batch);
        time
    }

    /// Returns the shortest possible wait of a task for its inputs: the remaining time of running
    /// ones, infinite if one has not started.
    fn wait_for(&self, task: usize, now: Time) -> Time {
        let undone = self
            .problem
            .inputs_of(task)
            .filter(|(before, _)| self.state[*before] != TaskState::Done);
        let each = undone.map(|(before, _)| match self.state[before] {
            TaskState::Taken => {
                self.busy_until[usize::from(self.device_by_task[before])].saturating_sub(now)
            }
            _ => Time::MAX,
        });
        each.max().unwrap_or(0)
    }

    fn is_ready(&self, task: usize) -> bool {
        self.state[task] == TaskState::Waiting
            && self
                .problem
                .inputs_of(task)
                .all(|(before, _)| self.state[before] == TaskState::Done)
    }

    /// Makes a task's readers on its own device count it, because it leaves its place in their
    /// list.
    fn count_for_local_readers(&mut self, task: u32) {
        let problem = self.problem.clone();
        let lists = self.lists_mut();
        let home = lists.home[task as usize];
        for (after, _) in problem.readers_of(task as usize) {
            if lists.home[after] == home {
                lists.pending[after] += 1;
            }
        }
    }

    /// Steals tasks from the end of another device's list that end sooner here, including their
    /// transfers. It takes several small tasks at once, like any batch.
    fn steal_planned(&mut self, device: usize, now: Time, batch: &mut Vec<u32>) -> Time {
        let others = (0..self.load.len()).filter(|&owner| owner != device);
        let best = others
            .map(|owner| (self.stealable_tasks(owner, device, now), owner))
            .max_by_key(|(stealable, _)| stealable.gain);
        let Some((stealable, owner)) = best.filter(|(found, _)| !found.tasks.is_empty()) else {
            return 0;
        };
        self.counts.stolen += stealable.tasks.len() as u64;
        for task in stealable.tasks {
            let elsewhere = self.estimate_time(task as usize, owner);
            self.load[owner] = self.load[owner].saturating_sub(elsewhere);
            self.lists_mut().out_of_order[task as usize] = true;
            self.count_for_local_readers(task);
            self.assign_task(task, device, batch);
        }
        stealable.time
    }

    /// Returns the tasks that a device can steal from the end of another device's list.
    fn stealable_tasks(&self, owner: usize, device: usize, now: Time) -> Stealable {
        let lists = self.lists_now();
        let mut found = Stealable::default();
        let mut ends = now.max(self.busy_until[owner]) + self.load[owner];
        let rest = &lists.order[owner][lists.cursor[owner]..];
        for &task in rest.iter().rev().take(STEAL_MAX) {
            if self.state[task as usize] != TaskState::Waiting {
                continue;
            }
            let here = self.estimate_time(task as usize, device);
            if here != NEVER && found.time < BATCH_TIME && self.is_ready(task as usize) {
                let begins = self
                    .arrival_time(task as usize, device, now)
                    .max(now + found.time);
                let there = ends + self.host_transfer(task as usize, owner);
                let ends_here = begins + here + self.host_transfer(task as usize, device);
                let gain = there.saturating_sub(ends_here);
                if gain > STEAL_GAIN {
                    found.gain = found.gain.max(gain);
                    found.time = begins + here - now;
                    found.tasks.push(task);
                }
            }
            ends = ends.saturating_sub(self.estimate_time(task as usize, owner));
        }
        found
    }

    /// Counts down the inputs of tasks that waited for completed ones. Returns the set of devices
    /// that can continue.
    pub(super) fn free_planned(&mut self, tasks: &[u32]) -> u64 {
        let DispatchMode::Planned(lists) = &mut self.mode else {
            unreachable!("only a planned job has lists");
        };
        let mut wake = 0;
        for &task in tasks {
            let (home, out_of_order) =
                (lists.home[task as usize], lists.out_of_order[task as usize]);
            for (after, _) in self.problem.readers_of(task as usize) {
                if !out_of_order && lists.home[after] == home {
                    continue;
                }
                let pending = &mut lists.pending[after];
                *pending = pending.saturating_sub(1);
                if *pending == 0 {
                    wake |= 1 << lists.home[after];
                }
            }
        }
        wake
    }
}
