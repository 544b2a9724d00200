//! The benchmark's clock: it turns milliseconds into the planners' pace.
//!
//! It counts the processor time of the calling thread, so a budget means the same work on a busy
//! machine as on an idle one. On an idle machine it is the time on the wall.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A running clock.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    /// Starts it.
    #[must_use]
    pub fn start() -> Self {
        Self(now())
    }

    /// Processor time used since it was started.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        now().saturating_sub(self.0)
    }

    /// Which share of `budget` is used up.
    #[must_use]
    pub fn share(self, budget: Duration) -> f64 {
        self.elapsed().as_secs_f64() / budget.as_secs_f64()
    }
}

fn now() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// Processor time that all threads of this process have used, those that ended too.
pub(super) fn of_process() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
