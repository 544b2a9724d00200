//! Holds one job of a worker pool: the request with its tasks, its state while it runs, and its
//! result.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::{Moment, to_picoseconds};
use crate::execution::dispatch::{Counts, Dispatch, Placement, Results, StrandedCause};
use crate::learning::Speeds;
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::Time;

/// Busy periods that the pool records for a job. If a job has more, the pool merges the later ones,
/// because a trace of a million bars says no more.
const BUSY_PERIODS_MAX: usize = 1 << 16;
/// A job goes first if the time to its deadline is less than this many times its remaining work.
const URGENCY_FACTOR: u32 = 2;

/// The call of a task on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Index of the task.
    pub task: usize,
    /// Index of the device.
    pub device: usize,
}

/// Runs one task of a job. The pool calls it on the device's thread. A panic counts as a fault of
/// the task and will end the job.
pub type TaskFunction = Arc<dyn Fn(Call) -> Result<TaskTime, Fault> + Send + Sync>;

/// The duration of a task that the pool compares with its estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskTime {
    /// The time from the call to its return.
    Measured,
    /// The time that the device reports. An emulated device, for example, returns before its own
    /// time has passed.
    Stated(Duration),
}

/// The reason why a task did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The task is at fault and would fail on any device: the job ends.
    Task(String),
    /// The device is at fault: it gets no more work, and the task moves to another device.
    Device(String),
    /// The device cannot run this task but works otherwise: the task moves to another device.
    Refused(String),
    /// Another device failed while it should supply an input: the task waits for a new copy.
    Other {
        /// Index of the device that failed.
        device: usize,
        /// Cause of the failure.
        cause: String,
    },
    /// A lost device held an input: the task waits until another device has computed it again.
    Gone,
}

/// A job for a worker pool: its tasks, its plan if it has one, and its claim on the devices.
pub struct Job {
    /// The tasks, their dependencies and their estimates, in picoseconds.
    pub problem: Arc<Problem>,
    /// The plan. If you pass none, the pool places each task when it is ready.
    pub plan: Option<Schedule>,
    /// Whether tasks stay on their planned devices while those devices work. For devices with a
    /// time of their own, idle threads on this machine do not mean that the device is idle.
    pub keeps_plan: bool,
    /// Groups tasks whose estimates have the same error. It must have one entry for each task, or
    /// none for a single group.
    pub kinds: Arc<[u16]>,
    /// The measured corrections of the estimates.
    pub speeds: Speeds,
    /// Additional time of each task on each device for transfers from and to the host, by task and
    /// then by device. You can leave it empty for none.
    pub host_transfers: Arc<[Time]>,
    /// The function that runs a task.
    pub work: TaskFunction,
    /// Says whether results survive the failure of their device.
    pub results: Results,
    /// Jobs with a higher priority go first.
    pub priority: u8,
    /// The job's share of the devices relative to other jobs, such as the price of its lease.
    pub weight: f64,
    /// The owner, such as a lease. All jobs of one owner share one part of the devices.
    pub owner: Option<u64>,
    /// The moment when the pool will end the job if it still runs.
    pub deadline: Option<Moment>,
}

/// The way in which a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// All tasks are done.
    Done,
    /// The caller cancelled the job.
    Cancelled,
    /// The deadline passed first.
    Deadline,
    /// A task failed.
    Failed {
        /// Index of the task.
        task: usize,
        /// Cause of the failure.
        cause: String,
    },
    /// Devices failed, and the remaining devices cannot run the remaining tasks.
    Stranded(StrandedCause),
}

/// A period of a device: the tasks that it ran one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPeriod {
    /// Index of the device.
    pub device: usize,
    /// Index of the first task.
    pub task: usize,
    /// Number of tasks.
    pub tasks: usize,
    /// Start, measured from the start of the job.
    pub start: Duration,
    /// End, measured from the start of the job.
    pub end: Duration,
}

/// The work that a device did for a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Number of tasks that the device ran.
    pub tasks: u64,
    /// Time for which the device ran them.
    pub busy: Duration,
    /// The reason why the pool gave up the device, if it did.
    pub failed: Option<String>,
    /// Tasks that the device refused and other devices took, each with the cause.
    pub refused: Vec<(usize, String)>,
}

/// The result of a job and its cost in time.
#[derive(Clone, Debug)]
pub struct Execution {
    /// The way in which the job ended.
    pub ended: JobEnd,
    /// Time from the start of the job to its end.
    pub makespan: Duration,
    /// The work of each device, by index.
    pub devices: Vec<DeviceUse>,
    /// The periods in which the devices worked.
    pub busy_periods: Vec<BusyPeriod>,
    /// Counts of exceptional events, such as stolen tasks.
    pub counts: Counts,
    /// The corrections of the estimates after this job.
    pub speeds: Speeds,
    /// The device that ran each task, by task.
    pub places: Vec<Option<usize>>,
}

/// A batch that a device ran.
pub(super) struct BatchRun {
    pub start: Moment,
    pub end: Moment,
    /// The duration that the device reports, if it reports one.
    pub stated: Option<Duration>,
}

/// A job in progress in a worker pool.
pub(super) struct ActiveJob {
    pub number: u64,
    dispatch: Dispatch,
    work: TaskFunction,
    results: Results,
    pub owner: Option<u64>,
    priority: u8,
    weight: f64,
    deadline: Option<Moment>,
    begun: Moment,
    /// Device seconds that the job used, plus the share it started level with.
    used: f64,
    ended: Option<(JobEnd, Moment)>,
    devices: Vec<DeviceUse>,
    busy_periods: Vec<BusyPeriod>,
}

impl ActiveJob {
    pub fn new(job: Job) -> Self {
        let placement = job
            .plan
            .as_ref()
            .map_or(Placement::Dynamic, Placement::Planned);
        let devices = job.problem.device_count();
        let dispatch = Dispatch::new(job.problem, placement, job.kinds, job.speeds);
        let dispatch = dispatch
            .with_host_transfers(job.host_transfers)
            .with_keep_plan(job.keeps_plan);
        let begun = Moment::now();
        let ended = (dispatch.remaining_tasks() == 0).then_some((JobEnd::Done, begun));
        Self {
            number: 0,
            dispatch,
            work: job.work,
            results: job.results,
            owner: job.owner,
            priority: job.priority,
            weight: job.weight.max(f64::MIN_POSITIVE),
            deadline: job.deadline,
            begun,
            used: 0.0,
            ended,
            devices: vec![DeviceUse::default(); devices],
            busy_periods: Vec::new(),
        }
    }

    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Ends the job, unless it has already ended.
    pub fn end_job(&mut self, how: JobEnd) {
        self.ended.get_or_insert_with(|| (how, Moment::now()));
    }

    /// Returns the device time that the job used, divided by its weight.
    pub fn used_share(&self) -> f64 {
        self.used / self.weight
    }

    pub fn set_share(&mut self, share: f64) {
        self.used = share * self.weight;
    }

    /// Orders two jobs: the job that should run first is less.
    pub fn cmp_priority(&self, other: &Self, now: Moment) -> Ordering {
        let by_priority = other.priority.cmp(&self.priority);
        let by_hurry = || other.is_hurried(now).cmp(&self.is_hurried(now));
        let by_share = || self.used_share().total_cmp(&other.used_share());
        // Among jobs of one owner, the oldest goes first.
        let by_number = || self.number.cmp(&other.number);
        by_priority
            .then_with(by_hurry)
            .then_with(by_share)
            .then_with(by_number)
    }

    fn is_hurried(&self, now: Moment) -> bool {
        let left = Duration::from_nanos(self.dispatch.time_left() / 1000);
        let slack = |deadline: Moment| deadline.duration_since(now);
        self.deadline
            .is_some_and(|deadline| slack(deadline) < left.saturating_mul(URGENCY_FACTOR))
    }

    /// Takes the device's next batch. Adds to `wake` the other devices that now have work.
    pub fn take_batch(
        &mut self,
        device: usize,
        batch: &mut Vec<u32>,
        wake: &mut u64,
    ) -> Option<(u64, TaskFunction, Moment)> {
        if self.has_ended() {
            return None;
        }
        let now = Moment::now();
        self.dispatch.take_batch(
            device,
            to_picoseconds(now.duration_since(self.begun)),
            batch,
        );
        *wake |= self.dispatch.take_woken_devices();
        (!batch.is_empty()).then(|| (self.number, self.work.clone(), now))
    }

    /// Records a batch, or its first tasks, as done. Returns the set of devices to wake.
    pub fn complete_batch(&mut self, device: usize, tasks: &[u32], ran: &BatchRun) -> u64 {
        // Other devices run the tasks of a lost device again, so the pool ignores its results.
        if self.has_ended() || tasks.is_empty() || self.dispatch.is_lost(device) {
            return 0;
        }
        let (start, end) = (ran.start, ran.end);
        let took = ran.stated.unwrap_or_else(|| end.duration_since(start));
        self.used += took.as_secs_f64();
        self.record_busy_period(device, tasks, start, end);
        let now = to_picoseconds(end.duration_since(self.begun));
        let wake = self
            .dispatch
            .complete_tasks(device, tasks, to_picoseconds(took), now);
        if self.dispatch.remaining_tasks() == 0 {
            self.end_job(JobEnd::Done);
        }
        wake
    }

    /// Removes a lost device from the job.
    pub fn remove_lost_device(&mut self, device: usize) {
        if self.has_ended() {
            return;
        }
        let now = to_picoseconds(Moment::now().duration_since(self.begun));
        if let Err(stranded) = self.dispatch.remove_lost_device(device, &self.results, now) {
            self.end_job(JobEnd::Stranded(stranded));
        }
    }

    /// Puts tasks back into the queues after a device took them but could not begin.
    pub fn put_back(&mut self, device: usize, tasks: &[u32]) {
        if self.has_ended() || self.dispatch.is_lost(device) {
            return;
        }
        let now = to_picoseconds(Moment::now().duration_since(self.begun));
        if let Err(stranded) = self.dispatch.put_back(tasks, now) {
            self.end_job(JobEnd::Stranded(stranded));
        }
    }

    /// Puts tasks back into the queues after a device refused the first of them.
    pub fn refuse_task(&mut self, device: usize, tasks: &[u32], cause: String) {
        if self.has_ended() || self.dispatch.is_lost(device) {
            return;
        }
        let now = to_picoseconds(Moment::now().duration_since(self.begun));
        let task = tasks[0] as usize;
        match self.dispatch.refuse_task(device, tasks, now) {
            Ok(()) => self.devices[device].refused.push((task, cause)),
            Err(_) => self.end_job(JobEnd::Failed { task, cause }),
        }
    }

    pub fn record_failure(&mut self, device: usize, cause: String) {
        self.devices[device].failed = Some(cause);
    }

    fn record_busy_period(&mut self, device: usize, tasks: &[u32], start: Moment, end: Moment) {
        let entry = &mut self.devices[device];
        entry.tasks += tasks.len() as u64;
        entry.busy += end.duration_since(start);
        let period = BusyPeriod {
            device,
            task: tasks[0] as usize,
            tasks: tasks.len(),
            start: start.duration_since(self.begun),
            end: end.duration_since(self.begun),
        };
        if self.busy_periods.len() < BUSY_PERIODS_MAX {
            self.busy_periods.push(period);
            return;
        }
        let last = self
            .busy_periods
            .iter_mut()
            .rev()
            .take(self.devices.len() * 2);
        if let Some(last) = last.into_iter().find(|last| last.device == device) {
            last.tasks += period.tasks;
            last.end = period.end;
        }
    }

    pub fn into_execution(self) -> Execution {
        let (ended, at) = self.ended.expect("only what has ended is taken apart");
        let tasks = self.dispatch.remaining_tasks()
            + self
                .devices
                .iter()
                .map(|used| used.tasks as usize)
                .sum::<usize>();
        let places = (0..self.dispatch.task_count())
            .map(|task| self.dispatch.device_of(task))
            .collect();
        assert!(
            tasks >= self.dispatch.task_count(),
            "each task is left or was run"
        );
        Execution {
            ended,
            makespan: at.duration_since(self.begun),
            devices: self.devices,
            busy_periods: self.busy_periods,
            counts: self.dispatch.event_counts(),
            speeds: self.dispatch.speeds().clone(),
            places,
        }
    }
}
