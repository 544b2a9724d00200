//! Holds the current candidate of the annealing planner (an order of all tasks and a device for
//! each) with its times, and judges a change of the candidate without recomputing all times.
//!
//! Every task has its end and its tail: the longest path from its end to the end of all, along data
//! and along the queue of its device. A change touches a stretch of the order; no path that begins
//! after the stretch changes. So the new ends within the stretch and the old tails after it decide
//! exactly whether the makespan stays within a threshold, and the judge refuses most changes after
//! a handful of tasks. Only an accepted change propagates, forward over ends and backward over
//! tails, as far as anything differs.

use crate::planning::planner::free_memory::FreeMemory;
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::{NEVER, Time};

/// Positions between two stored states of the queues.
const STRIDE: usize = 16;

/// Stands for no task.
const NONE: u32 = u32::MAX;

/// A change: a stretch of the order in another order, and some tasks on other devices.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    /// First position of the stretch.
    pub(super) begin: usize,
    /// The tasks of the stretch in their new order; empty for none.
    pub(super) stretch: Vec<u32>,
    /// Tasks with their new devices.
    pub(super) devices: Vec<(u32, u32)>,
}

/// A stored candidate: an order of the tasks, a device for each, and the makespan.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) order: Vec<u32>,
    pub(super) device: Vec<u32>,
    pub(super) makespan: Time,
}

/// The current candidate of annealing, with its times.
pub(super) struct Decoder<'a> {
    pub(super) problem: &'a Problem,
    pub(super) order: Vec<u32>,
    pub(super) position: Vec<u32>,
    pub(super) device: Vec<u32>,
    finish: Vec<Time>,
    tail: Vec<Time>,
    /// Least possible tail of each task in any candidate: fastest devices, no transfers.
    least_tail: Vec<Time>,
    previous: Vec<u32>,
    next: Vec<u32>,
    first: Vec<u32>,
    /// Last task of each device before position `k x STRIDE`.
    marks: Vec<u32>,
    pub(super) free_memory: FreeMemory,
    makespan: Time,
    pub(super) critical: Vec<u32>,
    critical_known: bool,
    accepted: usize,
    /// Marks of tasks, which are valid if they equal the latest stamp.
    pub(super) stamps: Vec<u64>,
    stamp: u64,
    scratch: Scratch,
}

/// Temporary buffers for the judgement of a change.
#[derive(Default)]
struct Scratch {
    /// Last task of each device before the stretch, and within it as far as it is decoded.
    last: Vec<u32>,
    /// First task of each device after the stretch.
    behind: Vec<u32>,
    free: Vec<Time>,
    /// Ends within the stretch before the change.
    ends: Vec<(u32, Time)>,
    dirty: Vec<bool>,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(problem: &'a Problem, first: &Schedule) -> Self {
        let mut place = vec![0usize; problem.task_count()];
        for (index, &task) in problem.topological_order().iter().enumerate() {
            place[task] = index;
        }
        let mut order: Vec<u32> = (0..problem.task_count() as u32).collect();
        order.sort_by_key(|&task| (first.start[task as usize], place[task as usize]));
        let device = first.device.iter().map(|&device| device as u32).collect();
        Self::from_order(problem, order, device)
    }

    /// Creates a decoder at a stored candidate.
    pub(super) fn from_snapshot(problem: &'a Problem, kept: &Snapshot) -> Self {
        Self::from_order(problem, kept.order.clone(), kept.device.clone())
    }

    fn from_order(problem: &'a Problem, order: Vec<u32>, device: Vec<u32>) -> Self {
        let (tasks, devices) = (problem.task_count(), problem.device_count());
        let mut free_memory = FreeMemory::new(problem);
        for (task, &device) in device.iter().enumerate() {
            free_memory.take_bytes(problem, task, device as usize);
        }
        let mut decoder = Self {
            problem,
            order,
            position: vec![0; tasks],
            device,
            finish: vec![0; tasks],
            tail: vec![0; tasks],
            least_tail: least_tails(problem),
            previous: vec![NONE; tasks],
            next: vec![NONE; tasks],
            first: vec![NONE; devices],
            marks: vec![NONE; (tasks / STRIDE + 1) * devices],
            free_memory,
            makespan: 0,
            critical: Vec::new(),
            critical_known: false,
            accepted: 0,
            stamps: vec![0; tasks],
            stamp: 0,
            scratch: Scratch {
                last: vec![NONE; devices],
                behind: vec![NONE; devices],
                free: vec![0; devices],
                ends: Vec::new(),
                dirty: vec![false; tasks],
            },
        };
        decoder.rebuild_state();
        decoder
    }

    pub(super) fn makespan(&self) -> Time {
        self.makespan
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            order: self.order.clone(),
            device: self.device.clone(),
            makespan: self.makespan,
        }
    }

    /// Returns a stamp that no task carries yet.
    pub(super) fn new_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// Returns whether `device` can run `task`.
    pub(super) fn can_run(&self, task: usize, device: usize) -> bool {
        self.problem.exec_time(task, device) != NEVER
    }

    /// Returns whether `task` can move to `device`.
    pub(super) fn can_move(&self, task: usize, device: usize) -> bool {
        self.can_run(task, device) && self.free_memory.has_room(self.problem, task, device)
    }

    /// Returns the task ahead of `task` in the queue of its device.
    pub(super) fn task_ahead(&self, task: usize) -> Option<u32> {
        let ahead = self.previous[task];
        (ahead != NONE).then_some(ahead)
    }

    #[inline]
    fn exec_time(&self, task: usize) -> Time {
        self.problem.exec_time(task, self.device[task] as usize)
    }

    #[inline]
    fn transfer_time(&self, from: usize, to: usize, bytes: u64) -> Time {
        self.problem
            .transfer_time(self.device[from] as usize, self.device[to] as usize, bytes)
    }

    /// Returns the time when the data of `task` arrive.
    #[inline]
    fn ready_time(&self, task: usize) -> Time {
        let arrivals = self
            .problem
            .inputs_of(task)
            .map(|(before, bytes)| self.finish[before] + self.transfer_time(before, task, bytes));
        arrivals.max().unwrap_or(0)
    }

    /// Makes the change if the makespan stays at or below `threshold`, which must not be less than
    /// the present makespan. Returns whether it did.
    pub(super) fn attempt_change(&mut self, change: &mut Change, threshold: Time) -> bool {
        let (begin, end) = self.stretch_of(change);
        self.note_queues(begin, end);
        self.swap_change(change);
        if self.judge_stretch(begin, end, threshold) {
            self.carry_through(begin, end);
            return true;
        }
        for &(task, finish) in &self.scratch.ends {
            self.finish[task as usize] = finish;
        }
        self.swap_change(change);
        false
    }

    /// Makes the change if `accept` returns true for the resulting order and devices.
    pub(super) fn attempt_by(
        &mut self,
        change: &mut Change,
        accept: impl FnOnce(&[u32], &[u32]) -> bool,
    ) -> bool {
        let (begin, end) = self.stretch_of(change);
        self.note_queues(begin, end);
        self.swap_change(change);
        if !accept(&self.order, &self.device) {
            self.swap_change(change);
            return false;
        }
        let within = self.judge_stretch(begin, end, Time::MAX);
        assert!(within, "no makespan exceeds the greatest time");
        self.carry_through(begin, end);
        true
    }

    /// Lets `name` choose the tasks for most changes, in place of those on the longest path.
    pub(super) fn name_critical(&mut self, name: impl FnOnce(&mut Vec<u32>)) {
        name(&mut self.critical);
        self.critical_known = true;
    }

    /// Returns the positions that the change touches: `begin..end`.
    fn stretch_of(&self, change: &Change) -> (usize, usize) {
        let (mut begin, mut end) = (usize::MAX, 0);
        if !change.stretch.is_empty() {
            (begin, end) = (change.begin, change.begin + change.stretch.len());
        }
        for &(task, _) in &change.devices {
            let at = self.position[task as usize] as usize;
            (begin, end) = (begin.min(at), end.max(at + 1));
        }
        (begin, end)
    }

    /// Notes the last task before the stretch and the first one after it on each device.
    fn note_queues(&mut self, begin: usize, end: usize) {
        let devices = self.problem.device_count();
        let mark = begin / STRIDE;
        let Scratch { last, behind, .. } = &mut self.scratch;
        last.copy_from_slice(&self.marks[mark * devices..(mark + 1) * devices]);
        for &task in &self.order[mark * STRIDE..begin] {
            let device = self.device[task as usize] as usize;
            if self.problem.exec_time(task as usize, device) > 0 {
                last[device] = task;
            }
        }
        for (device, behind) in behind.iter_mut().enumerate() {
            *behind = match last[device] {
                NONE => self.first[device],
                task => self.next[task as usize],
            };
        }
        for &task in &self.order[begin..end] {
            let device = self.device[task as usize] as usize;
            if behind[device] == task {
                behind[device] = self.next[task as usize];
            }
        }
    }

    /// Makes the change and turns it into its opposite.
    fn swap_change(&mut self, change: &mut Change) {
        if !change.stretch.is_empty() {
            let (begin, end) = (change.begin, change.begin + change.stretch.len());
            self.order[begin..end].swap_with_slice(&mut change.stretch);
            self.renumber_positions(begin, end);
        }
        for (task, device) in &mut change.devices {
            let index = *task as usize;
            let (from, to) = (self.device[index] as usize, *device as usize);
            self.free_memory.return_bytes(self.problem, index, from);
            self.free_memory.take_bytes(self.problem, index, to);
            std::mem::swap(&mut self.device[index], device);
        }
    }

    fn renumber_positions(&mut self, begin: usize, end: usize) {
        for (index, &task) in self.order[begin..end].iter().enumerate() {
            self.position[task as usize] = (begin + index) as u32;
        }
    }

    /// Computes the ends within the stretch in place of the old ones. Returns whether every path
    /// through it stays within `threshold`.
    fn judge_stretch(&mut self, begin: usize, end: usize, threshold: Time) -> bool {
        self.scratch.ends.clear();
        for (device, &last) in self.scratch.last.iter().enumerate() {
            self.scratch.free[device] = if last == NONE {
                0
            } else {
                self.finish[last as usize]
            };
        }
        for at in begin..end {
            let task = self.order[at] as usize;
            let device = self.device[task] as usize;
            let exec = self.exec_time(task);
            let mut finish = self.ready_time(task);
            if exec > 0 {
                finish = finish.max(self.scratch.free[device]) + exec;
                self.scratch.free[device] = finish;
            }
            self.scratch.ends.push((task as u32, self.finish[task]));
            self.finish[task] = finish;
            if finish + self.least_tail[task] > threshold {
                return false;
            }
        }
        let queues = self.scratch.behind.iter().zip(&self.scratch.free);
        let late = |(&behind, &free): (&u32, &Time)| {
            behind != NONE && {
                let task = behind as usize;
                free + self.exec_time(task) + self.tail[task] > threshold
            }
        };
        if queues.into_iter().any(late) {
            return false;
        }
        let leaves = |&task: &u32| {
            let task = task as usize;
            self.problem.readers_of(task).any(|(after, bytes)| {
                self.position[after] as usize >= end && {
                    let arrival = self.finish[task] + self.transfer_time(task, after, bytes);
                    arrival + self.exec_time(after) + self.tail[after] > threshold
                }
            })
        };
        !self.order[begin..end].iter().any(leaves)
    }

    /// Propagates an accepted change through queues, ends, tails and marks.
    fn carry_through(&mut self, begin: usize, end: usize) {
        self.relink_queues(begin, end);
        self.carry_forward(begin, end);
        self.carry_backward(begin, end);
        self.renew_marks(begin, end);
        self.makespan = self.finish.iter().copied().max().unwrap_or(0);
        self.critical_known = false;
        self.accepted += 1;
        if self.accepted.is_multiple_of(self.order.len().max(64)) {
            self.sort_by_start();
        }
    }

    fn relink_queues(&mut self, begin: usize, end: usize) {
        let mut last = std::mem::take(&mut self.scratch.last);
        for at in begin..end {
            let task = self.order[at];
            let index = task as usize;
            if self.exec_time(index) == 0 {
                (self.previous[index], self.next[index]) = (NONE, NONE);
                continue;
            }
            let device = self.device[index] as usize;
            self.link_tasks(last[device], task, device);
            last[device] = task;
        }
        for (device, &last) in last.iter().enumerate() {
            self.link_tasks(last, self.scratch.behind[device], device);
        }
        self.scratch.last = last;
    }

    fn link_tasks(&mut self, ahead: u32, task: u32, device: usize) {
        match ahead {
            NONE => self.first[device] = task,
            ahead => self.next[ahead as usize] = task,
        }
        if task != NONE {
            self.previous[task as usize] = ahead;
        }
    }

    fn carry_forward(&mut self, begin: usize, end: usize) {
        let mut dirty = std::mem::take(&mut self.scratch.dirty);
        let mut reach = end;
        for at in begin..end {
            let task = self.order[at] as usize;
            reach = reach.max(self.flag_behind(task, end, &mut dirty));
        }
        for &behind in &self.scratch.behind {
            if behind != NONE {
                dirty[behind as usize] = true;
                reach = reach.max(self.position[behind as usize] as usize + 1);
            }
        }
        let mut at = end;
        while at < reach {
            let task = self.order[at] as usize;
            at += 1;
            if !std::mem::replace(&mut dirty[task], false) {
                continue;
            }
            let exec = self.exec_time(task);
            let mut finish = self.ready_time(task);
            if exec > 0 {
                let ahead = self.previous[task];
                let free = if ahead == NONE {
                    0
                } else {
                    self.finish[ahead as usize]
                };
                finish = finish.max(free) + exec;
            }
            if finish != self.finish[task] {
                self.finish[task] = finish;
                reach = reach.max(self.flag_behind(task, at, &mut dirty));
            }
        }
        self.scratch.dirty = dirty;
    }

    /// Flags the tasks that wait for `task` at position `from` or later. Returns the position after
    /// the last of them.
    fn flag_behind(&self, task: usize, from: usize, dirty: &mut [bool]) -> usize {
        let mut reach = 0;
        let next = self.next[task];
        let next = (next != NONE).then_some(next as usize);
        let readers = self.problem.readers_of(task).map(|(after, _)| after);
        for after in readers.chain(next) {
            let at = self.position[after] as usize;
            if at >= from {
                dirty[after] = true;
                reach = reach.max(at + 1);
            }
        }
        reach
    }

    fn carry_backward(&mut self, begin: usize, end: usize) {
        let mut dirty = std::mem::take(&mut self.scratch.dirty);
        let mut low = begin;
        for &task in &self.order[begin..end] {
            dirty[task as usize] = true;
        }
        // Tasks directly before the stretch in their queues can now have another successor.
        for &last in self.scratch.last.iter().filter(|&&last| last != NONE) {
            dirty[last as usize] = true;
            low = low.min(self.position[last as usize] as usize);
        }
        let mut at = end;
        while at > low {
            at -= 1;
            let task = self.order[at] as usize;
            if !std::mem::replace(&mut dirty[task], false) {
                continue;
            }
            let tail = self.tail_of(task);
            if tail != self.tail[task] || at >= begin {
                self.tail[task] = tail;
                low = low.min(self.flag_before(task, &mut dirty));
            }
        }
        self.scratch.dirty = dirty;
    }

    #[inline]
    fn tail_of(&self, task: usize) -> Time {
        let onward = self.problem.readers_of(task).map(|(after, bytes)| {
            self.transfer_time(task, after, bytes) + self.exec_time(after) + self.tail[after]
        });
        let next = self.next[task];
        let queue = if next == NONE {
            0
        } else {
            self.exec_time(next as usize) + self.tail[next as usize]
        };
        onward.max().unwrap_or(0).max(queue)
    }

    /// Flags the tasks that `task` waits for. Returns the first of their positions.
    fn flag_before(&self, task: usize, dirty: &mut [bool]) -> usize {
        let mut low = usize::MAX;
        let ahead = self.previous[task];
        let ahead = (ahead != NONE).then_some(ahead as usize);
        for before in self
            .problem
            .inputs_of(task)
            .map(|(before, _)| before)
            .chain(ahead)
        {
            dirty[before] = true;
            low = low.min(self.position[before] as usize);
        }
        low
    }

    /// Renews the stored states of the queues from `begin` on, as far as they differ.
    fn renew_marks(&mut self, begin: usize, end: usize) {
        let devices = self.problem.device_count();
        let mut mark = begin / STRIDE + 1;
        while mark * STRIDE <= self.order.len() && mark < self.marks.len() / devices {
            let (before, row) = self.marks.split_at_mut(mark * devices);
            let row = &mut row[..devices];
            let mut state: Vec<u32> = before[(mark - 1) * devices..].to_vec();
            for &task in &self.order[(mark - 1) * STRIDE..mark * STRIDE] {
                let device = self.device[task as usize] as usize;
                if self.problem.exec_time(task as usize, device) > 0 {
                    state[device] = task;
                }
            }
            let same = row == state.as_slice();
            row.copy_from_slice(&state);
            if same && mark * STRIDE >= end {
                break;
            }
            mark += 1;
        }
    }

    /// Sorts the order by start, which changes no time but makes positions match the starts.
    fn sort_by_start(&mut self) {
        let start = |task: u32| self.finish[task as usize] - self.exec_time(task as usize);
        let mut order = self.order.clone();
        order.sort_by_key(|&task| (start(task), self.position[task as usize]));
        self.order = order;
        self.rebuild_state();
    }

    /// Rebuilds all data from order and assignment.
    fn rebuild_state(&mut self) {
        let end = self.order.len();
        self.renumber_positions(0, end);
        self.scratch.last.fill(NONE);
        self.scratch.behind.fill(NONE);
        self.first.fill(NONE);
        self.relink_queues(0, end);
        self.scratch.last.fill(NONE);
        let within = self.judge_stretch(0, end, Time::MAX);
        assert!(within, "no makespan exceeds the greatest time");
        for at in (0..end).rev() {
            let task = self.order[at] as usize;
            self.tail[task] = self.tail_of(task);
        }
        self.marks.fill(NONE);
        self.renew_marks(0, end);
        self.makespan = self.finish.iter().copied().max().unwrap_or(0);
        self.critical_known = false;
    }

    /// Finds the tasks of a longest chain of waits, last first.
    pub(super) fn find_critical(&mut self) {
        if self.critical_known {
            return;
        }
        self.critical_known = true;
        self.critical.clear();
        let last = self
            .order
            .iter()
            .max_by_key(|&&task| self.finish[task as usize]);
        let mut next = last.copied();
        while let Some(task) = next {
            self.critical.push(task);
            next = self.waits_for(task as usize);
        }
    }

    /// Returns the task that a task waited for: the source of the last data, or the task before it
    /// on its device.
    fn waits_for(&self, task: usize) -> Option<u32> {
        let start = self.finish[task] - self.exec_time(task);
        if start == 0 {
            return None;
        }
        let arrival = |before: usize, bytes: u64| {
            self.finish[before] + self.transfer_time(before, task, bytes)
        };
        let mut sources = self.problem.inputs_of(task);
        let data = sources.find(|&(before, bytes)| arrival(before, bytes) == start);
        match data {
            Some((before, _)) => Some(before as u32),
            None => self.task_ahead(task),
        }
    }
}

/// Returns the least time from each task's end to the end of all: fastest devices, no transfers.
pub(crate) fn least_tails(problem: &Problem) -> Vec<Time> {
    let least = |task: usize| problem.exec_row(task).iter().copied().min().unwrap_or(0);
    let mut tail = vec![0; problem.task_count()];
    for &task in problem.topological_order().iter().rev() {
        let onward = problem
            .readers_of(task)
            .map(|(after, _)| tail[after] + least(after));
        tail[task] = onward.max().unwrap_or(0);
    }
    tail
}
