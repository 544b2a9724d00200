//! A thread for each device, and the jobs they work on.
//!
//! A free device takes from the job of the highest priority that has something for it; among equals
//! from the one that is running out of time, then from the one that has had the least device time
//! for its weight, so that leases share as they paid. The lock is held for bookkeeping, never while
//! a task runs, so a caller that cancels is answered at once: a task that runs then is let finish,
//! and what it gives is thrown away.

mod job;
mod moment;
mod worker;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use job::{Call, DeviceUse, Ended, Execution, Fault, Job, Stretch, Took, Work};
pub use moment::Moment;

use super::dispatch::{DEVICES_MAX, Dispatch};
use crate::problem::Time;
use job::Active;

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
        /// Devices of the crew.
        there: usize,
    },
}

/// The workers of a machine's devices. Dropping it ends them, once they have finished the tasks
/// they are at.
pub struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A job that was submitted.
pub struct Running {
    shared: Arc<Shared>,
    number: u64,
    deadline: Option<Moment>,
}

pub(super) struct Shared {
    state: Mutex<State>,
    /// One for each device, for when it has nothing to do.
    work: Vec<Condvar>,
    ended: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    jobs: Vec<Active>,
    idle: u64,
    lost: u64,
    submitted: u64,
    stopping: bool,
}

impl Crew {
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
            "{devices} devices are too many for one crew"
        );
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: (0..devices).map(|_| Condvar::new()).collect(),
            ended: Condvar::new(),
        });
        let mut crew = Self {
            shared,
            threads: Vec::with_capacity(devices),
        };
        for device in 0..devices {
            let shared = crew.shared.clone();
            let named = std::thread::Builder::new().name(format!("device-{device}"));
            crew.threads
                .push(named.spawn(move || worker::work(&shared, device))?);
        }
        Ok(crew)
    }

    /// Devices it has workers for.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.shared.work.len()
    }

    /// Devices that were lost, one bit each.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.shared.state().lost
    }

    /// A device that was lost is back: it is given work of jobs submitted from now on.
    pub fn restore(&self, device: usize) {
        self.shared.state().lost &= !(1 << device);
    }

    /// Takes on a job.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit(&self, job: Job) -> Result<Running, SubmitError> {
        let (wanted, there) = (job.problem.devices(), self.devices());
        if wanted != there {
            return Err(SubmitError::Devices { wanted, there });
        }
        let deadline = job.deadline;
        let mut active = Active::new(job);
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
        // A newcomer starts level with the job that had least, or it would have all for a while.
        let level = state.jobs.iter().map(Active::share).min_by(f64::total_cmp);
        active.start_level(level.unwrap_or(0.0));
        state.jobs.push(active);
        self.shared.wake(&mut state, u64::MAX);
        drop(state);
        Ok(Running {
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

impl Drop for Crew {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.stopping = true;
            state
                .jobs
                .iter_mut()
                .for_each(|job| job.end(Ended::Cancelled));
            self.shared.wake(&mut state, u64::MAX);
            self.shared.ended.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of tasks; another would be its own and is printed.
            let _ = thread.join();
        }
    }
}

impl Running {
    /// Ends the job: no task of it is begun any more.
    pub fn cancel(&self) {
        let mut state = self.shared.state();
        if let Some(job) = state.job(self.number) {
            job.end(Ended::Cancelled);
        }
        self.shared.ended.notify_all();
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
                    state.jobs[index].end(Ended::Deadline);
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

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        // Whoever does not wait does not want it.
        state.jobs.retain(|job| job.number != self.number);
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Tasks run outside the lock; a panic inside is a broken assert of the bookkeeping, and
        // then the job that broke it is the only one that can be wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those of `devices` that are idle.
    pub(super) fn wake(&self, state: &mut State, devices: u64) {
        let woken = state.idle & devices;
        state.idle &= !woken;
        let one = |device: &usize| woken >> device & 1 == 1;
        for device in (0..self.work.len()).filter(one) {
            self.work[device].notify_one();
        }
    }
}

impl State {
    fn job(&mut self, number: u64) -> Option<&mut Active> {
        self.jobs.iter_mut().find(|job| job.number == number)
    }

    /// The next batch for a device, of the job whose turn it is.
    fn take(&mut self, device: usize, batch: &mut Vec<u32>) -> Option<(u64, Work, Moment)> {
        if let [only] = &mut self.jobs[..] {
            return only.take(device, batch);
        }
        let now = Moment::now();
        let mut turn: Vec<usize> = (0..self.jobs.len()).collect();
        turn.sort_by(|&one, &other| self.jobs[one].before(&self.jobs[other], now));
        turn.into_iter()
            .find_map(|index| self.jobs[index].take(device, batch))
    }
}

/// Picoseconds of a duration; a job that ran for half a year is beyond it.
fn picoseconds(duration: Duration) -> Time {
    let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    nanoseconds
        .saturating_mul(1000)
        .min(crate::problem::TIME_MAX)
}

#[cfg(test)]
mod tests;
