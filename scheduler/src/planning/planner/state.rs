//! Holds a partial schedule, through which all list planners place their tasks.
//!
//! Each device has a sorted list of its idle gaps, so a bisection finds the earliest place for a
//! task without a walk over all placed tasks.

use super::free_memory::FreeMemory;
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::{NEVER, Time};

/// The earliest time at which a task can run on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) start: Time,
    pub(crate) finish: Time,
}

/// Whether a task can go into a gap between placed tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GapPolicy {
    /// Into the first gap that is long enough.
    Insert,
    /// Only after the last task.
    Append,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceSlots {
    gaps: Vec<(Time, Time)>,
    end: Time,
}

/// A schedule under construction.
#[derive(Clone, Debug)]
pub(crate) struct PartialSchedule<'a> {
    pub(crate) problem: &'a Problem,
    placing: GapPolicy,
    lines: Vec<DeviceSlots>,
    pub(crate) device: Vec<usize>,
    pub(crate) start: Vec<Time>,
    pub(crate) finish: Vec<Time>,
    free_memory: FreeMemory,
    makespan: Time,
}

const UNPLACED: usize = usize::MAX;

impl DeviceSlots {
    /// Returns the earliest start of a task of `length` that is ready at `ready`.
    fn find_start(&self, ready: Time, length: Time, placing: GapPolicy) -> Time {
        if length == 0 {
            return ready;
        }
        if placing == GapPolicy::Insert && ready < self.end {
            let first = self.gaps.partition_point(|gap| gap.1 < ready + length);
            for &(begin, end) in &self.gaps[first..] {
                let start = begin.max(ready);
                if start + length <= end {
                    return start;
                }
            }
        }
        self.end.max(ready)
    }

    fn occupy_slot(&mut self, start: Time, length: Time) {
        if length == 0 {
            return;
        }
        if start >= self.end {
            if start > self.end {
                self.gaps.push((self.end, start));
            }
            self.end = start + length;
            return;
        }
        let index = self.gaps.partition_point(|gap| gap.1 <= start);
        let (begin, end) = self.gaps[index];
        let pieces = [(begin, start), (start + length, end)];
        let left = pieces.into_iter().filter(|piece| piece.0 < piece.1);
        self.gaps.splice(index..=index, left);
    }
}

impl<'a> PartialSchedule<'a> {
    pub(crate) fn new(problem: &'a Problem, placing: GapPolicy) -> Self {
        let devices = problem.device_count();
        Self {
            problem,
            placing,
            lines: vec![DeviceSlots::default(); devices],
            device: vec![UNPLACED; problem.task_count()],
            start: vec![0; problem.task_count()],
            finish: vec![0; problem.task_count()],
            free_memory: FreeMemory::new(problem),
            makespan: 0,
        }
    }

    pub(crate) fn is_placed(&self, task: usize) -> bool {
        self.device[task] != UNPLACED
    }

    /// Returns the end of the last task placed on `device`.
    pub(crate) fn device_end(&self, device: usize) -> Time {
        self.lines[device].end
    }

    /// Returns the time when a task's inputs are on `device`; inputs from unplaced tasks count
    /// zero.
    pub(crate) fn ready_time(&self, task: usize, device: usize) -> Time {
        let placed = self
            .problem
            .inputs_of(task)
            .filter(|(before, _)| self.is_placed(*before));
        let arrivals = placed.map(|(before, bytes)| {
            self.finish[before]
                + self
                    .problem
                    .transfer_time(self.device[before], device, bytes)
        });
        arrivals.max().unwrap_or(0)
    }

    /// Returns [`Self::ready`] on every device, with a single lookup of each source.
    pub(crate) fn ready_everywhere(&self, task: usize) -> Vec<Time> {
        let devices = self.problem.device_count();
        let mut ready = vec![0; devices];
        for (before, bytes) in self
            .problem
            .inputs_of(task)
            .filter(|(b, _)| self.is_placed(*b))
        {
            let (from, finish) = (self.device[before], self.finish[before]);
            let own = ready[from].max(finish);
            for (ready, (latency, per_byte)) in ready.iter_mut().zip(self.problem.link_row(from)) {
                *ready = (*ready).max(finish + latency + bytes * per_byte);
            }
            // A device sends nothing to itself.
            ready[from] = own;
        }
        ready
    }

    /// Returns the earliest place of `task` on `device` for data that arrive at `ready`.
    pub(crate) fn slot_at(&self, task: usize, device: usize, ready: Time) -> Option<Slot> {
        let length = self.problem.exec_time(task, device);
        if length == NEVER || !self.free_memory.has_room(self.problem, task, device) {
            return None;
        }
        let start = self.lines[device].find_start(ready, length, self.placing);
        let finish = start + length;
        Some(Slot { start, finish })
    }

    /// Returns the earliest place of `task` on `device`; `None` if it cannot run there.
    pub(crate) fn earliest_slot(&self, task: usize, device: usize) -> Option<Slot> {
        if self.problem.exec_time(task, device) == NEVER {
            return None;
        }
        self.slot_at(task, device, self.ready_time(task, device))
    }

    /// Returns the device and place with the least `key`, the lower device among equals.
    pub(crate) fn best_by<K: PartialOrd>(
        &self,
        task: usize,
        mut key: impl FnMut(usize, Slot) -> K,
    ) -> Result<(usize, Slot), ProblemError> {
        let mut best: Option<(usize, Slot, K)> = None;
        for (device, ready) in self.ready_everywhere(task).into_iter().enumerate() {
            let Some(slot) = self.slot_at(task, device, ready) else {
                continue;
            };
            let key = key(device, slot);
            if best.as_ref().is_none_or(|(_, _, least)| key < *least) {
                best = Some((device, slot, key));
            }
        }
        best.map(|(device, slot, _)| (device, slot))
            .ok_or_else(|| self.full_error(task))
    }

    /// Returns the device and place where `task` ends first.
    pub(crate) fn earliest_finish(&self, task: usize) -> Result<(usize, Slot), ProblemError> {
        self.best_by(task, |_, slot| slot.finish)
    }

    pub(crate) fn full_error(&self, task: usize) -> ProblemError {
        let needed = self.problem.task_memory(task);
        ProblemError::Full { task, needed }
    }

    /// Places `task`, which must not be placed yet, on `device` at `slot`, which must be free.
    pub(crate) fn place_task(&mut self, task: usize, device: usize, slot: Slot) {
        assert!(!self.is_placed(task), "a task is placed once");
        self.lines[device].occupy_slot(slot.start, slot.finish - slot.start);
        self.free_memory.take_bytes(self.problem, task, device);
        self.device[task] = device;
        self.start[task] = slot.start;
        self.finish[task] = slot.finish;
        self.makespan = self.makespan.max(slot.finish);
    }

    pub(crate) fn into_schedule(self) -> Schedule {
        Schedule {
            device: self.device,
            start: self.start,
            makespan: self.makespan,
        }
    }
}
