//! A plan of a [`Problem`]: where each task runs and when, and the check that it is allowed.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::problem::{NEVER, Problem, Time};

/// Where and when each task runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Device of each task.
    pub device: Vec<usize>,
    /// Start of each task.
    pub start: Vec<Time>,
    /// When the last task ends.
    pub makespan: Time,
    /// Transfers between devices, where links carry one at a time; empty otherwise.
    pub transfers: Vec<LinkUse>,
}

/// A link in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkUse {
    /// Task that made the data.
    pub from: usize,
    /// Task that needs them.
    pub to: usize,
    /// Departure.
    pub start: Time,
    /// Arrival.
    pub finish: Time,
}

/// What a schedule breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleFault {
    /// Not one entry for each task.
    #[error("{found} tasks are scheduled, the problem has {expected}")]
    Length {
        /// Tasks of the problem.
        expected: usize,
        /// Entries of the schedule.
        found: usize,
    },
    /// A device that is not there or does not run the task.
    #[error("task {task} cannot run on device {device}")]
    Device {
        /// The task.
        task: usize,
        /// The device.
        device: usize,
    },
    /// A start before what the task waits for.
    #[error("task {task} starts at {start}, what it needs is there at {ready}")]
    Early {
        /// The task.
        task: usize,
        /// Its start.
        start: Time,
        /// When it could start.
        ready: Time,
    },
    /// Two tasks at once on one device.
    #[error("tasks {first} and {second} overlap on device {device}")]
    Overlap {
        /// The earlier task.
        first: usize,
        /// The later task.
        second: usize,
        /// The device.
        device: usize,
    },
    /// More memory than the device has.
    #[error("device {device} needs {needed} bytes and has {capacity}")]
    Memory {
        /// The device.
        device: usize,
        /// Bytes its tasks need.
        needed: u64,
        /// Bytes it has.
        capacity: u64,
    },
    /// A transfer that is missing, too short, too early, or at once with another on its link.
    #[error("the transfer from task {from} to task {to} is missing or not possible")]
    Transfer {
        /// Task that made the data.
        from: usize,
        /// Task that needs them.
        to: usize,
    },
    /// A makespan that is not the last end.
    #[error("the makespan is said to be {said}, it is {real}")]
    Makespan {
        /// What the schedule says.
        said: Time,
        /// What it is.
        real: Time,
    },
}

impl Schedule {
    /// When a task ends.
    #[must_use]
    pub fn finish(&self, problem: &Problem, task: usize) -> Time {
        self.start[task] + problem.exec(task, self.device[task])
    }

    /// Time each device computes.
    #[must_use]
    pub fn busy(&self, problem: &Problem) -> Vec<Time> {
        let mut busy = vec![0; problem.devices()];
        for (task, &device) in self.device.iter().enumerate() {
            busy[device] += problem.exec(task, device);
        }
        busy
    }

    /// Checks every rule: devices, dependencies, capacity, memory, releases, links, makespan.
    ///
    /// # Errors
    /// [`ScheduleFault`]: the first rule found broken.
    pub fn validate(&self, problem: &Problem) -> Result<(), ScheduleFault> {
        let expected = problem.tasks();
        let found = self.device.len().min(self.start.len());
        if found != expected || self.device.len() != self.start.len() {
            return Err(ScheduleFault::Length { expected, found });
        }
        self.check_devices(problem)?;
        self.check_starts(problem)?;
        self.check_overlaps(problem)?;
        self.check_memory(problem)?;
        if problem.is_contended() {
            self.check_links(problem)?;
        }
        let real = (0..expected)
            .map(|task| self.finish(problem, task))
            .max()
            .unwrap_or(0);
        let said = self.makespan;
        if said == real {
            Ok(())
        } else {
            Err(ScheduleFault::Makespan { said, real })
        }
    }

    fn check_devices(&self, problem: &Problem) -> Result<(), ScheduleFault> {
        let runs = |task: usize, device: usize| {
            device < problem.devices() && problem.exec(task, device) != NEVER
        };
        let mut places = self.device.iter().enumerate();
        match places.find(|(task, device)| !runs(*task, **device)) {
            None => Ok(()),
            Some((task, &device)) => Err(ScheduleFault::Device { task, device }),
        }
    }

    fn check_starts(&self, problem: &Problem) -> Result<(), ScheduleFault> {
        for task in 0..problem.tasks() {
            let arrivals = problem.before(task).map(|(before, bytes)| {
                let transfer = problem.transfer(self.device[before], self.device[task], bytes);
                self.finish(problem, before) + transfer
            });
            let ready = arrivals.chain([problem.release(task)]).max().unwrap_or(0);
            let start = self.start[task];
            if start < ready {
                return Err(ScheduleFault::Early { task, start, ready });
            }
        }
        Ok(())
    }

    fn check_overlaps(&self, problem: &Problem) -> Result<(), ScheduleFault> {
        let takes_time = |task: &usize| problem.exec(*task, self.device[*task]) > 0;
        let mut tasks: Vec<usize> = (0..problem.tasks()).filter(takes_time).collect();
        tasks.sort_by_key(|&task| (self.device[task], self.start[task], task));
        for pair in tasks.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            let device = self.device[first];
            let same = device == self.device[second];
            if same && self.finish(problem, first) > self.start[second] {
                return Err(ScheduleFault::Overlap {
                    first,
                    second,
                    device,
                });
            }
        }
        Ok(())
    }

    fn check_memory(&self, problem: &Problem) -> Result<(), ScheduleFault> {
        let mut needed = vec![0u64; problem.devices()];
        let mut held = BTreeSet::new();
        for (task, &device) in self.device.iter().enumerate() {
            let is_new = |set: usize| held.insert((device, set));
            if problem.weight_set(task).is_none_or(is_new) {
                needed[device] = needed[device].saturating_add(problem.memory(task));
            }
        }
        let over = |device: &usize| needed[*device] > problem.capacity(*device);
        match (0..problem.devices()).find(over) {
            None => Ok(()),
            Some(device) => Err(ScheduleFault::Memory {
                device,
                needed: needed[device],
                capacity: problem.capacity(device),
            }),
        }
    }

    fn check_links(&self, problem: &Problem) -> Result<(), ScheduleFault> {
        for edge in &problem.parts().edges {
            let (p, q) = (self.device[edge.from], self.device[edge.to]);
            let fits = |used: &&LinkUse| {
                used.from == edge.from
                    && used.to == edge.to
                    && used.start >= self.finish(problem, edge.from)
                    && used.finish <= self.start[edge.to]
                    && used.finish - used.start >= problem.transfer(p, q, edge.bytes)
            };
            if p != q && !self.transfers.iter().any(|used| fits(&used)) {
                let (from, to) = (edge.from, edge.to);
                return Err(ScheduleFault::Transfer { from, to });
            }
        }
        let mut uses = self.transfers.clone();
        let link = |used: &LinkUse| (self.device[used.from], self.device[used.to]);
        uses.sort_by_key(|used| (link(used), used.start, used.finish));
        let clash = uses
            .windows(2)
            .find(|pair| link(&pair[0]) == link(&pair[1]) && pair[0].finish > pair[1].start);
        match clash {
            None => Ok(()),
            Some(pair) => Err(ScheduleFault::Transfer {
                from: pair[1].from,
                to: pair[1].to,
            }),
        }
    }
}
