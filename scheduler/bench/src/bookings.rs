//! One decision at a time: where a task that has just become ready should run, by what is known
//! now. For work that arrives while other work runs, where no plan of the whole can be made.
//!
//! The task goes where it ends first: when its data are there and the device is free. A decision
//! looks at each device once and allocates nothing.

use souk_scheduler::planning::{NEVER, Time};

/// Until when each device is booked, and the links among them.
#[derive(Clone, Debug)]
pub struct Bookings {
    free: Vec<Time>,
    memory_left: Vec<u64>,
    /// Latency and time for each byte: rows of senders.
    links: Vec<(Time, Time)>,
    /// When the data of the task under decision are on each device.
    ready: Vec<Time>,
}

/// Data that a task reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where they are.
    pub device: usize,
    /// When they are there.
    pub at: Time,
    /// How many bytes.
    pub bytes: u64,
}

/// Where a task goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The device.
    pub device: usize,
    /// When it starts.
    pub start: Time,
    /// When it ends.
    pub finish: Time,
}

impl Bookings {
    /// Idle devices with so much memory each, and the latency and time for each byte from each of
    /// them to each other, row after row.
    ///
    /// # Panics
    /// If the links are not one for each pair.
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

    /// Where a task goes that takes `exec` on the devices, needs `memory` while it is there, and
    /// reads `sources`; `None` if no device runs it and has the memory. Nothing is booked.
    pub fn decide(
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
            // Within the device nothing is sent.
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
    /// If the decision is not one of these bookings for so much memory.
    pub fn book(&mut self, decision: Decision, memory: u64) {
        let left = &mut self.memory_left[decision.device];
        *left = left.checked_sub(memory).expect("what was decided fits");
        let free = &mut self.free[decision.device];
        *free = (*free).max(decision.finish);
    }

    /// What was expected of a task has come true otherwise: its device is free at `free` now, and
    /// `memory` of it is given back.
    pub fn correct(&mut self, device: usize, free: Time, memory: u64) {
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
        let decision = devices.decide(0, &[30, 4], 0, &near).unwrap();
        assert_eq!((decision.device, decision.finish), (1, 39));
        devices.book(decision, 0);
        let next = devices.decide(0, &[30, 4], 0, &near).unwrap();
        assert_eq!((next.device, next.finish), (0, 40));
    }

    #[test]
    fn what_does_not_fit_or_run_is_not_decided_for() {
        let mut devices = two();
        let large = devices.decide(0, &[9, 1], 60, &[]).unwrap();
        assert_eq!(large.device, 0);
        devices.book(large, 60);
        assert_eq!(devices.decide(0, &[9, 1], 60, &[]), None);
        assert_eq!(devices.decide(0, &[NEVER, NEVER], 0, &[]), None);
        devices.correct(0, 0, 60);
        assert!(devices.decide(0, &[9, NEVER], 60, &[]).is_some());
    }
}
