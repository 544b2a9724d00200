//! Selects the next task of each device for one job, either by a plan or greedily when tasks become
//! ready. It has no threads: its caller must report completed tasks and ask for more.
//!
//! Times are picoseconds since the start of the job, as in the graph's problem
//! ([`SECOND`](crate::planning::time::SECOND)).

mod dynamic_queues;
mod planned_queues;
mod replan;

use std::sync::Arc;

use thiserror::Error;

use crate::learning::Speeds;
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::{NEVER, Time};
use dynamic_queues::DynamicQueues;
use planned_queues::PlannedQueues;

/// Total time of the small tasks that a device takes at once. It is long enough to make the cost of
/// taking them small (about a microsecond), and short enough that other devices do not wait for
/// their results.
pub const BATCH_TIME: Time = 50_000_000;
/// Maximum number of tasks in a batch: the bookkeeping of a batch delays the other devices.
const BATCH_TASKS: usize = 256;
/// Minimum gain for which a device steals a task: about the cost of the handover.
const STEAL_GAIN: Time = 10_000_000;
/// Maximum number of devices in a job: a set of devices is one machine word.
pub const DEVICES_MAX: usize = 64;
/// If a device deviates from the plan's estimates by this factor, the dispatch plans the remaining
/// tasks again. Below it, a static plan is better than its repair (docs/execution.md).
const DRIFT_MAX: f64 = 1.25;
/// The part of a device's planned time that must be measured before its drift counts.
const DRIFT_SHARE: f64 = 0.05;
/// Cost of a new plan for each task and device, and the multiple of that cost which must remain as
/// work before a new plan is worth it.
const REPLAN_COST: Time = 250_000;
const REPLAN_WORTH: Time = 20;
/// If a device's speed deviates by this factor from the speed in its queue's sums, the dispatch
/// sums the queue again.
const SUM_STALE: f64 = 1.1;
/// A device whose load exceeds the mean by this factor gives tasks away.
const BALANCE_MAX: f64 = 1.2;

/// The way in which the dispatch selects a device for each task.
#[derive(Clone, Copy, Debug)]
pub enum Placement<'a> {
    /// The device that the plan names; the dispatch repairs the plan where estimates prove wrong.
    Planned(&'a Schedule),
    /// The device that finishes the task first, chosen when the task becomes ready.
    Dynamic,
}

/// Says whether results survive the failure of their device.
#[derive(Clone)]
pub enum Results {
    /// Results are in host memory and survive.
    Survive,
    /// Results are lost with the device; the dispatch runs their tasks again where needed.
    Lost,
    /// The keeper of the results says which of them survive.
    Kept(ResultKeeper),
}

/// A question of the dispatch to the keeper of task results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultQuestion {
    /// A device failed, and its memory is lost.
    Lost {
        /// Index of the device.
        device: usize,
    },
    /// Asks whether a reader can still get a producer's results. If so, the keeper holds them until
    /// the reader has read them.
    Kept {
        /// The task that produced the results.
        by: usize,
        /// The task that reads them.
        reader: usize,
    },
}

/// Answers questions about task results. The dispatch ignores the answer to
/// [`Lost`](ResultQuestion::Lost).
pub type ResultKeeper = Arc<dyn Fn(ResultQuestion) -> bool + Send + Sync>;

/// Counts of a job's exceptional events, such as stolen tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tasks that an idle device stole from another device's queue.
    pub stolen: u64,
    /// Tasks that the dispatch moved away from an overloaded device.
    pub moved: u64,
    /// Number of times that the dispatch planned the remaining tasks again.
    pub replanned: u64,
    /// Tasks that ran again because their results were lost.
    pub redone: u64,
    /// Tasks that ran ahead of their turn because an earlier planned task had to wait.
    pub ahead: u64,
}

/// The reason why a job cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StrandedCause {
    /// None of the remaining devices can run a task.
    #[error("task {task} runs on no remaining device")]
    Task {
        /// Index of the task.
        task: usize,
    },
    /// The planner refuses the remaining tasks.
    #[error("the rest cannot be planned: {0}")]
    Problem(#[from] ProblemError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    /// No device has taken the task.
    Waiting,
    /// A device has taken the task.
    Taken,
    Done,
}

#[derive(Clone, Copy, Debug, Default)]
struct Drift {
    estimated: f64,
    measured: f64,
    planned: f64,
}

/// Decides which task of one job each device runs next.
#[derive(Clone, Debug)]
pub struct Dispatch {
    problem: Arc<Problem>,
    kinds: Arc<[u16]>,
    speeds: Speeds,
    /// Transfer time between the host and a device for a task, by task and device; or empty.
    host_transfers: Arc<[Time]>,
    /// The corrections at the time of the present plan, against which the dispatch measures drift.
    planned_speeds: Speeds,
    state: Vec<TaskState>,
    /// The device that took each task.
    device_by_task: Vec<u8>,
    tasks_left: usize,
    lost_devices: u64,
    /// The expected end of the tasks that each device has taken.
    busy_until: Vec<Time>,
    /// Estimated time of the tasks that wait for each device.
    load: Vec<Time>,
    /// The corrections in the sums of the queues, and the set of devices whose corrections have
    /// changed since.
    summed_factors: Vec<f64>,
    stale_devices: u64,
    /// Devices that got tasks while another device took its own: they can be asleep.
    woken_devices: u64,
    drift: Vec<Drift>,
    /// Whether devices never steal tasks and never run their own ahead of their turn.
    keeps_plan: bool,
    mode: DispatchMode,
    counts: Counts,
}

#[derive(Clone, Debug)]
enum DispatchMode {
    Planned(PlannedQueues),
    Dynamic(DynamicQueues),
}

impl Dispatch {
    /// Creates the dispatch of one run of `problem`. `kinds` groups tasks whose estimates have the
    /// same error; empty for one group.
    ///
    /// # Panics
    /// If there are more than [`DEVICES_MAX`] devices, or if `kinds` or `speeds` do not fit the
    /// problem.
    #[must_use]
    pub fn new(
        problem: Arc<Problem>,
        placement: Placement<'_>,
        kinds: Arc<[u16]>,
        speeds: Speeds,
    ) -> Self {
        let (tasks, devices) = (problem.task_count(), problem.device_count());
        assert!(
            devices <= DEVICES_MAX,
            "{devices} devices are too many for one job"
        );
        assert!(
            kinds.is_empty() || kinds.len() == tasks,
            "each task is of one kind"
        );
        let known = kinds
            .iter()
            .all(|&kind| usize::from(kind) < speeds.kind_count());
        assert!(
            known && speeds.device_count() == devices,
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
            planned_speeds: speeds.clone(),
            state,
            device_by_task: vec![0; tasks],
            tasks_left: tasks,
            lost_devices: 0,
            busy_until: vec![0; devices],
            load: vec![0; devices],
            summed_factors: vec![1.0; speeds.kind_count() * devices],
            stale_devices: 0,
            woken_devices: 0,
            drift: vec![Drift::default(); devices],
            keeps_plan: false,
            mode,
            counts: Counts::default(),
            host_transfers: Arc::default(),
            speeds,
            problem,
        };
        dispatch.build_queues();
        dispatch
    }

    /// Adds the transfer time between the host and each device, by task and then by device. The
    /// dispatch uses it to find the device that finishes a task first, but not to measure a device.
    ///
    /// # Panics
    /// If `host_transfers` is not empty and does not have one entry for each task and device.
    #[must_use]
    pub fn with_host_transfers(self, host_transfers: Arc<[Time]>) -> Self {
        let fit = self.problem.task_count() * self.problem.device_count();
        assert!(
            host_transfers.is_empty() || host_transfers.len() == fit,
            "each task has a host_transfer to each device"
        );
        let mut counted = Self {
            host_transfers,
            ..self
        };
        if !counted.host_transfers.is_empty() {
            // The queues of ready tasks were filled without these transfers.
            counted.build_queues();
        }
        counted
    }

    /// Sets whether planned tasks keep their devices and their order. If so, no device steals a
    /// task or runs its own ahead of their turn while all devices work, even if it is idle.
    #[must_use]
    pub fn with_keep_plan(self, keeps_plan: bool) -> Self {
        Self { keeps_plan, ..self }
    }

    /// Returns the number of tasks.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.state.len()
    }

    /// Returns the number of tasks that are not done.
    #[must_use]
    pub fn remaining_tasks(&self) -> usize {
        self.tasks_left
    }

    /// Returns the counts of exceptional events so far.
    #[must_use]
    pub fn event_counts(&self) -> Counts {
        self.counts
    }

    /// Returns the learned corrections of the estimates, for the next run.
    #[must_use]
    pub fn speeds(&self) -> &Speeds {
        &self.speeds
    }

    /// Returns the device that ran a task or runs it now.
    #[must_use]
    pub fn device_of(&self, task: usize) -> Option<usize> {
        (self.state[task] != TaskState::Waiting).then(|| usize::from(self.device_by_task[task]))
    }

    /// Returns the longest waiting time of any device: the estimated time of its waiting tasks.
    #[must_use]
    pub fn time_left(&self) -> Time {
        self.load.iter().copied().max().unwrap_or(0)
    }

    /// Fills `batch` with a device's next tasks in running order, or leaves it empty if the device
    /// has none now.
    pub fn take_batch(&mut self, device: usize, now: Time, batch: &mut Vec<u32>) {
        batch.clear();
        if self.is_lost(device) || self.tasks_left == 0 {
            return;
        }
        match self.mode {
            DispatchMode::Planned(_) => self.take_planned(device, now, batch),
            DispatchMode::Dynamic(_) => self.take_dynamic(device, now, batch),
        }
    }

    /// Returns the set of devices that got work since a [`take_batch`](Self::take_batch) of another
    /// device, one bit each.
    pub fn take_woken_devices(&mut self) -> u64 {
        std::mem::take(&mut self.woken_devices)
    }

    /// Records a batch, or the first tasks of it, as done by a device in `took`. Returns the set of
    /// devices that can have work now, one bit each.
    pub fn complete_tasks(&mut self, device: usize, tasks: &[u32], took: Time, now: Time) -> u64 {
        let mut estimated = 0.0;
        for &task in tasks {
            assert_eq!(
                self.state[task as usize],
                TaskState::Taken,
                "only what was taken is done"
            );
            self.state[task as usize] = TaskState::Done;
            estimated += self.problem.exec_time(task as usize, device) as f64;
        }
        self.tasks_left -= tasks.len();
        self.record_speeds(device, tasks, estimated, took as f64);
        let mut wake = match self.mode {
            DispatchMode::Planned(_) => self.free_planned(tasks),
            DispatchMode::Dynamic(_) => self.free_dynamic(tasks, now),
        };
        if self.balance_load(now) || self.replan_if_deviating(now) {
            wake = u64::MAX;
        }
        wake
    }

    /// Puts tasks back into the queues after a device took but did not run them.
    ///
    /// # Errors
    /// [`StrandedCause`] if the device is lost and no other device can run one of them.
    pub fn put_back(&mut self, tasks: &[u32], now: Time) -> Result<(), StrandedCause> {
        for &task in tasks {
            assert_eq!(
                self.state[task as usize],
                TaskState::Taken,
                "only what was taken is put back"
            );
            self.state[task as usize] = TaskState::Waiting;
        }
        self.replan_remaining(now)
    }

    /// Acts as [`put_back`](Self::put_back), and never offers the first task to this device again.
    /// `tasks` must not be empty.
    ///
    /// # Errors
    /// [`StrandedCause`] if no other device can run that task.
    pub fn refuse_task(
        &mut self,
        device: usize,
        tasks: &[u32],
        now: Time,
    ) -> Result<(), StrandedCause> {
        let mut parts = self.problem.parts().clone();
        parts.exec[tasks[0] as usize * parts.devices + device] = NEVER;
        self.problem = Arc::new(Problem::new(parts)?);
        self.put_back(tasks, now)
    }

    /// Returns the estimated time of a task on a device, with the measured correction.
    fn estimate_time(&self, task: usize, device: usize) -> Time {
        let exec = self.problem.exec_time(task, device);
        if exec == NEVER {
            return NEVER;
        }
        let kind = self.kinds.get(task).copied().unwrap_or(0);
        (exec as f64 * self.speeds.factor(kind, device)) as Time
    }

    /// Returns the transfer time between the host and a device for a task.
    fn host_transfer(&self, task: usize, device: usize) -> Time {
        let place = task * self.problem.device_count() + device;
        self.host_transfers.get(place).copied().unwrap_or(0)
    }

    /// Returns the time when a task's inputs can be on a device, if all transfers start now.
    fn arrival_time(&self, task: usize, device: usize, now: Time) -> Time {
        let transfers = self.problem.inputs_of(task).map(|(before, bytes)| {
            let from = usize::from(self.device_by_task[before]);
            self.problem.transfer_time(from, device, bytes)
        });
        now + transfers.max().unwrap_or(0)
    }

    /// Returns whether a device is lost to the job.
    #[must_use]
    pub fn is_lost(&self, device: usize) -> bool {
        self.lost_devices >> device & 1 == 1
    }

    fn assign_task(&mut self, task: u32, device: usize, batch: &mut Vec<u32>) {
        assert_eq!(
            self.state[task as usize],
            TaskState::Waiting,
            "a task is given out once"
        );
        self.state[task as usize] = TaskState::Taken;
        self.device_by_task[task as usize] = device as u8;
        batch.push(task);
    }

    fn record_speeds(&mut self, device: usize, tasks: &[u32], estimated: f64, took: f64) {
        if tasks.is_empty() || estimated <= 0.0 {
            return;
        }
        if matches!(self.mode, DispatchMode::Planned(_)) {
            let kind = |task: u32| self.kinds.get(task as usize).copied().unwrap_or(0);
            let believed = tasks.iter().map(|&task| {
                let exec = self.problem.exec_time(task as usize, device) as f64;
                exec * self.planned_speeds.factor(kind(task), device)
            });
            let drift = &mut self.drift[device];
            drift.estimated += believed.sum::<f64>();
            drift.measured += took;
        }
        // A batch has a single measured time, so all its kinds get the same correction.
        let mut last = None;
        for &task in tasks {
            let kind = self.kinds.get(task as usize).copied().unwrap_or(0);
            if last != Some(kind) {
                self.speeds.record_ratio(kind, device, estimated, took);
                let summed = self.summed_factors[usize::from(kind) * self.load.len() + device];
                let change = self.speeds.factor(kind, device) / summed;
                if !(1.0 / SUM_STALE..=SUM_STALE).contains(&change) {
                    self.stale_devices |= 1 << device;
                }
                last = Some(kind);
            }
        }
    }
}

/// Returns whether a batch has time for a task: results of the batch should not wait for a long
/// task.
fn can_join_batch(batch: &[u32], time: Time, estimate: Time) -> bool {
    batch.is_empty() || time.saturating_add(estimate) <= BATCH_TIME
}

#[cfg(test)]
mod tests;
