//! Reads this process's clock, which never goes back, for deadlines and durations. Apart from the
//! benchmarks, no other code of the scheduler should read a clock.

use std::sync::OnceLock;
use std::time::Duration;

/// A moment on this process's own clock, which never goes back. You can compare it only with
/// moments of the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

#[expect(
    clippy::disallowed_types,
    reason = "what runs is measured; plans are made of the measurements, not of the clock"
)]
mod clock {
    use std::time::Instant;

    use super::{Duration, OnceLock};

    /// Returns the time since its first call.
    pub fn time_since_start() -> Duration {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        BEGIN.get_or_init(Instant::now).elapsed()
    }
}

impl Moment {
    /// Returns the present moment.
    #[must_use]
    pub fn now() -> Self {
        Self(clock::time_since_start())
    }

    /// Returns the moment `time` later.
    #[must_use]
    pub fn saturating_add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    /// Returns the time from `earlier` to this moment; zero if it is not earlier.
    #[must_use]
    pub fn duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
