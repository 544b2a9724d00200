//! Makes one decision at a time: where to run a task that has just become ready. It serves work
//! that arrives while other work runs, when a plan of the whole is impossible.
//!
//! The task goes to the device where it ends first, given the arrival of its data and the end of
//! the device's work. A decision looks at each device once and allocates nothing.

use souk_scheduler::planning::{NEVER, Time};

/// The end of each device's bookings, and the links between the devices.
#[derive(Clone, Debug)]
pub struct Bookings {
    free: Vec<Time>,
    memory_left: Vec<u64>,
    /// Latency and time per byte, one row for each sender.
    links: Vec<(Time, Time)>,
    /// Arrival of the current task's data on each device.
    ready: Vec<Time>,
}

/// Data that a task reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Device that holds it.
    pub device: usize,
    /// Time from which it is available.
    pub at: Time,
    /// Length in bytes.
    pub bytes: u64,
}

/// The device and the time of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Index of the device.
    pub device: usize,
    /// Start of the task.
    pub start: Time,
    /// End of the task.
    pub finish: Time,
}

impl Bookings {
    /// Creates bookings of idle devices with these bytes of memory. `links` holds latency and time
    /// per byte between all pairs, row by row.
    ///
    /// # Panics
    /// If `links` does not have one entry for each pair.
    #[must_use]
    pub fn new(memory: &[u64], links: Vec<(Time, Time)>) -> Self {
        let devices = memory.len();
        assert_eq!(links.len(), devices * devices, "a link for each pair");
        Self {
            free: vec![0; devices],
            memory_left: memory.to_vec(),
            links,
            ready: vec![0; devices],
        }
    }

    /// Returns the best device for a task that takes `exec` on the devices, occupies `memory` bytes
    /// and reads `sources`, whose devices must be among these. Returns `None` if no device can run
    /// it and has the memory. It books nothing: a caller that follows the decision must pass it to
    /// [`Bookings::book_decision`].
    pub fn choose_device(
        &mut self,
        now: Time,
        exec: &[Time],
        memory: u64,
        sources: &[Source],
    ) -> Option<Decision> {
        self.ready.fill(now);
        let devices = self.free.len();
        for source in sources {
            let row = &self.links[source.device * devices..(source.device + 1) * devices];
            let here = self.ready[source.device].max(source.at);
            for (ready, (latency, per_byte)) in self.ready.iter_mut().zip(row) {
                let transfer = latency.saturating_add(source.bytes.saturating_mul(*per_byte));
                *ready = (*ready).max(source.at.saturating_add(transfer));
            }
            // A device sends nothing to itself.
            self.ready[source.device] = here;
        }
        let mut best: Option<Decision> = None;
        for (device, &time) in exec.iter().enumerate().take(devices) {
            if time == NEVER || memory > self.memory_left[device] {
                continue;
            }
            let start = self.ready[device].max(self.free[device]);
            let finish = start.saturating_add(time);
            if best.is_none_or(|best| finish < best.finish) {
                best = Some(Decision {
                    device,
                    start,
                    finish,
                });
            }
        }
        best
    }

    /// Books a decision: the device is busy until its end and holds the task's memory.
    ///
    /// # Panics
    /// If the device lacks this much memory, because the decision is not one of these bookings.
    pub fn book_decision(&mut self, decision: Decision, memory: u64) {
        let left = &mut self.memory_left[decision.device];
        *left = left.checked_sub(memory).expect("what was decided fits");
        let free = &mut self.free[decision.device];
        *free = (*free).max(decision.finish);
    }

    /// Corrects the bookings after a task: its device becomes free at `free`, and regains `memory`
    /// bytes.
    pub fn correct_booking(&mut self, device: usize, free: Time, memory: u64) {
        self.free[device] = free;
        self.memory_left[device] = self.memory_left[device].saturating_add(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Bookings {
        Bookings::new(&[100, 50], vec![(0, 0), (5, 1), (5, 1), (0, 0)])
    }

    #[test]
    fn a_task_goes_where_it_ends_first() {
        let mut devices = two();
        let near = [Source {
            device: 0,
            at: 10,
            bytes: 20,
        }];
        // 10 + 30 here, 10 + 5 + 20 + 4 there.
        let decision = devices.choose_device(0, &[30, 4], 0, &near).unwrap();
        assert_eq!((decision.device, decision.finish), (1, 39));
        devices.book_decision(decision, 0);
        let next = devices.choose_device(0, &[30, 4], 0, &near).unwrap();
        assert_eq!((next.device, next.finish), (0, 40));
    }

    #[test]
    fn what_does_not_fit_or_run_is_not_decided_for() {
        let mut devices = two();
        let large = devices.choose_device(0, &[9, 1], 60, &[]).unwrap();
        assert_eq!(large.device, 0);
        devices.book_decision(large, 60);
        assert_eq!(devices.choose_device(0, &[9, 1], 60, &[]), None);
        assert_eq!(devices.choose_device(0, &[NEVER, NEVER], 0, &[]), None);
        devices.correct_booking(0, 0, 60);
        assert!(devices.choose_device(0, &[9, NEVER], 60, &[]).is_some());
    }
}
