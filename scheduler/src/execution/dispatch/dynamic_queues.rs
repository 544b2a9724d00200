//! Queues the tasks of a job that has no plan, for the dispatch: a task that becomes ready joins
//! the queue of the device where it ends soonest, given the queued tasks, the transfer of its
//! inputs and the measured corrections.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{
    BALANCE_MAX, BATCH_TASKS, BATCH_TIME, Dispatch, DispatchMode, STEAL_GAIN, TaskState,
    can_join_batch,
};
use crate::planning::problem::Problem;
use crate::planning::time::{NEVER, Time};

/// Maximum number of tasks in a device's queue. Further ready tasks wait until a queue has room,
/// and use the corrections of that time.
const QUEUE_MAX: usize = 512;
/// Number of tasks at the end of another device's queue that an idle device examines.
const STEAL_MAX: usize = 16;

/// A task by its priority, the highest first: the longest path to the end of the graph.
type QueuedTask = (Reverse<Time>, u32);

/// Queues of ready tasks, one for each device.
#[derive(Clone, Debug)]
pub(super) struct DynamicQueues {
    waiting: Vec<u32>,
    rank: Vec<Time>,
    /// Sorted, because most new tasks belong at the end.
    queues: Vec<VecDeque<QueuedTask>>,
    /// Ready tasks without room in a queue: the initial ones in order, the last one first, and
    /// those that became ready later.
    first: Vec<(Time, Reverse<u32>)>,
    backlog: BinaryHeap<(Time, Reverse<u32>)>,
}

impl DynamicQueues {
    pub fn new(problem: &Problem) -> Self {
        let mut rank: Vec<Time> = vec![0; problem.task_count()];
        for &task in problem.topological_order().iter().rev() {
            let after = problem.readers_of(task).map(|(after, _)| rank[after]).max();
            let runs = problem.exec_row(task).iter().filter(|&&time| time != NEVER);
            let least = runs.copied().min().unwrap_or(0);
            rank[task] = after.unwrap_or(0).saturating_add(least);
        }
        Self {
            waiting: vec![0; problem.task_count()],
            rank,
            queues: vec![VecDeque::new(); problem.device_count()],
            first: Vec::new(),
            backlog: BinaryHeap::new(),
        }
    }

    /// Returns the ready task with the highest priority.
    fn next(&self) -> Option<u32> {
        let next = self.first.last().max(self.backlog.peek());
        next.map(|&(_, Reverse(task))| task)
    }

    fn pop_next(&mut self) {
        if self.first.last() >= self.backlog.peek() {
            self.first.pop();
        } else {
            self.backlog.pop();
        }
    }
}

impl Dispatch {
    fn queues_mut(&mut self) -> &mut DynamicQueues {
        match &mut self.mode {
            DispatchMode::Dynamic(dynamic) => dynamic,
            DispatchMode::Planned(_) => unreachable!("only a dynamic job has queues"),
        }
    }

    fn queues_now(&self) -> &DynamicQueues {
        match &self.mode {
            DispatchMode::Dynamic(dynamic) => dynamic,
            DispatchMode::Planned(_) => unreachable!("only a dynamic job has queues"),
        }
    }

    /// Counts the unfinished inputs of each task again, and places the ready tasks.
    pub(super) fn rebuild_dynamic_queues(&mut self, now: Time) {
        self.load.fill(0);
        let (problem, queues) = (self.problem.clone(), self.queues_mut());
        queues.queues.iter_mut().for_each(VecDeque::clear);
        queues.backlog.clear();
        let mut ready = Vec::new();
        for task in 0..problem.task_count() {
            let undone = |(before, _): &(usize, u64)| self.state[*before] != TaskState::Done;
            let waits = problem.inputs_of(task).filter(undone).count() as u32;
            self.queues_mut().waiting[task] = waits;
            if waits == 0 && self.state[task] == TaskState::Waiting {
                ready.push((self.queues_now().rank[task], Reverse(task as u32)));
            }
        }
        ready.sort_unstable();
        self.queues_mut().first = ready;
        self.place_backlog(now);
    }

    /// Fills queues from the backlog while the device that ends the next task soonest has room.
    fn place_backlog(&mut self, now: Time) {
        while let Some(task) = self.queues_now().next() {
            let Some(device) = self.earliest_finish_device(task as usize, now) else {
                return;
            };
            if self.queues_now().queues[device].len() >= QUEUE_MAX {
                return;
            }
            self.queues_mut().pop_next();
            self.enqueue_task(task, device);
            self.woken_devices |= 1 << device;
        }
    }

    fn enqueue_task(&mut self, task: u32, device: usize) {
        self.load[device] += self.estimate_time(task as usize, device);
        let queues = self.queues_mut();
        let entry = (Reverse(queues.rank[task as usize]), task);
        let queue = &mut queues.queues[device];
        if queue.back().is_none_or(|last| *last < entry) {
            return queue.push_back(entry);
        }
        let place = queue.binary_search(&entry);
        let place = place.expect_err("a task is queued once");
        queue.insert(place, entry);
    }

    fn dequeue_task(&mut self, entry: QueuedTask, device: usize) {
        let estimate = self.estimate_time(entry.1 as usize, device);
        self.load[device] = self.load[device].saturating_sub(estimate);
        let queue = &mut self.queues_mut().queues[device];
        let place = queue.binary_search(&entry).expect("it was queued there");
        queue.remove(place);
    }

    /// Returns the device on which a ready task ends soonest.
    fn earliest_finish_device(&self, task: usize, now: Time) -> Option<usize> {
        let ends = (0..self.load.len()).filter_map(|device| {
            let time = self.estimate_time(task, device);
            let runs = time != NEVER && !self.is_lost(device);
            runs.then(|| (self.ends_on(task, device, now, time), device))
        });
        ends.min().map(|(_, device)| device)
    }

    fn ends_on(&self, task: usize, device: usize, now: Time, time: Time) -> Time {
        let free = now.max(self.busy_until[device]) + self.load[device];
        free.max(self.arrival_time(task, device, now)) + time + self.host_transfer(task, device)
    }

    pub(super) fn take_dynamic(&mut self, device: usize, now: Time, batch: &mut Vec<u32>) {
        let mut time = 0;
        if self.queues_now().queues[device].len() < QUEUE_MAX / 2 {
            self.place_backlog(now);
        }
        // A device must leave the other devices their part of the ready tasks.
        let most = self.fair_share(device);
        while batch.len() < most && time < BATCH_TIME {
            let Some(&(_, task)) = self.queues_now().queues[device].front() else {
                break;
            };
            let estimate = self.estimate_time(task as usize, device);
            if !can_join_batch(batch, time, estimate) {
                break;
            }
            self.queues_mut().queues[device].pop_front();
            self.load[device] = self.load[device].saturating_sub(estimate);
            time += estimate;
            self.assign_task(task, device, batch);
        }
        if batch.is_empty() {
            time = self.steal_dynamic(device, now, batch);
        }
        self.busy_until[device] = now + time;
    }

    fn fair_share(&self, device: usize) -> usize {
        let queued = self.queues_now().queues[device].len();
        queued.div_ceil(2).clamp(1, BATCH_TASKS)
    }

    fn steal_dynamic(&mut self, device: usize, now: Time, batch: &mut Vec<u32>) -> Time {
        let mut best: Option<(Time, QueuedTask, usize)> = None;
        for owner in (0..self.load.len()).filter(|&owner| owner != device) {
            let mut ends = now.max(self.busy_until[owner]) + self.load[owner];
            for &entry in self.queues_now().queues[owner].iter().rev().take(STEAL_MAX) {
                let task = entry.1 as usize;
                let here = self.estimate_time(task, device);
                if here != NEVER {
                    let ends_here = self.arrival_time(task, device, now) + here;
                    let there = ends + self.host_transfer(task, owner);
                    let gain = there.saturating_sub(ends_here + self.host_transfer(task, device));
                    if gain > STEAL_GAIN && best.is_none_or(|(most, ..)| gain > most) {
                        best = Some((gain, entry, owner));
                    }
                }
                ends = ends.saturating_sub(self.estimate_time(task, owner));
            }
        }
        let Some((_, entry, owner)) = best else {
            return 0;
        };
        self.counts.stolen += 1;
        self.dequeue_task(entry, owner);
        let task = entry.1 as usize;
        self.assign_task(entry.1, device, batch);
        self.arrival_time(task, device, now) - now + self.estimate_time(task, device)
    }

    /// Places tasks that have become ready. Returns the set of devices that can continue.
    pub(super) fn free_dynamic(&mut self, tasks: &[u32], now: Time) -> u64 {
        let (problem, mut wake) = (self.problem.clone(), 0);
        for &task in tasks {
            for (after, _) in problem.readers_of(task as usize) {
                let waiting = &mut self.queues_mut().waiting[after];
                *waiting = waiting.saturating_sub(1);
                if *waiting > 0 || self.state[after] != TaskState::Waiting {
                    continue;
                }
                wake |= self.place_ready(after as u32, now);
            }
        }
        wake
    }

    fn place_ready(&mut self, task: u32, now: Time) -> u64 {
        match self.earliest_finish_device(task as usize, now) {
            Some(device) if self.queues_now().queues[device].len() < QUEUE_MAX => {
                self.enqueue_task(task, device);
                1 << device
            }
            _ => {
                let queues = self.queues_mut();
                queues
                    .backlog
                    .push((queues.rank[task as usize], Reverse(task)));
                u64::MAX
            }
        }
    }

    /// Sums the queues of devices again whose speed has changed.
    fn sum_stale_loads(&mut self) {
        let devices = self.load.len();
        for device in (0..devices).filter(|device| self.stale_devices >> device & 1 == 1) {
            let queue = &self.queues_now().queues[device];
            let each = queue
                .iter()
                .map(|&(_, task)| self.estimate_time(task as usize, device));
            self.load[device] = each.sum();
            for kind in 0..self.speeds.kind_count() {
                let factor = self.speeds.factor(kind as u16, device);
                self.summed_factors[kind * devices + device] = factor;
            }
        }
        self.stale_devices = 0;
    }

    /// Moves one task from a device whose load exceeds the mean by a fifth to a device that would
    /// end it sooner. Returns whether it did.
    pub(super) fn balance_load(&mut self, now: Time) -> bool {
        if matches!(self.mode, DispatchMode::Planned(_)) {
            return false;
        }
        if self.stale_devices != 0 {
            self.sum_stale_loads();
        }
        let dynamic = self.queues_now();
        let live = (0..self.load.len()).filter(|&device| !self.is_lost(device));
        let (sum, count) = live.fold((0, 0), |(sum, count), device| {
            (sum + self.load[device], count + 1)
        });
        let most = (0..self.load.len()).max_by_key(|&device| self.load[device]);
        let Some(owner) = most.filter(|_| count > 1) else {
            return false;
        };
        // Loads smaller than a batch are not worth moving.
        let over = self.load[owner] as f64 > BALANCE_MAX * (sum / count) as f64;
        if !over || self.load[owner] < BATCH_TIME {
            return false;
        }
        let Some(&entry) = dynamic.queues[owner].back() else {
            return false;
        };
        let task = entry.1 as usize;
        let ends = now.max(self.busy_until[owner]) + self.load[owner];
        let better = self.earliest_finish_device(task, now).filter(|&device| {
            let time = self.estimate_time(task, device);
            device != owner && self.ends_on(task, device, now, time) + STEAL_GAIN < ends
        });
        let room = better.filter(|&device| dynamic.queues[device].len() < QUEUE_MAX);
        let Some(device) = room else {
            return false;
        };
        self.counts.moved += 1;
        self.dequeue_task(entry, owner);
        self.enqueue_task(entry.1, device);
        true
    }
}
