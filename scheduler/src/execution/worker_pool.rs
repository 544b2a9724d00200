//! Runs jobs on devices: a worker pool has a thread for each device, and these threads run the
//! tasks of all jobs.
//!
//! A free device takes tasks from the job with the highest priority that has work for it. Among
//! jobs of equal priority, it prefers one that may miss its deadline, then the job that has used
//! the least device time relative to its weight, so that leases share the devices by price. The
//! device time of an owner's jobs counts for all its jobs, including later ones. A job gets no
//! compensation for time in which it was absent.
//!
//! The pool holds its lock for bookkeeping only, never while a task runs. So a caller that cancels
//! gets its answer at once; the pool lets the current task finish and discards its result.

mod job;
mod moment;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::dispatch::{DEVICES_MAX, Results};
use crate::learning::Speeds;
use crate::planning::problem::{Edge, Problem, ProblemParts};
use crate::planning::schedule::Schedule;
use crate::planning::time::Time;
use job::{ActiveJob, BatchRun};

pub use job::{BusyPeriod, Call, DeviceUse, Execution, Fault, Job, JobEnd, TaskFunction, TaskTime};
pub use moment::Moment;

/// How often an idle device polls for work before it sleeps: about 20 us, twice the time to sleep
/// and wake.
const POLLS_BEFORE_SLEEP: u32 = 1_000;
/// Number of tasks in the chain that measures a handover: a few milliseconds.
const HAND_OVERS: usize = 512;
/// Maximum number of concurrent jobs; a provider serves far fewer leases.
const JOBS_MAX: usize = 256;

/// The reason why the pool refused a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The pool has the maximum number of jobs: you can submit another when one has ended.
    #[error("{JOBS_MAX} jobs are running: wait for one to end")]
    Full,
    /// The job needs a different number of devices.
    #[error("the job is planned for {planned} devices, there are {present}")]
    Devices {
        /// Number of devices in the job's problem.
        planned: usize,
        /// Number of devices in the pool.
        present: usize,
    },
}

/// The worker threads of a machine's devices. On drop, they finish their current tasks and end.
pub struct WorkerPool {
    shared: Arc<PoolShared>,
    threads: Vec<JoinHandle<()>>,
}

/// A job that the pool runs. If you drop it without waiting, the pool will discard the job.
pub struct RunningJob {
    shared: Arc<PoolShared>,
    number: u64,
    deadline: Option<Moment>,
}

/// Cancels a job from another thread than the one that waits for it.
#[derive(Clone)]
pub struct Canceller {
    shared: Arc<PoolShared>,
    number: u64,
}

pub(super) struct PoolShared {
    state: Mutex<PoolState>,
    /// Wakes each sleeping device.
    work: Vec<Condvar>,
    /// A flag for each device, which wakes it while it still polls for work. To wake a sleeping
    /// device takes a few microseconds, to set a flag does not.
    wake_flags: Vec<AtomicBool>,
    /// Wakes the threads that wait for the end of a job.
    ended: Condvar,
}

#[derive(Default)]
pub(super) struct PoolState {
    jobs: Vec<ActiveJob>,
    /// The largest used share of a job at the time when it got work. A new job starts from it.
    level: f64,
    /// Used shares above that level, by owner. They outlast the owners' jobs.
    owners: Vec<(u64, f64)>,
    /// The devices that wait for work, one bit each.
    idle: u64,
    /// The idle devices that sleep, one bit each.
    asleep: u64,
    /// The lost devices, one bit each.
    lost: u64,
    /// The cause of each device's loss.
    causes: BTreeMap<usize, String>,
    /// The number of jobs submitted so far, which is the number of the last one.
    submitted: u64,
    stopping: bool,
}

impl WorkerPool {
    /// Starts one thread for each of `devices` devices.
    ///
    /// # Errors
    /// The system's error if it cannot start a thread.
    ///
    /// # Panics
    /// If there are more than [`DEVICES_MAX`] devices.
    pub fn start(devices: usize) -> std::io::Result<Self> {
        assert!(
            devices <= DEVICES_MAX,
            "{devices} devices are too many for one pool"
        );
        let shared = Arc::new(PoolShared {
            state: Mutex::default(),
            work: (0..devices).map(|_| Condvar::new()).collect(),
            wake_flags: (0..devices).map(|_| AtomicBool::new(false)).collect(),
            ended: Condvar::new(),
        });
        let mut pool = Self {
            shared,
            threads: Vec::with_capacity(devices),
        };
        for device in 0..devices {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new().name(format!("device-{device}"));
            pool.threads
                .push(thread.spawn(move || worker::run_worker(&shared, device))?);
        }
        Ok(pool)
    }

    /// Returns the number of devices.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.shared.work.len()
    }

    /// Measures the time of a handover on this machine: from the end of a task on one device to the
    /// start of the next on another. It runs a chain of empty tasks that alternate between two
    /// devices. Returns none if there is only one device.
    ///
    /// # Errors
    /// [`SubmitError`] if the pool is full.
    pub fn measure_hand_over(&self) -> Result<Option<Duration>, SubmitError> {
        let devices = self.device_count();
        if devices < 2 {
            return Ok(None);
        }
        let parts = ProblemParts {
            devices,
            exec: vec![1; HAND_OVERS * devices],
            edges: (1..HAND_OVERS).map(chain_edge).collect(),
            latency: vec![0; devices * devices],
            time_per_byte: vec![0; devices * devices],
            ..ProblemParts::default()
        };
        let problem = Arc::new(Problem::new(parts).expect("a chain has no cycle"));
        let plan = Schedule {
            device: (0..HAND_OVERS).map(|task| task % 2).collect(),
            start: (0..HAND_OVERS as Time).collect(),
            ..Schedule::default()
        };
        let execution = self.run(Job {
            problem,
            plan: Some(plan),
            keeps_plan: false,
            kinds: Arc::default(),
            speeds: Speeds::new(1, devices),
            work: Arc::new(|_| Ok(TaskTime::Stated(Duration::ZERO))),
            host_transfers: Arc::default(),
            results: Results::Survive,
            priority: u8::MAX,
            weight: 1.0,
            owner: None,
            deadline: None,
        })?;
        Ok(Some(execution.makespan / HAND_OVERS as u32))
    }

    /// Returns the lost devices, one bit each.
    #[must_use]
    pub fn lost_mask(&self) -> u64 {
        self.shared.lock_state().lost
    }

    /// Returns the lost devices, each with the cause.
    #[must_use]
    pub fn loss_causes(&self) -> Vec<(usize, String)> {
        self.shared
            .lock_state()
            .causes
            .clone()
            .into_iter()
            .collect()
    }

    /// Restores a lost device, which will get work only of jobs that you submit from now on.
    pub fn restore_device(&self, device: usize) {
        let mut state = self.shared.lock_state();
        state.lost &= !(1 << device);
        state.causes.remove(&device);
    }

    /// Accepts a job. If its deadline has passed, the pool starts no task of it.
    ///
    /// # Errors
    /// [`SubmitError`] if the pool is full or the job is for other devices.
    pub fn submit_job(&self, job: Job) -> Result<RunningJob, SubmitError> {
        let (planned, present) = (job.problem.device_count(), self.device_count());
        if planned != present {
            return Err(SubmitError::Devices { planned, present });
        }
        let deadline = job.deadline;
        let mut active = ActiveJob::new(job);
        let mut state = self.shared.lock_state();
        if state.jobs.len() >= JOBS_MAX {
            return Err(SubmitError::Full);
        }
        for device in (0..present).filter(|device| state.lost >> device & 1 == 1) {
            active.remove_lost_device(device);
        }
        state.submitted += 1;
        let number = state.submitted;
        active.number = number;
        active.set_share(state.initial_share(active.owner));
        // The waiting thread may check the deadline only after the devices have done all tasks.
        if deadline.is_some_and(|deadline| deadline <= Moment::now()) {
            active.end_job(JobEnd::Deadline);
        }
        state.jobs.push(active);
        self.shared.wake_devices(&mut state, u64::MAX);
        drop(state);
        Ok(RunningJob {
            shared: self.shared.clone(),
            number,
            deadline,
        })
    }

    /// Runs a job and waits for its end.
    ///
    /// # Errors
    /// As [`WorkerPool::submit_job`].
    pub fn run(&self, job: Job) -> Result<Execution, SubmitError> {
        Ok(self.submit_job(job)?.wait())
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock_state();
            state.stopping = true;
            state
                .jobs
                .iter_mut()
                .for_each(|job| job.end_job(JobEnd::Cancelled));
            self.shared.wake_devices(&mut state, u64::MAX);
            self.shared.ended.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of tasks; any other panic is the worker's own and is
            // printed.
            let _ = thread.join();
        }
    }
}

impl Canceller {
    /// Cancels the job: the pool starts no more of its tasks, and the waiting thread returns at
    /// once.
    pub fn cancel(&self) {
        let mut state = self.shared.lock_state();
        if let Some(job) = state.find_job(self.number) {
            job.end_job(JobEnd::Cancelled);
        }
        self.shared.ended.notify_all();
    }
}

impl RunningJob {
    /// Cancels the job, as its [`Canceller`] does.
    pub fn cancel(&self) {
        self.canceller().cancel();
    }

    /// Returns a handle with which another thread can cancel the job while you wait for it.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller {
            shared: self.shared.clone(),
            number: self.number,
        }
    }

    /// Waits until the job has ended, at its deadline at the latest.
    #[must_use]
    pub fn wait(self) -> Execution {
        let mut state = self.shared.lock_state();
        loop {
            let index = state.jobs.iter().position(|job| job.number == self.number);
            let index = index.expect("only the waiting thread removes a job");
            if state.jobs[index].has_ended() {
                return state.jobs.swap_remove(index).into_execution();
            }
            let time_left = self
                .deadline
                .map(|deadline| deadline.duration_since(Moment::now()));
            state = match time_left {
                Some(Duration::ZERO) => {
                    state.jobs[index].end_job(JobEnd::Deadline);
                    state
                }
                Some(time_left) => {
                    let waited = self.shared.ended.wait_timeout(state, time_left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.shared.ended.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        let mut state = self.shared.lock_state();
        // A caller that does not wait does not need the result.
        state.jobs.retain(|job| job.number != self.number);
    }
}

impl PoolShared {
    pub(super) fn lock_state(&self) -> MutexGuard<'_, PoolState> {
        // Tasks run outside the lock. A panic while it is held is a failed assertion about one job,
        // and leaves the state of all other jobs valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the devices of the set `devices` that are idle.
    pub(super) fn wake_devices(&self, state: &mut PoolState, devices: u64) {
        let woken = state.idle & devices;
        state.idle &= !woken;
        let is_woken = |device: &usize| woken >> device & 1 == 1;
        for device in (0..self.work.len()).filter(is_woken) {
            self.wake_flags[device].store(true, Ordering::Release);
            if state.asleep >> device & 1 == 1 {
                self.work[device].notify_one();
            }
        }
    }

    /// Waits until another thread wakes the device. While there are jobs, the device polls first,
    /// because it usually waits for another device's task that ends soon.
    pub(super) fn wait_for_work<'a>(
        &'a self,
        mut state: MutexGuard<'a, PoolState>,
        device: usize,
    ) -> MutexGuard<'a, PoolState> {
        let own_bit = 1 << device;
        state.idle |= own_bit;
        self.wake_flags[device].store(false, Ordering::Relaxed);
        if !state.jobs.is_empty() {
            drop(state);
            for _ in 0..POLLS_BEFORE_SLEEP {
                if self.wake_flags[device].load(Ordering::Acquire) {
                    break;
                }
                std::hint::spin_loop();
            }
            state = self.lock_state();
        }
        state.asleep |= own_bit;
        while state.idle & own_bit != 0 && !state.stopping {
            let waited = self.work[device].wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.asleep &= !own_bit;
        state.idle &= !own_bit;
        state
    }
}

impl PoolState {
    fn find_job(&mut self, number: u64) -> Option<&mut ActiveJob> {
        self.jobs.iter_mut().find(|job| job.number == number)
    }

    /// Returns the initial used share of a job: its owner's, but at least that of the other jobs.
    /// Otherwise it would get all devices until it has caught up.
    fn initial_share(&mut self, owner: Option<u64>) -> f64 {
        let level = self.level;
        self.owners.retain(|(_, share)| *share > level);
        let entry = self.owners.iter().find(|(other, _)| Some(*other) == owner);
        entry.map_or(level, |(_, share)| *share)
    }

    /// Records that a device has run a batch of a job's tasks. Returns the set of devices to wake.
    fn complete_batch(&mut self, number: u64, device: usize, tasks: &[u32], ran: &BatchRun) -> u64 {
        let Some(job) = self.find_job(number) else {
            return 0;
        };
        let wake = job.complete_batch(device, tasks, ran);
        let (owner, share) = (job.owner, job.used_share());
        let Some(owner) = owner else {
            return wake;
        };
        let owned = self.jobs.iter_mut().filter(|job| job.owner == Some(owner));
        owned.for_each(|job| job.set_share(share));
        let index = self.owners.iter().position(|(other, _)| *other == owner);
        match index {
            Some(index) => self.owners[index].1 = share,
            None if self.owners.len() < JOBS_MAX => self.owners.push((owner, share)),
            None => {}
        }
        wake
    }

    /// Takes the next batch for a device from the job whose turn it is. Adds to `wake` the other
    /// devices that now have work.
    fn take_batch(
        &mut self,
        device: usize,
        batch: &mut Vec<u32>,
        wake: &mut u64,
    ) -> Option<(u64, TaskFunction, Moment)> {
        let Self { jobs, level, .. } = self;
        let mut take = |job: &mut ActiveJob| {
            let share = job.used_share();
            let taken = job.take_batch(device, batch, wake)?;
            *level = level.max(share);
            Some(taken)
        };
        if let [only] = &mut jobs[..] {
            return take(only);
        }
        let now = Moment::now();
        let mut by_priority: Vec<usize> = (0..jobs.len()).collect();
        by_priority.sort_by(|&one, &other| jobs[one].cmp_priority(&jobs[other], now));
        by_priority
            .into_iter()
            .find_map(|index| take(&mut jobs[index]))
    }
}

/// Returns the edge from a task of a chain to the next.
fn chain_edge(to: usize) -> Edge {
    Edge {
        from: to - 1,
        to,
        bytes: 0,
    }
}

/// Returns the picoseconds of a duration, at most `TIME_MAX` (some 27 days).
fn to_picoseconds(duration: Duration) -> Time {
    let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    nanoseconds
        .saturating_mul(1000)
        .min(crate::planning::time::TIME_MAX)
}

#[cfg(test)]
mod tests;
