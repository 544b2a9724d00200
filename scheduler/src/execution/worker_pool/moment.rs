//! The worker pool's clock: the one place of the scheduler, beside its benchmarks, that looks at
//! one.

use std::sync::OnceLock;
use std::time::Duration;

/// A moment on this process's own clock, which never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

#[expect(
    clippy::disallowed_types,
    reason = "what runs is measured; plans are made of the measurements, not of the clock"
)]
mod clock {
    use std::time::Instant;

    use super::{Duration, OnceLock};

    /// Time since this was first asked.
    pub fn elapsed() -> Duration {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        BEGIN.get_or_init(Instant::now).elapsed()
    }
}

impl Moment {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self(clock::elapsed())
    }

    /// The moment so much later.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    /// Time from `earlier` to this moment; none if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
