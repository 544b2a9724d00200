//! Reserves a place for each job that this process runs and each order that it places, so that none
//! begins twice. A reserved job can be stopped through its place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::problem::{Code, Problem};

/// The jobs that this process runs, by name, each with its stop signal.
#[derive(Debug, Default)]
pub struct RunningJobs {
    jobs: Mutex<BTreeMap<String, Arc<Notify>>>,
}

/// A job's place among the running jobs; dropping it releases the place.
pub struct JobSlot {
    running: Arc<RunningJobs>,
    /// The job's name.
    pub name: String,
    /// The signal that stops the job.
    pub cancel: Arc<Notify>,
}

impl RunningJobs {
    /// Returns the number of running jobs.
    pub fn job_count(&self) -> usize {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Returns whether this process runs the job.
    pub fn is_running(&self, name: &str) -> bool {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.contains_key(name)
    }

    /// Stops a job; returns whether this process runs it.
    pub fn cancel_job(&self, name: &str) -> bool {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let found = jobs.get(name);
        found.inspect(|cancel| cancel.notify_one()).is_some()
    }

    /// Reserves the place of a job.
    ///
    /// # Errors
    /// Fails if the job already runs.
    pub fn reserve_place(self: &Arc<Self>, name: &str) -> Result<JobSlot, Problem> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.contains_key(name) {
            let detail = format!("{name} is being worked on");
            return Err(Problem::new(Code::Busy, detail, "ask again in a moment"));
        }
        let cancel = Arc::<Notify>::default();
        jobs.insert(name.to_owned(), cancel.clone());
        Ok(JobSlot {
            running: self.clone(),
            name: name.to_owned(),
            cancel,
        })
    }
}

impl Drop for JobSlot {
    fn drop(&mut self) {
        let mut jobs = self
            .running
            .jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        jobs.remove(&self.name);
    }
}
