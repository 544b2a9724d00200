//! Memory left on each device, weights that several tasks share counted once a device.

use std::collections::BTreeSet;

use crate::problem::Problem;

/// What is left, and who holds which weights.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    left: Vec<u64>,
    /// Tasks on each device that read each set of weights, one row a device; empty if none shares.
    readers: Vec<u32>,
    sets: usize,
}

impl Room {
    /// Empty devices.
    pub(crate) fn new(problem: &Problem) -> Self {
        let devices = 0..problem.devices();
        let sets = problem.weight_sets();
        Self {
            left: devices.map(|device| problem.capacity(device)).collect(),
            readers: vec![0; sets * problem.devices()],
            sets,
        }
    }

    /// Bytes left on a device.
    pub(crate) fn left(&self, device: usize) -> u64 {
        self.left[device]
    }

    /// Whether the device has room for the task.
    #[inline]
    pub(crate) fn fits(&self, problem: &Problem, task: usize, device: usize) -> bool {
        problem.memory(task) <= self.left[device] || self.holds(problem, task, device)
    }

    /// Whether the device has room for all the tasks together.
    pub(crate) fn fits_all(
        &self,
        problem: &Problem,
        tasks: impl Iterator<Item = usize>,
        device: usize,
    ) -> bool {
        let mut known = BTreeSet::new();
        let mut needed = 0u64;
        for task in tasks.filter(|&task| !self.holds(problem, task, device)) {
            let is_new = problem.weight_set(task).is_none_or(|set| known.insert(set));
            if is_new {
                needed = needed.saturating_add(problem.memory(task));
            }
        }
        needed <= self.left[device]
    }

    /// The task's bytes are taken. They may be more than are left where a change of several tasks
    /// gives them back in its next step.
    #[inline]
    pub(crate) fn take(&mut self, problem: &Problem, task: usize, device: usize) {
        let is_held = self.holds(problem, task, device);
        if let Some(set) = problem.weight_set(task) {
            self.readers[device * self.sets + set] += 1;
        }
        if !is_held {
            self.left[device] = self.left[device].wrapping_sub(problem.memory(task));
        }
    }

    /// The task's bytes are given back, unless another task on the device reads its weights.
    #[inline]
    pub(crate) fn give(&mut self, problem: &Problem, task: usize, device: usize) {
        if let Some(set) = problem.weight_set(task) {
            let readers = &mut self.readers[device * self.sets + set];
            assert!(*readers > 0, "only what was taken is given back");
            *readers -= 1;
        }
        if !self.holds(problem, task, device) {
            self.left[device] = self.left[device].wrapping_add(problem.memory(task));
        }
    }

    #[inline]
    fn holds(&self, problem: &Problem, task: usize, device: usize) -> bool {
        let reads = |set: usize| self.readers[device * self.sets + set] > 0;
        problem.weight_set(task).is_some_and(reads)
    }
}
