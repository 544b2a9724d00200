//! Defines the output of a planner, a plan of a [`Problem`] that places each task on a device and
//! in time, and validates it.

use thiserror::Error;

use super::objective::{Figures, Objective, Score};
use super::problem::Problem;
use super::time::{NEVER, Time};

/// The device and the start of each task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Device of each task.
    pub device: Vec<usize>,
    /// Start of each task.
    pub start: Vec<Time>,
    /// End of the last task.
    pub makespan: Time,
}

/// The rule that a schedule breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleFault {
    /// The schedule does not have one entry for each task.
    #[error("{found} tasks are scheduled, the problem has {expected}")]
    Length {
        /// Number of tasks in the problem.
        expected: usize,
        /// Number of entries in the schedule.
        found: usize,
    },
    /// The device does not exist or cannot run the task.
    #[error("task {task} cannot run on device {device}")]
    Device {
        /// Index of the task.
        task: usize,
        /// Index of the device.
        device: usize,
    },
    /// A task starts before its inputs arrive.
    #[error("task {task} starts at {start}, what it needs is there at {ready}")]
    Early {
        /// Index of the task.
        task: usize,
        /// Start of the task.
        start: Time,
        /// Earliest possible start.
        ready: Time,
    },
    /// Two tasks overlap on one device.
    #[error("tasks {first} and {second} overlap on device {device}")]
    Overlap {
        /// Index of the earlier task.
        first: usize,
        /// Index of the later task.
        second: usize,
        /// Index of the device.
        device: usize,
    },
    /// The tasks of a device need more memory than it has.
    #[error("device {device} needs {needed} bytes and has {capacity}")]
    Memory {
        /// Index of the device.
        device: usize,
        /// Bytes that its tasks need.
        needed: u64,
        /// Bytes that the device has.
        capacity: u64,
    },
    /// The makespan differs from the end of the last task.
    #[error("the makespan is stated as {stated}, it is {real}")]
    Makespan {
        /// Makespan in the schedule.
        stated: Time,
        /// End of the last task.
        real: Time,
    },
}

impl Schedule {
    /// Returns the end of a task.
    #[must_use]
    pub fn finish_time(&self, problem: &Problem, task: usize) -> Time {
        self.start[task] + problem.exec_time(task, self.device[task])
    }

    /// Returns the makespan, cost and energy of the plan.
    #[must_use]
    pub fn figures(&self, problem: &Problem) -> Figures {
        problem.plan_figures(
            |task| self.device[task],
            |task| self.finish_time(problem, task),
        )
    }

    /// Returns the plan's score by the problem's objective.
    #[must_use]
    pub fn score(&self, problem: &Problem) -> Score {
        if problem.objective() == Objective::Fastest {
            let makespan = self.makespan;
            return problem.score_figures(&Figures {
                makespan,
                ..Figures::default()
            });
        }
        problem.score_figures(&self.figures(problem))
    }

    /// Returns the time for which each device computes.
    #[must_use]
    pub fn busy_times(&self, problem: &Problem) -> Vec<Time> {
        let mut busy = vec![0; problem.device_count()];
        for (task, &device) in self.device.iter().enumerate() {
            busy[device] += problem.exec_time(task, device);
        }
        busy
    }

    /// Checks every rule: devices, dependencies, overlaps, memory and makespan. You can use it to
    /// test a planner.
    ///
    /// # Errors
    /// [`ScheduleFault`] for the first broken rule.
    pub fn validate(&self, problem: &Problem) -> Result<(), ScheduleFault> {
        let expected = problem.task_count();
        let found = self.device.len().min(self.start.len());
        if found != expected || self.device.len() != self.start.len() {
            return Err(ScheduleFault::Length { expected, found });
        }
        self.check_devices(problem)?;
        self.check_starts(problem)?;
        self.check_overlaps(problem)?;
        self.check_memory(problem)?;
        let real = (0..expected)
            .map(|task| self.finish_time(problem, task))
            .max()
            .unwrap_or(0);
        let stated = self.makespan;
        if stated == real {
            Ok(())
        } else {
            Err(ScheduleFault::Makespan { stated, real })
        }
    }

    fn check_devices(&self, problem: &Problem) -> Result<(), ScheduleFault> {
        let runs = |task: usize, device: usize| {
            device < problem.device_count() && problem.exec_time(task, device) != NEVER
        };
        let mut places = self.device.iter().enumerate();
        match places.find(|(task, device)| !runs(*task, **device)) {
            None => Ok(()),
            Some((task, &device)) => Err(ScheduleFault::Device { task, device }),
        }
    }

    fn check_starts(&self, problem: &Problem) -> Result<(), ScheduleFault> {
        for task in 0..problem.task_count() {
            let arrivals = problem.inputs_of(task).map(|(before, bytes)| {
                let transfer = problem.transfer_time(self.device[before], self.device[task], bytes);
                self.finish_time(problem, before) + transfer
            });
            let ready = arrivals.max().unwrap_or(0);
            let start = self.start[task];
            if start < ready {
                return Err(ScheduleFault::Early { task, start, ready });
            }
        }
        Ok(())
    }

    fn check_overlaps(&self, problem: &Problem) -> Result<(), ScheduleFault> {
        let takes_time = |task: &usize| problem.exec_time(*task, self.device[*task]) > 0;
        let mut tasks: Vec<usize> = (0..problem.task_count()).filter(takes_time).collect();
        tasks.sort_by_key(|&task| (self.device[task], self.start[task], task));
        for pair in tasks.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            let device = self.device[first];
            let same = device == self.device[second];
            if same && self.finish_time(problem, first) > self.start[second] {
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
        let mut needed = vec![0u64; problem.device_count()];
        for (task, &device) in self.device.iter().enumerate() {
            needed[device] = needed[device].saturating_add(problem.task_memory(task));
        }
        let over = |device: &usize| needed[*device] > problem.device_capacity(*device);
        match (0..problem.device_count()).find(over) {
            None => Ok(()),
            Some(device) => Err(ScheduleFault::Memory {
                device,
                needed: needed[device],
                capacity: problem.device_capacity(device),
            }),
        }
    }
}
