//! Which task a device does next: the state of one job, told what was done and asked for more.
//!
//! Times are picoseconds since the job began, as a graph's problem has them
//! ([`SECOND`](crate::planning::time::SECOND)).

mod dynamic;
mod planned;
mod replan;

use std::sync::Arc;

use thiserror::Error;

use crate::learning::Speeds;
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::{NEVER, Time};
use dynamic::DynamicQueues;
use planned::PlannedQueues;

/// Work a device takes at once, if its tasks are small: long enough that taking it costs little
/// (about a microsecond), short enough that others do not wait for what it sets free.
pub const BATCH_TIME: Time = 50_000_000;
/// Tasks in a batch: their bookkeeping holds up the other devices.
const BATCH_TASKS: usize = 256;
/// What a stolen task must gain at least: about what it costs to hand it over.
const STEAL_GAIN: Time = 10_000_000;
/// Devices of a job: sets of them are words.
pub const DEVICES_MAX: usize = 64;
/// A device this far off the estimates of a plan has the rest planned anew: below it a static
/// plan is better than its repair (docs/execution.md).
const DRIFT_MAX: f64 = 1.25;
/// The part of a device's planned time that must have been measured before drift means anything.
const DRIFT_SHARE: f64 = 0.05;
/// What planning anew costs for each task and device, and how many times that must be left to do.
const REPLAN_COST: Time = 250_000;
const REPLAN_WORTH: Time = 20;
/// A device whose speed is this far from what its queue was summed with has it summed anew.
const SUM_STALE: f64 = 1.1;
/// A device this far off the mean load gives tasks away.
const BALANCE_MAX: f64 = 1.2;

/// How tasks find their devices.
#[derive(Clone, Copy, Debug)]
pub enum Placement<'a> {
    /// As a plan says, repaired where it proves wrong.
    Planned(&'a Schedule),
    /// Each where it ends soonest when it becomes ready.
    Dynamic,
}

/// What becomes of results on a device that fails.
#[derive(Clone)]
pub enum Results {
    /// They lie in host memory and can be used.
    Survive,
    /// They went with the device and are made again where they are needed.
    Lost,
    /// Who keeps them says what is left of them.
    Kept(ResultKeeper),
}

/// What whoever keeps the results of tasks is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultQuestion {
    /// A device is lost, and what lay there with it.
    Lost {
        /// The device.
        device: usize,
    },
    /// Whether what a task is to read of another's results is still there; it stays until read.
    Kept {
        /// The task that made them.
        by: usize,
        /// The task that reads them.
        reader: usize,
    },
}

/// Answers for the results of tasks; of a lost device the answer is not heard.
pub type ResultKeeper = Arc<dyn Fn(ResultQuestion) -> bool + Send + Sync>;

/// What happened beside plain running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tasks an idle device took from another's queue.
    pub stolen: u64,
    /// Tasks moved from a device with too much to do.
    pub moved: u64,
    /// Times the rest was planned anew.
    pub replanned: u64,
    /// Tasks that ran again because their results were lost.
    pub redone: u64,
    /// Tasks that ran before one planned ahead of them that had to wait.
    pub ahead: u64,
}

/// Why a job cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StrandedCause {
    /// A task runs on no device that is left.
    #[error("task {task} runs on no device that is left")]
    Task {
        /// The task.
        task: usize,
    },
    /// What is left cannot be planned.
    #[error("what is left cannot be planned: {0}")]
    Problem(#[from] ProblemError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    /// Not given out.
    Waiting,
    /// Given to a device.
    Taken,
    Done,
}

#[derive(Clone, Copy, Debug, Default)]
struct Drift {
    estimated: f64,
    measured: f64,
    planned: f64,
}

/// The core of one job.
#[derive(Clone, Debug)]
pub struct Dispatch {
    problem: Arc<Problem>,
    kinds: Arc<[u16]>,
    speeds: Speeds,
    /// What crosses between the host and a device for a task, by task and device; or empty.
    host_transfers: Arc<[Time]>,
    /// What was known when the present plan was made: drift is counted against that.
    believed: Speeds,
    state: Vec<TaskState>,
    /// The device that took a task.
    place: Vec<u8>,
    left: usize,
    lost: u64,
    /// When what a device has taken should be done.
    busy_until: Vec<Time>,
    /// Estimated time of what is assigned to a device and not taken.
    load: Vec<Time>,
    /// The corrections that queues were summed with, and devices whose corrections have left them.
    summed: Vec<f64>,
    stale: u64,
    /// Devices that were given tasks while another one took its own: they may be asleep.
    woken: u64,
    drift: Vec<Drift>,
    /// Whether no device takes another's task, or one of its own before its turn.
    keeps: bool,
    mode: DispatchMode,
    counts: Counts,
}

#[derive(Clone, Debug)]
enum DispatchMode {
    Planned(PlannedQueues),
    Dynamic(DynamicQueues),
}

impl Dispatch {
    /// The job of running `problem`. `kinds` tells tasks apart whose estimates err alike; empty for
    /// one kind.
    ///
    /// # Panics
    /// If there are more than [`DEVICES_MAX`] devices, or `kinds` or `speeds` fit another problem.
    #[must_use]
    pub fn new(
        problem: Arc<Problem>,
        placement: Placement<'_>,
        kinds: Arc<[u16]>,
        speeds: Speeds,
    ) -> Self {
        let (tasks, devices) = (problem.tasks(), problem.devices());
        assert!(
            devices <= DEVICES_MAX,
            "{devices} devices are too many for one job"
        );
        assert!(
            kinds.is_empty() || kinds.len() == tasks,
            "each task is of one kind"
        );
        let known = kinds.iter().all(|&kind| usize::from(kind) < speeds.kinds());
        assert!(
            known && speeds.devices() == devices,
            "the speeds are of these kinds and devices"
        );
        let state = vec![TaskState::Waiting; tasks];
        let mode = match placement {
            Placement::Planned(schedule) => DispatchMode::Planned(PlannedQueues::new(
                &problem,
                &schedule.device,
                &schedule.start,
                &state,
            )),
            Placement::Dynamic => DispatchMode::Dynamic(DynamicQueues::new(&problem)),
        };
        let mut dispatch = Self {
            kinds,
            believed: speeds.clone(),
            state,
            place: vec![0; tasks],
            left: tasks,
            lost: 0,
            busy_until: vec![0; devices],
            load: vec![0; devices],
            summed: vec![1.0; speeds.kinds() * devices],
            stale: 0,
            woken: 0,
            drift: vec![Drift::default(); devices],
            keeps: false,
            mode,
            counts: Counts::default(),
            host_transfers: Arc::default(),
            speeds,
            problem,
        };
        dispatch.begin();
        dispatch
    }

    /// The same with what each task takes besides, by task and then by device, for what comes from
    /// the host and goes there: nothing of what a device is measured by, but of where a task ends
    /// soonest.
    ///
    /// # Panics
    /// If there are some, and not one for each task and device.
    #[must_use]
    pub fn with_host_transfers(self, host_transfers: Arc<[Time]>) -> Self {
        let fit = self.problem.tasks() * self.problem.devices();
        assert!(
            host_transfers.is_empty() || host_transfers.len() == fit,
            "each task has a host_transfer to each device"
        );
        let mut counted = Self {
            host_transfers,
            ..self
        };
        if !counted.host_transfers.is_empty() {
            // What is ready was placed without them.
            counted.begin();
        }
        counted
    }

    /// The same, and if so no device takes another's planned task, or one of its own before its
    /// turn, while all of them work: not even one that has nothing to do.
    #[must_use]
    pub fn keeping(self, keeps: bool) -> Self {
        Self { keeps, ..self }
    }

    /// Tasks of the job.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.state.len()
    }

    /// Tasks that are not done.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What was learned of the estimates, for the next run.
    #[must_use]
    pub fn speeds(&self) -> &Speeds {
        &self.speeds
    }

    /// The device that did a task, or does it.
    #[must_use]
    pub fn place(&self, task: usize) -> Option<usize> {
        (self.state[task] != TaskState::Waiting).then(|| usize::from(self.place[task]))
    }

    /// The estimate of all that is not taken on the device that has most of it.
    #[must_use]
    pub fn time_left(&self) -> Time {
        self.load.iter().copied().max().unwrap_or(0)
    }

    /// Gives a device its next tasks, to be run in this order; none if there is nothing for it now.
    pub fn take(&mut self, device: usize, now: Time, batch: &mut Vec<u32>) {
        batch.clear();
        if self.is_lost(device) || self.left == 0 {
            return;
        }
        match self.mode {
            DispatchMode::Planned(_) => self.take_planned(device, now, batch),
            DispatchMode::Dynamic(_) => self.take_dynamic(device, now, batch),
        }
    }

    /// Devices that have something to do since a [`take`](Self::take) of another one, one bit each.
    pub fn woken(&mut self) -> u64 {
        std::mem::take(&mut self.woken)
    }

    /// A device has done a batch, or the first tasks of it, in `took`. Gives the set of devices
    /// that may have something to do now, one bit each.
    pub fn done(&mut self, device: usize, tasks: &[u32], took: Time, now: Time) -> u64 {
        let mut estimated = 0.0;
        for &task in tasks {
            assert_eq!(
                self.state[task as usize],
                TaskState::Taken,
                "only what was taken is done"
            );
            self.state[task as usize] = TaskState::Done;
            estimated += self.problem.exec(task as usize, device) as f64;
        }
        self.left -= tasks.len();
        self.learn(device, tasks, estimated, took as f64);
        let mut wake = match self.mode {
            DispatchMode::Planned(_) => self.free_planned(tasks),
            DispatchMode::Dynamic(_) => self.free_dynamic(tasks, now),
        };
        if self.balance(now) || self.repair(now) {
            wake = u64::MAX;
        }
        wake
    }

    /// Tasks that a device took and did not run go back to where they may be taken again.
    ///
    /// # Errors
    /// [`StrandedCause`] if one of them runs nowhere else, the device being lost.
    pub fn put_back(&mut self, tasks: &[u32], now: Time) -> Result<(), StrandedCause> {
        for &task in tasks {
            assert_eq!(
                self.state[task as usize],
                TaskState::Taken,
                "only what was taken is put back"
            );
            self.state[task as usize] = TaskState::Waiting;
        }
        self.again(now)
    }

    /// As [`put_back`](Self::put_back), and the device is not given the first of them again.
    ///
    /// # Errors
    /// [`StrandedCause`] if that runs nowhere else.
    pub fn refuse(&mut self, device: usize, tasks: &[u32], now: Time) -> Result<(), StrandedCause> {
        let mut parts = self.problem.parts().clone();
        parts.exec[tasks[0] as usize * parts.devices + device] = NEVER;
        self.problem = Arc::new(Problem::new(parts)?);
        self.put_back(tasks, now)
    }

    /// The estimate of a task on a device, corrected by what was measured.
    fn estimate(&self, task: usize, device: usize) -> Time {
        let exec = self.problem.exec(task, device);
        if exec == NEVER {
            return NEVER;
        }
        let kind = self.kinds.get(task).copied().unwrap_or(0);
        (exec as f64 * self.speeds.factor(kind, device)) as Time
    }

    /// What crosses between the host and a device for a task.
    fn host_transfer(&self, task: usize, device: usize) -> Time {
        let place = task * self.problem.devices() + device;
        self.host_transfers.get(place).copied().unwrap_or(0)
    }

    /// When the inputs of a task could be on a device, all being sent now.
    fn arrival(&self, task: usize, device: usize, now: Time) -> Time {
        let transfers = self.problem.before(task).map(|(before, bytes)| {
            let from = usize::from(self.place[before]);
            self.problem.transfer(from, device, bytes)
        });
        now + transfers.max().unwrap_or(0)
    }

    /// Whether a device was given up.
    #[must_use]
    pub fn is_lost(&self, device: usize) -> bool {
        self.lost >> device & 1 == 1
    }

    fn give(&mut self, task: u32, device: usize, batch: &mut Vec<u32>) {
        assert_eq!(
            self.state[task as usize],
            TaskState::Waiting,
            "a task is given out once"
        );
        self.state[task as usize] = TaskState::Taken;
        self.place[task as usize] = device as u8;
        batch.push(task);
    }

    fn learn(&mut self, device: usize, tasks: &[u32], estimated: f64, took: f64) {
        if tasks.is_empty() || estimated <= 0.0 {
            return;
        }
        if matches!(self.mode, DispatchMode::Planned(_)) {
            let kind = |task: u32| self.kinds.get(task as usize).copied().unwrap_or(0);
            let believed = tasks.iter().map(|&task| {
                let exec = self.problem.exec(task as usize, device) as f64;
                exec * self.believed.factor(kind(task), device)
            });
            let drift = &mut self.drift[device];
            drift.estimated += believed.sum::<f64>();
            drift.measured += took;
        }
        // A batch is timed as one: its kinds share what it was off by.
        let mut last = None;
        for &task in tasks {
            let kind = self.kinds.get(task as usize).copied().unwrap_or(0);
            if last != Some(kind) {
                self.speeds.learn(kind, device, estimated, took);
                let summed = self.summed[usize::from(kind) * self.load.len() + device];
                let change = self.speeds.factor(kind, device) / summed;
                if !(1.0 / SUM_STALE..=SUM_STALE).contains(&change) {
                    self.stale |= 1 << device;
                }
                last = Some(kind);
            }
        }
    }
}

/// Whether a task goes with a batch: what that sets free is not to wait for something long.
fn fits(batch: &[u32], time: Time, estimate: Time) -> bool {
    batch.is_empty() || time.saturating_add(estimate) <= BATCH_TIME
}

#[cfg(test)]
mod tests;
