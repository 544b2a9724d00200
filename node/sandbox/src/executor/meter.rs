//! Measures the CPU energy of runs in sandboxes, which cannot read a meter themselves.
//!
//! The counters of the processor's packages cover the whole machine. This module divides their
//! joules among the runs in progress by the core time of their processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use souk_host::power::Meter;
use souk_scheduler::execution::report::{Report, ReportedEnergy};

use crate::executor::LeaseExecutor;

/// The folder in which Linux shows processes.
const PROCESSES: &str = "/proc";

/// The counters of this machine, and the runs at work.
pub struct Energy {
    meter: Option<Meter>,
    /// Returns the nanoseconds of core time of a process.
    time_of: fn(u32) -> u64,
    shares: Mutex<Shares>,
}

/// The counted joules, divided among runs.
#[derive(Default)]
struct Shares {
    /// The joules that the counters showed last.
    counted: f64,
    /// How many runs began so far.
    begun: u64,
    at_work: BTreeMap<u64, Share>,
}

/// The share of one run since it began.
struct Share {
    process: u32,
    nanoseconds: u64,
    joules: f64,
}

/// A run in a process, until this is dropped. The time of a process with several runs of a stream
/// is divided equally among them.
pub struct RunMeter<'a> {
    energy: &'a Energy,
    run: u64,
}

impl Energy {
    /// Finds the counters of this machine; there can be none that this process can read.
    pub fn find_meter() -> Self {
        Self::from_meter(Meter::for_machine(), |process| {
            time_in(Path::new(PROCESSES), process)
        })
    }

    fn from_meter(meter: Option<Meter>, time_of: fn(u32) -> u64) -> Self {
        Self {
            meter,
            time_of,
            shares: Mutex::default(),
        }
    }

    /// Records that the process of a lease begins a run. Returns none if there is no counter, or if
    /// the lease has no process of its own.
    pub fn begin_run(&self, slots: &LeaseExecutor) -> Option<RunMeter<'_>> {
        self.begin_of(slots.process_id()?)
    }

    fn begin_of(&self, process: u32) -> Option<RunMeter<'_>> {
        let mut shares = self.update_shares()?;
        let share = Share {
            process,
            nanoseconds: (self.time_of)(process),
            joules: 0.0,
        };
        shares.begun += 1;
        let run = shares.begun;
        shares.at_work.insert(run, share);
        Some(RunMeter { energy: self, run })
    }

    /// Updates the shares to the present and returns them; none if there is no counter.
    fn update_shares(&self) -> Option<MutexGuard<'_, Shares>> {
        let counted = self.meter.as_ref()?.energy_joules()?;
        let shares = self.shares.lock();
        let mut shares = shares.unwrap_or_else(PoisonError::into_inner);
        shares.distribute_joules(counted, self.time_of);
        Some(shares)
    }
}

impl Shares {
    fn distribute_joules(&mut self, counted: f64, time_of: fn(u32) -> u64) {
        let joules = (counted - self.counted).max(0.0);
        self.counted = counted;
        let mut runs: BTreeMap<u32, f64> = BTreeMap::new();
        for share in self.at_work.values() {
            *runs.entry(share.process).or_default() += 1.0;
        }
        let worked = |share: &mut Share| {
            let before = std::mem::replace(&mut share.nanoseconds, time_of(share.process));
            // The sum excludes threads that have ended.
            share.nanoseconds.saturating_sub(before) as f64 / runs[&share.process]
        };
        let worked: Vec<f64> = self.at_work.values_mut().map(worked).collect();
        let (all, count) = (worked.iter().sum::<f64>(), worked.len() as f64);
        for (share, worked) in self.at_work.values_mut().zip(worked) {
            let part = if all > 0.0 { worked / all } else { 1.0 / count };
            share.joules += joules * part;
        }
    }
}

impl RunMeter<'_> {
    /// Writes the joules of the CPU since the run began into the run's report.
    pub fn write(self, report: &mut Report) {
        let Some(shares) = self.energy.update_shares() else {
            return;
        };
        let own = shares.at_work.get(&self.run);
        let measured_joules = own.map_or(0.0, |share| share.joules);
        drop(shares);
        let mut devices = report.devices.values_mut();
        if let Some(cpu) = devices.find(|device| device.kind == "cpu" && !device.emulated) {
            cpu.energy = Some(ReportedEnergy {
                measured_joules,
                modelled_joules: 0.0,
            });
        }
    }
}

impl Drop for RunMeter<'_> {
    fn drop(&mut self) {
        let passed = self.energy.update_shares();
        let shares = || self.energy.shares.lock();
        let mut shares = passed.unwrap_or_else(|| shares().unwrap_or_else(PoisonError::into_inner));
        shares.at_work.remove(&self.run);
    }
}

/// Returns the nanoseconds of core time of a process's threads; 0 if the system does not show it.
fn time_in(processes: &Path, process: u32) -> u64 {
    let threads = fs::read_dir(processes.join(format!("{process}/task")));
    let threads = threads.into_iter().flatten().filter_map(Result::ok);
    let time = |text: String| text.split_whitespace().next()?.parse::<u64>().ok();
    let each = threads.filter_map(|thread| {
        let shown = fs::read_to_string(thread.path().join("schedstat"));
        shown.ok().and_then(time)
    });
    each.sum()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use souk_scheduler::execution::report::DeviceReport;

    use super::*;

    /// The nanoseconds of processes are their own numbers times the joules counted.
    fn counter(joules: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let zone = folder.path().join("intel-rapl:0");
        fs::create_dir(&zone).unwrap();
        let file = zone.join("energy_uj");
        fs::write(&file, format!("{joules}000000")).unwrap();
        (folder, file)
    }

    fn report() -> Report {
        let device = |kind: &str, emulated| DeviceReport {
            kind: kind.to_owned(),
            emulated,
            ..DeviceReport::default()
        };
        let devices = [("a", "gpu", false), ("b", "cpu", true), ("c", "cpu", false)];
        let devices = devices.map(|(name, kind, it)| (name.to_owned(), device(kind, it)));
        Report {
            devices: BTreeMap::from(devices),
            ..Report::default()
        }
    }

    /// Joules of the machine's CPU in the report of a run, and of nothing else.
    fn written(at_work: RunMeter<'_>) -> Option<f64> {
        let mut report = report();
        at_work.write(&mut report);
        let other = ["a", "b"].map(|name| report.devices[name].energy);
        assert_eq!(
            other, [None; 2],
            "neither another device nor an emulated one"
        );
        let energy = report.devices["c"].energy;
        energy.map(|energy| energy.measured_joules)
    }

    #[test]
    fn leases_at_work_share_what_is_counted_by_their_time_on_the_cores() {
        use std::sync::atomic::{AtomicU64, Ordering};
        /// What both have computed, in these tests' own unit.
        static PASSED: AtomicU64 = AtomicU64::new(0);
        let time_of = |process: u32| u64::from(process) * PASSED.load(Ordering::SeqCst);
        let (folder, file) = counter(100);
        let energy = Energy::from_meter(Meter::find_in(folder.path()), time_of);
        let count = |joules: u64| {
            fs::write(&file, format!("{joules}000000")).unwrap();
            PASSED.fetch_add(1, Ordering::SeqCst);
        };
        let one = energy.begin_of(1).unwrap();
        count(110);
        let three = energy.begin_of(3).unwrap();
        count(118);
        assert_eq!(written(one), Some(12.0), "10 alone and a quarter of 8");
        count(120);
        assert_eq!(
            written(three),
            Some(8.0),
            "three quarters of 8, then 2 alone"
        );
        count(900);
        let later = energy.begin_of(1).unwrap();
        assert_eq!(
            written(later),
            Some(0.0),
            "nobody is charged for the time between"
        );
    }

    #[test]
    fn a_process_at_several_runs_counts_once() {
        use std::sync::atomic::{AtomicU64, Ordering};
        static PASSED: AtomicU64 = AtomicU64::new(0);
        let (folder, file) = counter(1);
        let energy = Energy::from_meter(Meter::find_in(folder.path()), |_| {
            PASSED.load(Ordering::SeqCst)
        });
        let runs = [7, 7, 8].map(|process| energy.begin_of(process).unwrap());
        fs::write(&file, "9000000").unwrap();
        PASSED.store(1_000, Ordering::SeqCst);
        assert_eq!(runs.map(written), [Some(2.0), Some(2.0), Some(4.0)]);
    }

    #[test]
    fn who_shows_no_time_shares_alike() {
        let (folder, file) = counter(1);
        let energy = Energy::from_meter(Meter::find_in(folder.path()), |_| 0);
        let both = [1, 2].map(|process| energy.begin_of(process).unwrap());
        fs::write(&file, "5000000").unwrap();
        assert_eq!(both.map(written), [Some(2.0); 2]);
    }

    #[test]
    fn without_a_counter_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let absent = Energy::from_meter(Meter::find_in(folder.path()), |_| 0);
        assert!(absent.begin_of(1).is_none());
        let (folder, file) = counter(1);
        let energy = Energy::from_meter(Meter::find_in(folder.path()), |_| 0);
        let at_work = energy.begin_of(1).unwrap();
        fs::remove_file(file).unwrap();
        assert_eq!(written(at_work), None, "it was taken away meanwhile");
    }

    #[test]
    fn the_time_of_a_process_is_that_of_its_threads() {
        let folder = tempfile::tempdir().unwrap();
        for (thread, shown) in [("7", "1500 20 3\n"), ("8", "500 1 1\n"), ("9", "")] {
            let thread = folder.path().join("7/task").join(thread);
            fs::create_dir_all(&thread).unwrap();
            fs::write(thread.join("schedstat"), shown).unwrap();
        }
        assert_eq!(time_in(folder.path(), 7), 2000);
        assert_eq!(time_in(folder.path(), 8), 0);
    }
}
