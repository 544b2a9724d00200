//! Measures processor time for the benchmarks, and converts a budget in milliseconds to the effort
//! of planners.
//!
//! It counts the processor time of the calling thread, so a budget means the same work on a busy
//! machine as on an idle one. On an idle machine it equals wall time.

use std::time::Duration;

use souk_host::clock::of_thread;

/// A running stopwatch, which must be read on the thread that started it.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    /// Starts a stopwatch.
    #[must_use]
    pub fn start() -> Self {
        Self(of_thread())
    }

    /// Returns the processor time since the start.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        of_thread().saturating_sub(self.0)
    }

    /// Returns the part of `budget` that is used up, which can exceed 1.
    #[must_use]
    pub fn used_share(self, budget: Duration) -> f64 {
        self.elapsed().as_secs_f64() / budget.as_secs_f64()
    }
}
