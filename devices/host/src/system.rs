//! What Linux says about the machine: load and free memory. Elsewhere all of it is absent.

use std::fs;
use std::sync::{Mutex, PoisonError};

/// Cores that this process may compute on.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

/// Bytes of memory a program could still take, swap left aside.
#[must_use]
pub fn memory_free_bytes() -> Option<u64> {
    memory_field("MemAvailable:")
}

/// Bytes of memory the machine has.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    memory_field("MemTotal:")
}

/// Most bytes of memory this process had so far.
#[must_use]
pub fn memory_peak_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Lets [`memory_peak_bytes`] count from now on, where the system can: before, something else may
/// have had more.
pub fn memory_peak_restart() {
    // 5 stands for the peak of resident memory; a system without it keeps the old peak.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn memory_field(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Follows the load of all cores: what was busy since it was last asked.
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
    /// The part of the cores' time spent busy since the last call (since start at the first),
    /// 0 to 1; 0 where the system does not say.
    pub fn utilisation(&self) -> f64 {
        let Some(now) = ticks() else { return 0.0 };
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

fn ticks() -> Option<Ticks> {
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
