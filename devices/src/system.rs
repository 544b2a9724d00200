//! What Linux says about the machine: load, free memory, energy. Elsewhere all of it is absent.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

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

/// The energy counters of the processor packages (RAPL), where they can be read.
#[derive(Debug)]
pub struct Meter {
    packages: Vec<PathBuf>,
}

impl Meter {
    /// The counters of this machine; `None` where there are none or they may not be read.
    #[must_use]
    pub fn find() -> Option<Self> {
        Self::find_in(Path::new("/sys/class/powercap"))
    }

    fn find_in(folder: &Path) -> Option<Self> {
        let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
        let packages: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| is_package(path))
            .map(|path| path.join("energy_uj"))
            .filter(|counter| read_number(counter).is_some())
            .collect();
        (!packages.is_empty()).then_some(Self { packages })
    }

    /// Joules counted by all packages since an unknown start; a counter may wrap round.
    #[must_use]
    pub fn joules(&self) -> Option<f64> {
        let microjoules: Option<Vec<u64>> = self
            .packages
            .iter()
            .map(|counter| read_number(counter))
            .collect();
        Some(microjoules?.iter().sum::<u64>() as f64 / 1e6)
    }
}

/// Whether a power zone is a whole package (`intel-rapl:0`), not a part of one (`intel-rapl:0:0`).
fn is_package(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    name.starts_with("intel-rapl:") && name.matches(':').count() == 1
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_counted_and_their_parts_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for (zone, energy) in [
            ("intel-rapl:0", "1500000"),
            ("intel-rapl:0:0", "9"),
            ("x", "9"),
        ] {
            fs::create_dir(folder.path().join(zone)).unwrap();
            fs::write(folder.path().join(zone).join("energy_uj"), energy).unwrap();
        }
        assert_eq!(Meter::find_in(folder.path()).unwrap().joules(), Some(1.5));
    }

    #[test]
    fn a_machine_without_counters_has_no_meter() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Meter::find_in(folder.path()).is_none());
    }
}
