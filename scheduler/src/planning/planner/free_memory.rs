//! Tracks the free memory of each device while a planner places tasks on devices and removes them
//! again.

use crate::planning::problem::Problem;

/// Free bytes by device.
#[derive(Clone, Debug)]
pub(crate) struct FreeMemory {
    left: Vec<u64>,
}

impl FreeMemory {
    /// Returns the free memory of devices without tasks.
    pub(crate) fn new(problem: &Problem) -> Self {
        let devices = 0..problem.device_count();
        Self {
            left: devices
                .map(|device| problem.device_capacity(device))
                .collect(),
        }
    }

    /// Returns the free bytes of a device.
    pub(crate) fn free_bytes(&self, device: usize) -> u64 {
        self.left[device]
    }

    /// Returns whether the device has room for the task.
    #[inline]
    pub(crate) fn has_room(&self, problem: &Problem, task: usize, device: usize) -> bool {
        problem.task_memory(task) <= self.left[device]
    }

    /// Returns whether the device has room for all the tasks together.
    pub(crate) fn has_room_for_all(
        &self,
        problem: &Problem,
        tasks: impl Iterator<Item = usize>,
        device: usize,
    ) -> bool {
        let needed = tasks.map(|task| problem.task_memory(task));
        needed.fold(0, u64::saturating_add) <= self.left[device]
    }

    /// Subtracts the task's bytes from the device's free bytes. In the middle of a change of
    /// several tasks the result can wrap below zero; a later step of the change must return the
    /// bytes.
    #[inline]
    pub(crate) fn take_bytes(&mut self, problem: &Problem, task: usize, device: usize) {
        self.left[device] = self.left[device].wrapping_sub(problem.task_memory(task));
    }

    /// Returns the task's bytes to the device.
    #[inline]
    pub(crate) fn return_bytes(&mut self, problem: &Problem, task: usize, device: usize) {
        self.left[device] = self.left[device].wrapping_add(problem.task_memory(task));
    }
}
