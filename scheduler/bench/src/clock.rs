//! The benchmark's clock: it turns milliseconds into the planners' pace.
//!
//! It counts the processor time of the calling thread, so a budget means the same work on a busy
//! machine as on an idle one. On an idle machine it is the time on the wall.

use std::time::Duration;

use souk_host::clock::of_thread;

/// A running clock.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    /// Starts it.
    #[must_use]
    pub fn start() -> Self {
        Self(of_thread())
    }

    /// Processor time used since it was started.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        of_thread().saturating_sub(self.0)
    }

    /// Which share of `budget` is used up.
    #[must_use]
    pub fn share(self, budget: Duration) -> f64 {
        self.elapsed().as_secs_f64() / budget.as_secs_f64()
    }
}
