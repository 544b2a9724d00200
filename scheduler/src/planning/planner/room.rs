//! Memory left on each device.

use crate::planning::problem::Problem;

/// Bytes left by device.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    left: Vec<u64>,
}

impl Room {
    /// Empty devices.
    pub(crate) fn new(problem: &Problem) -> Self {
        let devices = 0..problem.devices();
        Self {
            left: devices.map(|device| problem.capacity(device)).collect(),
        }
    }

    /// Bytes left on a device.
    pub(crate) fn left(&self, device: usize) -> u64 {
        self.left[device]
    }

    /// Whether the device has room for the task.
    #[inline]
    pub(crate) fn fits(&self, problem: &Problem, task: usize, device: usize) -> bool {
        problem.memory(task) <= self.left[device]
    }

    /// Whether the device has room for all the tasks together.
    pub(crate) fn fits_all(
        &self,
        problem: &Problem,
        tasks: impl Iterator<Item = usize>,
        device: usize,
    ) -> bool {
        let needed = tasks.map(|task| problem.memory(task));
        needed.fold(0, u64::saturating_add) <= self.left[device]
    }

    /// The task's bytes are taken. They may be more than are left where a change of several tasks
    /// gives them back in its next step.
    #[inline]
    pub(crate) fn take(&mut self, problem: &Problem, task: usize, device: usize) {
        self.left[device] = self.left[device].wrapping_sub(problem.memory(task));
    }

    /// The task's bytes are given back.
    #[inline]
    pub(crate) fn give(&mut self, problem: &Problem, task: usize, device: usize) {
        self.left[device] = self.left[device].wrapping_add(problem.memory(task));
    }
}
