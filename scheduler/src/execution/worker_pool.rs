//! Runs jobs on devices: a worker pool has a thread for each device, and these threads run the
//! tasks of all jobs.
//!
//! A free device takes tasks from the job with the highest priority that has work for it. Among
//! equals, it prefers the job that runs out of time, then the job with the least device time for
//! its weight, so that leases share the devices by price. The device time of an owner's jobs counts
//! for all its jobs, including later ones. A job gets no compensation for time in which it was
//! absent. The pool holds its lock for bookkeeping only, never while a task runs. So a caller that
//! cancels gets its answer at once; the pool lets the current task finish and discards its result.

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

/// Polls for work before a device sleeps: about 20 us, twice the time to sleep and wake.
const LOOKS: u32 = 1_000;
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
    #[error("the job is planned for {wanted} devices, there are {there}")]
    Devices {
        /// Number of devices in the job's problem.
        wanted: usize,
        /// Number of devices in the pool.
        there: usize,
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
    /// Wakes each device from sleep.
    work: Vec<Condvar>,
    /// A flag for each device that still polls for work: waking a sleeping device takes a few
    /// microseconds, setting a flag does not.
    bells: Vec<AtomicBool>,
    ended: Condvar,
}

#[derive(Default)]
pub(super) struct PoolState {
    jobs: Vec<ActiveJob>,
    /// The share of the job that got work last.
    level: f64,
    /// Shares above that level of owners whose jobs have ended.
    owners: Vec<(u64, f64)>,
    idle: u64,
    /// The idle devices that sleep.
    asleep: u64,
    lost: u64,
    /// The cause of each device's loss.
    causes: BTreeMap<usize, String>,
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
            bells: (0..devices).map(|_| AtomicBool::new(false)).collect(),
            ended: Condvar::new(),
        });
        let mut pool = Self {
            shared,
            threads: Vec::with_capacity(devices),
        };
        for device in 0..devices {
            let shared = pool.shared.clone();
            let named = std::thread::Builder::new().name(format!("device-{device}"));
            pool.threads
                .push(named.spawn(move || worker::run_worker(&shared, device))?);
        }
        Ok(pool)
    }

    /// Returns the number of devices.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.shared.work.len()
    }

    /// Measures the time of a handover here: from the end of a task on one device to the start of
    /// the next on another, over a chain of empty tasks that alternate. Returns none for one
    /// device.
    ///
    /// # Errors
    /// [`SubmitError`] if the pool is full.
    pub fn hand_over(&self) -> Result<Option<Duration>, SubmitError> {
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
        let problem = Arc::new(Problem::new(parts).expect("a chain has no circle"));
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
        let (wanted, there) = (job.problem.device_count(), self.device_count());
        if wanted != there {
            return Err(SubmitError::Devices { wanted, there });
        }
        let deadline = job.deadline;
        let mut active = ActiveJob::new(job);
        let mut state = self.shared.lock_state();
        if state.jobs.len() >= JOBS_MAX {
            return Err(SubmitError::Full);
        }
        for device in (0..there).filter(|device| state.lost >> device & 1 == 1) {
            active.remove_lost_device(device);
        }
        state.submitted += 1;
        let number = state.submitted;
        active.number = number;
        active.set_share(state.share_of_newcomer(active.owner));
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
            let index = index.expect("a job leaves with the one who waits for it");
            if state.jobs[index].has_ended() {
                return state.jobs.swap_remove(index).into_execution();
            }
            let left = self
                .deadline
                .map(|deadline| deadline.duration_since(Moment::now()));
            state = match left {
                Some(Duration::ZERO) => {
                    state.jobs[index].end_job(JobEnd::Deadline);
                    state
                }
                Some(left) => {
                    let waited = self.shared.ended.wait_timeout(state, left);
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
        // Tasks run outside the lock. A panic inside is a broken assertion of the bookkeeping, and
        // only the job that broke it can be wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the idle ones of `devices`.
    pub(super) fn wake_devices(&self, state: &mut PoolState, devices: u64) {
        let woken = state.idle & devices;
        state.idle &= !woken;
        let one = |device: &usize| woken >> device & 1 == 1;
        for device in (0..self.work.len()).filter(one) {
            self.bells[device].store(true, Ordering::Release);
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
        let own = 1 << device;
        state.idle |= own;
        self.bells[device].store(false, Ordering::Relaxed);
        if !state.jobs.is_empty() {
            drop(state);
            for _ in 0..LOOKS {
                if self.bells[device].load(Ordering::Acquire) {
                    break;
                }
                std::hint::spin_loop();
            }
            state = self.lock_state();
        }
        state.asleep |= own;
        while state.idle & own != 0 && !state.stopping {
            let waited = self.work[device].wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.asleep &= !own;
        state.idle &= !own;
        state
    }
}

impl PoolState {
    fn find_job(&mut self, number: u64) -> Option<&mut ActiveJob> {
        self.jobs.iter_mut().find(|job| job.number == number)
    }

    /// Returns the initial share of a job: its owner's share, but no less than other jobs have,
    /// because otherwise it would get all devices for a while.
    fn share_of_newcomer(&mut self, owner: Option<u64>) -> f64 {
        let level = self.level;
        self.owners.retain(|(_, share)| *share > level);
        let known = self.owners.iter().find(|(known, _)| Some(*known) == owner);
        known.map_or(level, |(_, share)| *share)
    }

    /// Records a device's batch of a job. Returns the set of devices to wake.
    fn complete_batch(&mut self, number: u64, device: usize, tasks: &[u32], ran: &BatchRun) -> u64 {
        let Some(job) = self.find_job(number) else {
            return 0;
        };
        let wake = job.complete_batch(device, tasks, ran);
        let (owner, share) = (job.owner, job.used_share());
        let Some(owner) = owner else {
            return wake;
        };
        let own = self.jobs.iter_mut().filter(|job| job.owner == Some(owner));
        own.for_each(|job| job.set_share(share));
        let known = self.owners.iter().position(|(known, _)| *known == owner);
        match known {
            Some(place) => self.owners[place].1 = share,
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
        let mut turn: Vec<usize> = (0..jobs.len()).collect();
        turn.sort_by(|&one, &other| jobs[one].cmp_priority(&jobs[other], now));
        turn.into_iter().find_map(|index| take(&mut jobs[index]))
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
