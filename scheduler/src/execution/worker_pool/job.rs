//! One job of a worker pool: what is asked, how it stands, how it ended.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::{Moment, picoseconds};
use crate::execution::dispatch::{Counts, Dispatch, Placement, Results, StrandedCause};
use crate::learning::Speeds;
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::Time;

/// Stretches remembered of a job. A job of more has its last ones merged: a trace of a million
/// bars says no more.
const STRETCHES_MAX: usize = 1 << 16;
/// A job whose deadline leaves less than this many times what it has left goes first.
const HURRY: u32 = 2;

/// A task to be run on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The task.
    pub task: usize,
    /// The device.
    pub device: usize,
}

/// What runs a job's tasks. It is called on the device's thread.
pub type Work = Arc<dyn Fn(Call) -> Result<TaskTime, Fault> + Send + Sync>;

/// What a task took, as estimates are to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskTime {
    /// From its call to its return.
    Measured,
    /// What the device says, such as an emulated one that answers ahead of its own time.
    Stated(Duration),
}

/// Why a task did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The task is at fault, and would be elsewhere: the job ends.
    Task(String),
    /// The device is: it gets no more work, and this goes to another.
    Device(String),
    /// Neither is, but the device cannot do this task: it goes to another.
    Refused(String),
    /// Another device is, which was to give what the task reads: the task waits for that.
    Other {
        /// Which.
        device: usize,
        /// Why.
        cause: String,
    },
    /// What it reads went with a device that was lost: the task waits until that is made again.
    Gone,
}

/// Something to run.
pub struct Job {
    /// What it is made of; times in picoseconds.
    pub problem: Arc<Problem>,
    /// Its plan; none places each task when it is ready.
    pub plan: Option<Schedule>,
    /// Whether tasks stay where they are planned while their devices work. Devices that have a time
    /// of their own are not idle when this machine's threads are.
    pub keeps_plan: bool,
    /// Kinds of task whose estimates err alike; empty for one.
    pub kinds: Arc<[u16]>,
    /// What is known of the estimates.
    pub speeds: Speeds,
    /// What each task takes besides on each device for what comes from the host and goes there, by
    /// task and then by device; empty for nothing.
    pub host_transfers: Arc<[Time]>,
    /// What runs a task.
    pub work: Work,
    /// What becomes of results on a device that fails.
    pub results: Results,
    /// Jobs of a higher one go first.
    pub priority: u8,
    /// Its part of the devices beside other jobs, such as the price of its lease.
    pub weight: f64,
    /// Whose it is, such as a lease's: jobs of one owner have one part of the devices together.
    pub owner: Option<u64>,
    /// When it must have ended.
    pub deadline: Option<Moment>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// Every task is done.
    Done,
    /// It was cancelled.
    Cancelled,
    /// Its deadline came first.
    Deadline,
    /// A task failed.
    Failed {
        /// Which.
        task: usize,
        /// Why.
        cause: String,
    },
    /// Devices failed, and what is left runs on none of the others.
    Stranded(StrandedCause),
}

/// A stretch of a device's time: tasks it ran one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The device.
    pub device: usize,
    /// The first task.
    pub task: usize,
    /// How many.
    pub tasks: usize,
    /// When it began, from the job's start.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
}

/// What a device did for a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Tasks it ran.
    pub tasks: u64,
    /// Time it ran them.
    pub busy: Duration,
    /// Why it was given up, if it was.
    pub failed: Option<String>,
    /// Tasks that it refused and others took, with why.
    pub refused: Vec<(usize, String)>,
}

/// What a job gave and took.
#[derive(Clone, Debug)]
pub struct Execution {
    /// How it ended.
    pub ended: JobEnd,
    /// From its start to its end.
    pub makespan: Duration,
    /// What each device did.
    pub devices: Vec<DeviceUse>,
    /// When.
    pub stretches: Vec<Stretch>,
    /// What happened beside plain running.
    pub counts: Counts,
    /// What is known of the estimates now.
    pub speeds: Speeds,
    /// The device that ran each task.
    pub places: Vec<Option<usize>>,
}

/// A batch that was run.
pub(super) struct BatchRun {
    pub start: Moment,
    pub end: Moment,
    /// What the device says it took.
    pub stated: Option<Duration>,
}

/// A job that a worker pool works on.
pub(super) struct ActiveJob {
    pub number: u64,
    dispatch: Dispatch,
    work: Work,
    results: Results,
    pub owner: Option<u64>,
    priority: u8,
    weight: f64,
    deadline: Option<Moment>,
    begun: Moment,
    /// Device seconds it had, with what it was level with when it came.
    used: f64,
    ended: Option<(JobEnd, Moment)>,
    devices: Vec<DeviceUse>,
    stretches: Vec<Stretch>,
}

impl ActiveJob {
    pub fn new(job: Job) -> Self {
        let placement = job
            .plan
            .as_ref()
            .map_or(Placement::Dynamic, Placement::Planned);
        let devices = job.problem.devices();
        let dispatch = Dispatch::new(job.problem, placement, job.kinds, job.speeds);
        let dispatch = dispatch
            .with_host_transfers(job.host_transfers)
            .keeping(job.keeps_plan);
        let begun = Moment::now();
        let ended = (dispatch.left() == 0).then_some((JobEnd::Done, begun));
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
            stretches: Vec::new(),
        }
    }

    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Ends it, unless it has ended before.
    pub fn end(&mut self, how: JobEnd) {
        self.ended.get_or_insert_with(|| (how, Moment::now()));
    }

    /// Device time it had for its weight.
    pub fn share(&self) -> f64 {
        self.used / self.weight
    }

    pub fn set_share(&mut self, share: f64) {
        self.used = share * self.weight;
    }

    /// Whose turn is first.
    pub fn before(&self, other: &Self, now: Moment) -> Ordering {
        let by_priority = other.priority.cmp(&self.priority);
        let by_hurry = || other.is_hurried(now).cmp(&self.is_hurried(now));
        let by_share = || self.share().total_cmp(&other.share());
        // Of one owner's, who came first is done first.
        let by_number = || self.number.cmp(&other.number);
        by_priority
            .then_with(by_hurry)
            .then_with(by_share)
            .then_with(by_number)
    }

    fn is_hurried(&self, now: Moment) -> bool {
        let left = Duration::from_nanos(self.dispatch.time_left() / 1000);
        let slack = |deadline: Moment| deadline.since(now);
        self.deadline
            .is_some_and(|deadline| slack(deadline) < left.saturating_mul(HURRY))
    }

    /// A device's next batch; `wake` is told which others have something to do since.
    pub fn take(
        &mut self,
        device: usize,
        batch: &mut Vec<u32>,
        wake: &mut u64,
    ) -> Option<(u64, Work, Moment)> {
        if self.has_ended() {
            return None;
        }
        let now = Moment::now();
        self.dispatch
            .take(device, picoseconds(now.since(self.begun)), batch);
        *wake |= self.dispatch.woken();
        (!batch.is_empty()).then(|| (self.number, self.work.clone(), now))
    }

    /// Takes in a batch, or its first tasks; says which devices to wake.
    pub fn done(&mut self, device: usize, tasks: &[u32], ran: &BatchRun) -> u64 {
        // What a device did after it was given up is done elsewhere.
        if self.has_ended() || tasks.is_empty() || self.dispatch.is_lost(device) {
            return 0;
        }
        let (start, end) = (ran.start, ran.end);
        let took = ran.stated.unwrap_or_else(|| end.since(start));
        self.used += took.as_secs_f64();
        self.record(device, tasks, start, end);
        let now = picoseconds(end.since(self.begun));
        let wake = self.dispatch.done(device, tasks, picoseconds(took), now);
        if self.dispatch.left() == 0 {
            self.end(JobEnd::Done);
        }
        wake
    }

    /// A device is lost to this job.
    pub fn lose(&mut self, device: usize) {
        if self.has_ended() {
            return;
        }
        let now = picoseconds(Moment::now().since(self.begun));
        if let Err(stranded) = self.dispatch.lose(device, &self.results, now) {
            self.end(JobEnd::Stranded(stranded));
        }
    }

    /// Tasks that a device took and could not begin.
    pub fn put_back(&mut self, device: usize, tasks: &[u32]) {
        if self.has_ended() || self.dispatch.is_lost(device) {
            return;
        }
        let now = picoseconds(Moment::now().since(self.begun));
        if let Err(stranded) = self.dispatch.put_back(tasks, now) {
            self.end(JobEnd::Stranded(stranded));
        }
    }

    /// Tasks that a device took, of which it cannot do the first.
    pub fn refuse(&mut self, device: usize, tasks: &[u32], cause: String) {
        if self.has_ended() || self.dispatch.is_lost(device) {
            return;
        }
        let now = picoseconds(Moment::now().since(self.begun));
        let task = tasks[0] as usize;
        match self.dispatch.refuse(device, tasks, now) {
            Ok(()) => self.devices[device].refused.push((task, cause)),
            Err(_) => self.end(JobEnd::Failed { task, cause }),
        }
    }

    pub fn blame(&mut self, device: usize, cause: String) {
        self.devices[device].failed = Some(cause);
    }

    fn record(&mut self, device: usize, tasks: &[u32], start: Moment, end: Moment) {
        let entry = &mut self.devices[device];
        entry.tasks += tasks.len() as u64;
        entry.busy += end.since(start);
        let stretch = Stretch {
            device,
            task: tasks[0] as usize,
            tasks: tasks.len(),
            start: start.since(self.begun),
            end: end.since(self.begun),
        };
        if self.stretches.len() < STRETCHES_MAX {
            self.stretches.push(stretch);
            return;
        }
        let last = self.stretches.iter_mut().rev().take(self.devices.len() * 2);
        if let Some(last) = last.into_iter().find(|last| last.device == device) {
            last.tasks += stretch.tasks;
            last.end = stretch.end;
        }
    }

    pub fn into_execution(self) -> Execution {
        let (ended, at) = self.ended.expect("only what has ended is taken apart");
        let tasks = self.dispatch.left()
            + self
                .devices
                .iter()
                .map(|used| used.tasks as usize)
                .sum::<usize>();
        let places = (0..self.dispatch.tasks())
            .map(|task| self.dispatch.place(task))
            .collect();
        assert!(
            tasks >= self.dispatch.tasks(),
            "each task is left or was run"
        );
        Execution {
            ended,
            makespan: at.since(self.begun),
            devices: self.devices,
            stretches: self.stretches,
            counts: self.dispatch.counts(),
            speeds: self.dispatch.speeds().clone(),
            places,
        }
    }
}
