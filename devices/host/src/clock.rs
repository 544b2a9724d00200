//! Reads processor time: the time that threads spent on a core, whatever else the machine did
//! meanwhile. Measurements use it where other work shares the machine. On systems other than Unix
//! it is wall time.

use std::time::Duration;

#[cfg(unix)]
use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of the calling thread since a fixed start of its own. You can compare
/// only readings of the same thread.
#[must_use]
pub fn of_thread() -> Duration {
    #[cfg(unix)]
    return read(ClockId::ThreadCPUTime);
    #[cfg(not(unix))]
    on_the_wall()
}

/// Returns the processor time of all threads of this process, including ended ones.
#[must_use]
pub fn of_process() -> Duration {
    #[cfg(unix)]
    return read(ClockId::ProcessCPUTime);
    #[cfg(not(unix))]
    on_the_wall()
}

#[cfg(unix)]
fn read(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// Since it was first asked.
#[cfg(not(unix))]
fn on_the_wall() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_uses_time_and_so_does_its_process() {
        let (thread, process) = (of_thread(), of_process());
        while of_thread() == thread {
            std::hint::spin_loop();
        }
        assert!(of_process() > process);
    }
}
