//! Starts a provider's sandboxes and gives one to each lease. It keeps some spare ones ready.
//!
//! A spare sandbox has already started, opened its devices and run a small model, so that a lease
//! pays for none of this. It serves the first lease that comes, and ends with it. The pool replaces
//! a spare when the lease's sandbox is gone, not while it computes. If leases come faster, the pool
//! starts one for each, and each takes the first that is ready.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use souk_host::system;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::shared_content::SharedContents;
use crate::{Recipe, Sandbox, SandboxCounts, SandboxFault};

/// Spare sandboxes: one for the next lease, and one for a lease that comes before the replacement
/// has started.
const SPARES_MAX: usize = 2;

/// Sandboxes that start at the same time, so that many leases do not slow each other's start.
const STARTING_MAX: usize = 4;

/// Memory that the machine must have free before the pool starts a spare sandbox.
const SPARE_FREE_BYTES_MIN: u64 = 1 << 30;

/// A provider's sandboxes.
#[derive(Clone, Debug)]
pub struct SandboxPool {
    inner: Arc<PoolInner>,
}

#[derive(Debug)]
struct PoolInner {
    recipe: Recipe,
    shared: Arc<SharedContents>,
    state: Mutex<PoolState>,
    /// Notified each time a start ends.
    started: Notify,
}

#[derive(Debug)]
struct PoolState {
    /// Results of starts that no lease has taken: sandboxes, or the reason why there is none.
    ready: VecDeque<Result<Sandbox, SandboxFault>>,
    /// Starts in progress.
    starting: usize,
    /// Leases that wait for a sandbox.
    wanted: usize,
    /// The most spare sandboxes.
    spares_max: usize,
}

/// A lease that waits for a sandbox.
struct Wanting<'a> {
    inner: &'a PoolInner,
}

/// Notifies the pool that a sandbox is gone, so that it prepares the next one.
#[derive(Debug)]
pub(crate) struct FreedPlace {
    pool: SandboxPool,
}

impl SandboxPool {
    /// Returns a pool of sandboxes with the same `recipe`, of which `first` has already started.
    #[must_use]
    pub fn new(recipe: Recipe, first: Sandbox) -> SandboxPool {
        let state = PoolState {
            ready: VecDeque::from([Ok(first)]),
            starting: 0,
            wanted: 0,
            spares_max: SPARES_MAX,
        };
        let inner = PoolInner {
            recipe,
            shared: Arc::default(),
            state: Mutex::new(state),
            started: Notify::new(),
        };
        SandboxPool {
            inner: Arc::new(inner),
        }
    }

    /// Returns the content shared with all of them.
    #[must_use]
    pub fn shared_contents(&self) -> &Arc<SharedContents> {
        &self.inner.shared
    }

    /// Returns the number of sandboxes, and of leases that wait for one.
    #[must_use]
    pub fn sandbox_counts(&self) -> SandboxCounts {
        let state = self.inner.lock_state();
        SandboxCounts {
            ready: state.ready.iter().filter(|ready| ready.is_ok()).count(),
            starting: state.starting,
            wanted: state.wanted,
        }
    }

    /// Returns a new sandbox for a lease, which no other lease has used.
    ///
    /// # Errors
    /// [`SandboxFault`], if none is ready and none can be started.
    pub async fn take_sandbox(&self) -> Result<Sandbox, SandboxFault> {
        let _wanting = Wanting::new(&self.inner);
        loop {
            let started = self.inner.started.notified();
            tokio::pin!(started);
            // From here on, no end of a start goes unnoticed.
            started.as_mut().enable();
            if let Some(taken) = self.inner.lock_state().take_ready() {
                let mut sandbox = taken?;
                let pool = self.clone();
                sandbox.vacated = Some(FreedPlace { pool });
                return Ok(sandbox);
            }
            self.top_up(0);
            started.await;
        }
    }

    /// Ends the spare sandboxes, and keeps none from now on.
    pub fn retire_spares(&self) {
        let mut state = self.inner.lock_state();
        state.spares_max = 0;
        state.ready.clear();
    }

    /// Starts sandboxes for the leases that wait, and `spares` for later ones.
    fn top_up(&self, spares: usize) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        for _ in 0..self.inner.lock_state().begin_starts(spares) {
            let pool = self.clone();
            runtime.spawn(async move {
                let started = Sandbox::start(&pool.inner.recipe).await;
                pool.inner.lock_state().end_start(started);
                pool.inner.started.notify_waiters();
                pool.top_up(0);
            });
        }
    }
}

impl PoolInner {
    fn lock_state(&self) -> MutexGuard<'_, PoolState> {
        // No code here panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Takes the next live sandbox, or the reason why there is none.
    fn take_ready(&mut self) -> Option<Result<Sandbox, SandboxFault>> {
        self.drop_ended();
        self.ready.pop_front()
    }

    /// Drops spare sandboxes that have ended, as any process may.
    fn drop_ended(&mut self) {
        self.ready.retain_mut(|ready| {
            let has_ended = ready.as_mut().is_ok_and(Sandbox::has_ended);
            if has_ended {
                tracing::warn!("a spare sandbox process ended by itself");
            }
            !has_ended
        });
    }

    /// Returns how many sandboxes to start; counts them as starting from now on.
    fn begin_starts(&mut self, spares: usize) -> usize {
        self.drop_ended();
        let goal = self.wanted + spares.min(self.spares_max);
        let missing = goal.saturating_sub(self.ready.len() + self.starting);
        let begun = missing.min(STARTING_MAX - self.starting);
        self.starting += begun;
        begun
    }

    /// Keeps the result of a start for a lease that waits, or as a spare.
    fn end_start(&mut self, started: Result<Sandbox, SandboxFault>) {
        self.starting -= 1;
        match started {
            Err(fault) if self.wanted == 0 => {
                tracing::warn!(%fault, "starting a spare sandbox process failed");
            }
            // The lease that wanted it has gone away, or the provider is about to stop.
            Ok(_) if self.ready.len() >= self.wanted + self.spares_max => {}
            started => self.ready.push_back(started),
        }
    }
}

impl<'a> Wanting<'a> {
    fn new(inner: &'a PoolInner) -> Wanting<'a> {
        inner.lock_state().wanted += 1;
        Wanting { inner }
    }
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.inner.lock_state().wanted -= 1;
    }
}

impl Drop for FreedPlace {
    fn drop(&mut self) {
        let free = system::memory_free_bytes().unwrap_or(u64::MAX);
        let spares = match free < SPARE_FREE_BYTES_MIN {
            true => 0,
            false => SPARES_MAX,
        };
        self.pool.top_up(spares);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(wanted: usize, starting: usize) -> PoolState {
        PoolState {
            ready: VecDeque::new(),
            starting,
            wanted,
            spares_max: SPARES_MAX,
        }
    }

    #[test]
    fn who_waits_and_who_will_are_started_for_and_no_more() {
        assert_eq!(state(0, 0).begin_starts(SPARES_MAX), SPARES_MAX);
        assert_eq!(state(0, 0).begin_starts(0), 0, "no memory for a spare one");
        assert_eq!(state(1, 1).begin_starts(0), 0, "one is on its way");
        assert_eq!(state(1, 1).begin_starts(1), 1);
        let mut crowd = state(16, 0);
        assert_eq!(crowd.begin_starts(SPARES_MAX), STARTING_MAX);
        assert_eq!(crowd.begin_starts(SPARES_MAX), 0);
    }

    #[test]
    fn a_failed_start_is_told_to_who_waits_and_kept_for_nobody() {
        let mut nobody = state(0, 1);
        nobody.end_start(Err(SandboxFault::Silent));
        assert!(nobody.ready.is_empty());
        let mut one = state(1, 1);
        one.end_start(Err(SandboxFault::Silent));
        assert!(matches!(one.take_ready(), Some(Err(SandboxFault::Silent))));
    }
}
