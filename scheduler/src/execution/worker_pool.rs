//! A thread for each device, and the jobs they work on.
//!
//! A free device takes from the job of the highest priority that has something for it; among equals
//! from the one that is running out of time, then from the one that has had the least device time
//! for its weight, so that leases share as they paid: what the jobs of one owner had counts for all
//! of them, those that come later too. Who was away is given nothing for it. The lock is held for
//! bookkeeping, never while a task runs, so a caller that cancels is answered at once: a task that
//! runs then is let finish, and what it gives is thrown away.

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

pub use job::{Call, DeviceUse, Execution, Fault, Job, JobEnd, Stretch, TaskTime, Work};
pub use moment::Moment;

/// Looks for work before a device sleeps: some 20 us, about twice what sleeping and waking take.
const LOOKS: u32 = 1_000;
/// Tasks of the chain that measures handing over: a few milliseconds.
const HAND_OVERS: usize = 512;
/// Jobs at a time; a provider serves far fewer leases.
const JOBS_MAX: usize = 256;

/// Why a job was not taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// There are as many jobs as there may be.
    #[error("{JOBS_MAX} jobs are running: wait for one to end")]
    Full,
    /// The job is for other devices.
    #[error("the job is planned for {wanted} devices, there are {there}")]
    Devices {
        /// Devices of its problem.
        wanted: usize,
        /// Devices of the worker pool.
        there: usize,
    },
}

/// The workers of a machine's devices. Dropping it ends them, once they have finished the tasks
/// they are at.
pub struct WorkerPool {
    shared: Arc<PoolShared>,
    threads: Vec<JoinHandle<()>>,
}

/// A job that was submitted.
pub struct RunningJob {
    shared: Arc<PoolShared>,
    number: u64,
    deadline: Option<Moment>,
}

/// Ends a job from another thread than the one that waits for it.
#[derive(Clone)]
pub struct Canceller {
    shared: Arc<PoolShared>,
    number: u64,
}

pub(super) struct PoolShared {
    state: Mutex<PoolState>,
    /// One for each device, for when it has nothing to do.
    work: Vec<Condvar>,
    /// Rung for a device that looks out for work before it sleeps: waking it takes a few
    /// microseconds, ringing none.
    bells: Vec<AtomicBool>,
    ended: Condvar,
}

#[derive(Default)]
pub(super) struct PoolState {
    jobs: Vec<ActiveJob>,
    /// The share of the job that was last given something.
    level: f64,
    /// Shares beyond it that owners have whose jobs have ended.
    owners: Vec<(u64, f64)>,
    idle: u64,
    /// Of the idle ones those that sleep.
    asleep: u64,
    lost: u64,
    /// Why each device was lost that is.
    causes: BTreeMap<usize, String>,
    submitted: u64,
    stopping: bool,
}

impl WorkerPool {
    /// Starts a thread for each of `devices` devices.
    ///
    /// # Errors
    /// What the system says when it cannot start a thread.
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
                .push(named.spawn(move || worker::work(&shared, device))?);
        }
        Ok(pool)
    }

    /// Devices it has workers for.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.shared.work.len()
    }

    /// What handing on costs here: from the end of a task on one device to the start of the next on
    /// another one, measured on a chain of empty tasks that go to and fro. None for one device.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn hand_over(&self) -> Result<Option<Duration>, SubmitError> {
        let devices = self.devices();
        if devices < 2 {
            return Ok(None);
        }
        let parts = ProblemParts {
            devices,
            exec: vec![1; HAND_OVERS * devices],
            edges: (1..HAND_OVERS).map(link).collect(),
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

    /// Devices that were lost, one bit each.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.shared.state().lost
    }

    /// Devices that were lost, each with why.
    #[must_use]
    pub fn losses(&self) -> Vec<(usize, String)> {
        self.shared.state().causes.clone().into_iter().collect()
    }

    /// A device that was lost is back: it is given work of jobs submitted from now on.
    pub fn restore(&self, device: usize) {
        let mut state = self.shared.state();
        state.lost &= !(1 << device);
        state.causes.remove(&device);
    }

    /// Takes on a job. Of one whose deadline is over nothing is begun.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit(&self, job: Job) -> Result<RunningJob, SubmitError> {
        let (wanted, there) = (job.problem.devices(), self.devices());
        if wanted != there {
            return Err(SubmitError::Devices { wanted, there });
        }
        let deadline = job.deadline;
        let mut active = ActiveJob::new(job);
        let mut state = self.shared.state();
        if state.jobs.len() >= JOBS_MAX {
            return Err(SubmitError::Full);
        }
        for device in (0..there).filter(|device| state.lost >> device & 1 == 1) {
            active.lose(device);
        }
        state.submitted += 1;
        let number = state.submitted;
        active.number = number;
        active.set_share(state.share_of_newcomer(active.owner));
        // Who waits may come to look only after the devices have done it all.
        if deadline.is_some_and(|deadline| deadline <= Moment::now()) {
            active.end(JobEnd::Deadline);
        }
        state.jobs.push(active);
        self.shared.wake(&mut state, u64::MAX);
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
    /// [`SubmitError`].
    pub fn run(&self, job: Job) -> Result<Execution, SubmitError> {
        Ok(self.submit(job)?.wait())
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.stopping = true;
            state
                .jobs
                .iter_mut()
                .for_each(|job| job.end(JobEnd::Cancelled));
            self.shared.wake(&mut state, u64::MAX);
            self.shared.ended.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of tasks; another would be its own and is printed.
            let _ = thread.join();
        }
    }
}

impl Canceller {
    /// Ends the job: no task of it is begun any more, and whoever waits for it is told at once.
    pub fn cancel(&self) {
        let mut state = self.shared.state();
        if let Some(job) = state.job(self.number) {
            job.end(JobEnd::Cancelled);
        }
        self.shared.ended.notify_all();
    }
}

impl RunningJob {
    /// Ends the job, as its [`Canceller`] does.
    pub fn cancel(&self) {
        self.canceller().cancel();
    }

    /// What ends the job while somebody waits for it.
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
        let mut state = self.shared.state();
        loop {
            let index = state.jobs.iter().position(|job| job.number == self.number);
            let index = index.expect("a job leaves with the one who waits for it");
            if state.jobs[index].has_ended() {
                return state.jobs.swap_remove(index).into_execution();
            }
            let left = self.deadline.map(|deadline| deadline.since(Moment::now()));
            state = match left {
                Some(Duration::ZERO) => {
                    state.jobs[index].end(JobEnd::Deadline);
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
        let mut state = self.shared.state();
        // Whoever does not wait does not want it.
        state.jobs.retain(|job| job.number != self.number);
    }
}

impl PoolShared {
    pub(super) fn state(&self) -> MutexGuard<'_, PoolState> {
        // Tasks run outside the lock; a panic inside is a broken assert of the bookkeeping, and
        // then the job that broke it is the only one that can be wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those of `devices` that are idle.
    pub(super) fn wake(&self, state: &mut PoolState, devices: u64) {
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

    /// Waits until a device is woken. While there are jobs it looks out for a while first: what it
    /// waits for is mostly a task of another device that ends soon.
    pub(super) fn rest<'a>(
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
            state = self.state();
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
    fn job(&mut self, number: u64) -> Option<&mut ActiveJob> {
        self.jobs.iter_mut().find(|job| job.number == number)
    }

    /// The share a job begins with: that of its owner, and no less than others have, or it would
    /// have all for a while.
    fn share_of_newcomer(&mut self, owner: Option<u64>) -> f64 {
        let level = self.level;
        self.owners.retain(|(_, share)| *share > level);
        let known = self.owners.iter().find(|(known, _)| Some(*known) == owner);
        known.map_or(level, |(_, share)| *share)
    }

    /// Takes in what a device ran of a job; says which devices to wake.
    fn done(&mut self, number: u64, device: usize, tasks: &[u32], ran: &BatchRun) -> u64 {
        let Some(job) = self.job(number) else {
            return 0;
        };
        let wake = job.done(device, tasks, ran);
        let (owner, share) = (job.owner, job.share());
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

    /// The next batch for a device, of the job whose turn it is; `wake` is told which others have
    /// something to do since.
    fn take(
        &mut self,
        device: usize,
        batch: &mut Vec<u32>,
        wake: &mut u64,
    ) -> Option<(u64, Work, Moment)> {
        let Self { jobs, level, .. } = self;
        let mut take = |job: &mut ActiveJob| {
            let share = job.share();
            let taken = job.take(device, batch, wake)?;
            *level = level.max(share);
            Some(taken)
        };
        if let [only] = &mut jobs[..] {
            return take(only);
        }
        let now = Moment::now();
        let mut turn: Vec<usize> = (0..jobs.len()).collect();
        turn.sort_by(|&one, &other| jobs[one].before(&jobs[other], now));
        turn.into_iter().find_map(|index| take(&mut jobs[index]))
    }
}

/// One word from a task of a chain to the next.
fn link(to: usize) -> Edge {
    Edge {
        from: to - 1,
        to,
        bytes: 0,
    }
}

/// Picoseconds of a duration; a job that ran for half a year is beyond it.
fn picoseconds(duration: Duration) -> Time {
    let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    nanoseconds
        .saturating_mul(1000)
        .min(crate::planning::time::TIME_MAX)
}

#[cfg(test)]
mod tests;
