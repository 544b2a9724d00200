//! The benchmark's clock: it turns milliseconds into the planners' pace.
#![expect(
    clippy::disallowed_types,
    reason = "a benchmark measures time; planners never see it"
)]

use std::time::{Duration, Instant};

/// A running clock.
#[derive(Clone, Copy)]
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// Which share of `budget` is used up.
    pub(super) fn share(self, budget: Duration) -> f64 {
        self.elapsed().as_secs_f64() / budget.as_secs_f64()
    }
}
