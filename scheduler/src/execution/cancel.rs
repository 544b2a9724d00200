//! Lets a caller cancel runs in progress. One [`Cancel`] signal can stop any number of runs.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::worker_pool::Canceller;

/// Cancels the runs that use it, including later ones. You can clone it: all clones share one
/// signal.
#[derive(Clone, Default)]
pub struct Cancel {
    inner: Arc<CancelShared>,
}

#[derive(Default)]
struct CancelShared {
    state: Mutex<CancelState>,
    condvar: Condvar,
}

#[derive(Default)]
struct CancelState {
    cancelled: bool,
    jobs: BTreeMap<u64, Canceller>,
    next: u64,
}

/// A job that the signal cancels; dropping this releases the job.
pub(super) struct CancelWatch<'a> {
    cancel: &'a Cancel,
    number: u64,
}

impl Cancel {
    /// Cancels every run that uses this signal. It stays set, so later runs must use another
    /// signal.
    pub fn cancel(&self) {
        let jobs = {
            let mut state = self.inner.lock_state();
            state.cancelled = true;
            std::mem::take(&mut state.jobs)
        };
        jobs.values().for_each(Canceller::cancel);
        self.inner.condvar.notify_all();
    }

    /// Returns whether the signal has been sent.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.lock_state().cancelled
    }

    /// Cancels a job when the signal is given, or at once if it has already been given.
    pub(super) fn watch_job(&self, job: Canceller) -> CancelWatch<'_> {
        let mut state = self.inner.lock_state();
        let number = state.next;
        state.next += 1;
        if state.cancelled {
            drop(state);
            job.cancel();
        } else {
            state.jobs.insert(number, job);
        }
        CancelWatch {
            cancel: self,
            number,
        }
    }

    /// Runs some work on a thread of its own. Returns its result, or nothing as soon as the signal
    /// comes; work that has begun will then continue on its thread.
    ///
    /// # Errors
    /// The system's error if it cannot start a thread.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::io::Result<Option<T>> {
        if self.is_cancelled() {
            return Ok(None);
        }
        let given = Arc::new(Mutex::new(None));
        let (slot, inner) = (given.clone(), self.inner.clone());
        let work = move || {
            let value = catch_unwind(AssertUnwindSafe(work));
            let _state = inner.lock_state();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            inner.condvar.notify_all();
        };
        std::thread::Builder::new()
            .name("run".to_owned())
            .spawn(work)?;
        let mut state = self.inner.lock_state();
        loop {
            let value = given.lock().unwrap_or_else(PoisonError::into_inner).take();
            match value {
                Some(Ok(value)) => return Ok(Some(value)),
                Some(Err(panic)) => resume_unwind(panic),
                None if state.cancelled => return Ok(None),
                None => {}
            }
            let waited = self.inner.condvar.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for CancelWatch<'_> {
    fn drop(&mut self) {
        self.cancel.inner.lock_state().jobs.remove(&self.number);
    }
}

impl CancelShared {
    fn lock_state(&self) -> MutexGuard<'_, CancelState> {
        // Each holder completes its change or makes none.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
