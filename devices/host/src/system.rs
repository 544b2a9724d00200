//! Reads from Linux how much memory is free, how much time processes used, and how loaded the
//! machine is. On other systems these readings are absent.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Returns the number of cores that this process may use.
#[must_use]
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

/// Returns the bytes of memory that programs can still allocate without swap.
#[must_use]
pub fn memory_free_bytes() -> Option<u64> {
    memory_field("MemAvailable:")
}

/// Returns the bytes of memory of this machine.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    memory_field("MemTotal:")
}

/// Returns the peak of this process's memory, in bytes.
#[must_use]
pub fn memory_peak_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Restarts the peak of [`memory_peak_bytes`] at the present use of memory, if the system can.
pub fn memory_peak_restart() {
    // 5 means the peak of resident memory; a system without it keeps the old peak.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn memory_field(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The processor time and the start time of a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessTimes {
    /// Processor time of all its threads, in the program and in the kernel.
    pub computed: Duration,
    /// From the machine's start to its own.
    pub begun: Duration,
}

/// Returns the times of the process with this id, or of this process.
#[must_use]
pub fn process_times(process: Option<u32>) -> Option<ProcessTimes> {
    /// Ticks in a second, as Linux counts the time of processes on every architecture.
    const TICKS: u32 = 100;
    let name = process.map_or_else(|| "self".to_owned(), |process| process.to_string());
    let stat = fs::read_to_string(format!("/proc/{name}/stat")).ok()?;
    // The program's name can contain anything, spaces and brackets too.
    let (_, rest) = stat.rsplit_once(") ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let time = |place: usize| {
        let ticks: f64 = words.get(place)?.parse().ok()?;
        Duration::try_from_secs_f64(ticks / f64::from(TICKS)).ok()
    };
    Some(ProcessTimes {
        computed: time(11)?.saturating_add(time(12)?),
        begun: time(19)?,
    })
}

/// Follows the load of all cores: the busy part since the last reading. Each reader should have its
/// own, because a reading begins the next interval.
#[derive(Debug, Default)]
pub struct Load {
    last: Mutex<Ticks>,
}

/// Clock ticks of all cores since the machine started.
#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    busy: u64,
    all: u64,
}

impl Load {
    /// Returns the busy part of the cores' time, 0 to 1, since the last call, or at the first call
    /// since the machine started; 0 where the system does not say.
    pub fn utilisation(&self) -> f64 {
        let Some(now) = read_ticks() else { return 0.0 };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let all = now.all.saturating_sub(last.all);
        let busy = now.busy.saturating_sub(last.busy);
        *last = now;
        if all == 0 {
            0.0
        } else {
            busy as f64 / all as f64
        }
    }
}

fn read_ticks() -> Option<Ticks> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields = text.lines().next()?.split_whitespace().skip(1);
    let fields: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guests are part of user.
    let all = fields.iter().take(8).sum();
    let idle: u64 = fields.get(3..5)?.iter().sum();
    Some(Ticks {
        busy: all - idle,
        all,
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_computes_is_counted_from_its_start() {
        let before = process_times(None).unwrap();
        assert!(before.begun > Duration::ZERO);
        let own = || process_times(Some(std::process::id())).unwrap();
        while own().computed == before.computed {
            std::hint::spin_loop();
        }
        assert!(own().computed > before.computed);
        assert_eq!(process_times(Some(u32::MAX)).map(|it| it.begun), None);
    }
}
