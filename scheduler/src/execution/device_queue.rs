//! Queues the runs of several owners, such as the leases of a provider, on one device. Each run is
//! a task of a worker pool of one device.
//!
//! The pool shares the device's time among the owners by their weights, as on a group of several
//! devices, however many threads each owner has.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::cancel::Cancel;
use super::dispatch::Results;
use super::error::{GroupRunError, TaskError};
use super::single_device::SingleDevice;
use super::task::{Precedence, RunResult, Task};
use super::worker_pool::{Fault, Job, JobEnd, TaskTime, WorkerPool};
use crate::learning::Speeds;
use crate::planning::problem::{Problem, ProblemParts};
use crate::planning::schedule::Schedule;

/// The queue of the runs that wait for a device.
#[derive(Default)]
pub(super) struct RunQueue {
    /// The first shared run starts it.
    pool: OnceLock<WorkerPool>,
}

impl RunQueue {
    /// Runs a task when it is its owner's turn.
    ///
    /// # Errors
    /// As a run without owners, and [`GroupRunError::Deadline`] or [`GroupRunError::Cancelled`].
    pub(super) fn run(
        &self,
        one: &Arc<SingleDevice>,
        task: &Task,
        precedence: Precedence,
        cancel: Option<&Cancel>,
    ) -> Result<RunResult, TaskError> {
        let pool = self.get_or_start_pool()?;
        let given = Arc::new(Mutex::new(None));
        let (slot, one, asked) = (given.clone(), one.clone(), task.clone());
        let work = move |_| {
            let ran = one.run(&asked);
            let is_emulated = one.processor.profile().emulated;
            let took = match &ran {
                Ok(ran) if is_emulated => Ok(TaskTime::Stated(ran.busy)),
                Ok(_) => Ok(TaskTime::Measured),
                Err(error) => Err(Fault::Task(error.to_string())),
            };
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(ran);
            took
        };
        let running = pool.submit_job(Job {
            problem: Arc::new(Problem::new(of_one()).expect("a task by itself has no circle")),
            plan: Some(Schedule {
                device: vec![0],
                start: vec![0],
                ..Schedule::default()
            }),
            keeps_plan: false,
            kinds: Arc::default(),
            speeds: Speeds::new(1, 1),
            host_transfers: Arc::default(),
            work: Arc::new(work),
            results: Results::Survive,
            priority: precedence.priority,
            weight: precedence.weight,
            owner: precedence.owner,
            deadline: precedence.deadline,
        });
        let running = running.map_err(GroupRunError::from)?;
        let watched = cancel.map(|cancel| cancel.watch_job(running.canceller()));
        let ended = running.wait().ended;
        drop(watched);
        let cause = match ended {
            JobEnd::Cancelled => return Err(GroupRunError::Cancelled.into()),
            JobEnd::Deadline => return Err(GroupRunError::Deadline.into()),
            JobEnd::Failed { cause, .. } => cause,
            JobEnd::Done | JobEnd::Stranded(_) => String::new(),
        };
        let ran = given.lock().unwrap_or_else(PoisonError::into_inner).take();
        ran.unwrap_or_else(|| {
            // A run without any result, not even an error, has panicked.
            let fragment = task.name.clone();
            Err(GroupRunError::Fragment { fragment, cause }.into())
        })
    }

    fn get_or_start_pool(&self) -> Result<&WorkerPool, GroupRunError> {
        if let Some(pool) = self.pool.get() {
            return Ok(pool);
        }
        let pool = WorkerPool::start(1).map_err(GroupRunError::Thread)?;
        // If two threads start a pool at once, one of the pools will end here unused.
        Ok(self.pool.get_or_init(|| pool))
    }
}

/// Returns a problem of one task on one device.
fn of_one() -> ProblemParts {
    ProblemParts {
        devices: 1,
        exec: vec![1],
        latency: vec![0],
        time_per_byte: vec![0],
        ..ProblemParts::default()
    }
}
