//! Measures the time that work would take by itself on a machine that also does other work.
//!
//! A thread that is ready but has no core waits for one, and the kernel counts this time. The
//! measured time is the wall time less this wait, and never less than the threads' processor time.
//! If the kernel does not report it (Linux does in `schedstat`), the measured time is the wall
//! time.
//!
//! The processor time comes from the threads' clocks, because `schedstat` is too coarse for it: it
//! updates the time of a running thread only at each tick, and it adds a thread's wait from before
//! the work once that thread runs. The two errors together once turned work of 0.4 ms into 3 us.

use std::fs;
use std::num::NonZeroUsize;
use std::ops::Sub;
use std::path::Path;
use std::time::{Duration, Instant};

use souk_host::clock;

/// The kernel's counts for some threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ThreadTimes {
    /// Time on a core.
    ran: Duration,
    /// Time without a core, though ready to run.
    waited: Duration,
}

impl Sub for ThreadTimes {
    type Output = Self;

    /// Returns the increase; threads that ended take their counts with them.
    fn sub(self, before: Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(before.ran),
            waited: self.waited.saturating_sub(before.waited),
        }
    }
}

/// The threads whose time counts.
#[derive(Clone, Copy)]
pub(super) enum CpuTimeScope {
    /// The calling thread.
    Thread,
    /// All threads of the process, of which this many share the work. The others should be idle.
    Process(NonZeroUsize),
}

impl CpuTimeScope {
    /// Measures the time of some work.
    pub fn time_work(self, work: impl FnOnce()) -> Duration {
        let before = self.read_times();
        let start = Instant::now();
        work();
        let wall = start.elapsed();
        subtract_waits(wall, self.read_times() - before, self.thread_count())
    }

    fn thread_count(self) -> u32 {
        match self {
            Self::Thread => 1,
            Self::Process(threads) => u32::try_from(threads.get()).unwrap_or(u32::MAX),
        }
    }

    fn read_times(self) -> ThreadTimes {
        match self {
            Self::Thread => ThreadTimes {
                ran: clock::of_thread(),
                waited: thread_wait(Path::new("/proc/thread-self")),
            },
            Self::Process(_) => {
                let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
                ThreadTimes {
                    ran: clock::of_process(),
                    waited: threads.flatten().map(|it| thread_wait(&it.path())).sum(),
                }
            }
        }
    }
}

/// Subtracts from the wall time the threads' waits for a core, which were concurrent.
fn subtract_waits(wall: Duration, counted: ThreadTimes, threads: u32) -> Duration {
    let own = wall.saturating_sub(counted.waited / threads);
    own.max(counted.ran / threads).min(wall)
}

/// Returns the wait of one thread.
fn thread_wait(thread: &Path) -> Duration {
    let text = fs::read_to_string(thread.join("schedstat"));
    text.ok()
        .and_then(|text| parse_wait(&text))
        .unwrap_or_default()
}

/// Parses nanoseconds on a core, nanoseconds of wait and number of turns, and returns the second.
fn parse_wait(text: &str) -> Option<Duration> {
    let nanoseconds = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn counted(ran: u64, waited: u64) -> ThreadTimes {
        ThreadTimes {
            ran: ms(ran),
            waited: ms(waited),
        }
    }

    #[test]
    fn waiting_for_a_core_is_no_part_of_the_work() {
        assert_eq!(subtract_waits(ms(30), counted(10, 20), 1), ms(10));
        assert_eq!(subtract_waits(ms(10), counted(10, 0), 1), ms(10));
        // A device of its own at work while the thread sleeps.
        assert_eq!(subtract_waits(ms(30), counted(2, 1), 1), ms(29));
    }

    #[test]
    fn threads_wait_side_by_side() {
        assert_eq!(subtract_waits(ms(30), counted(20, 40), 2), ms(10));
        // One of them waited and the other for it.
        assert_eq!(subtract_waits(ms(30), counted(20, 20), 2), ms(20));
    }

    #[test]
    fn it_is_never_more_than_the_wall_nor_less_than_the_processors() {
        assert_eq!(subtract_waits(ms(10), counted(8, 100), 1), ms(8));
        assert_eq!(subtract_waits(ms(10), counted(100, 0), 2), ms(10));
        assert_eq!(subtract_waits(ms(10), ThreadTimes::default(), 2), ms(10));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn work_is_counted_though_it_ends_before_a_tick() {
        for whose in [
            CpuTimeScope::Thread,
            CpuTimeScope::Process(NonZeroUsize::MIN),
        ] {
            for _ in 0..8 {
                let before = whose.read_times();
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(100) {
                    std::hint::spin_loop();
                }
                assert!((whose.read_times() - before).ran > Duration::ZERO);
            }
        }
    }

    #[test]
    fn the_kernels_words_are_read() {
        assert_eq!(parse_wait("10000000 20000000 7\n"), Some(ms(20)));
        assert_eq!(parse_wait("not numbers"), None);
        assert_eq!(parse_wait(""), None);
    }
}
