//! Counts what a provider's devices did over their lifetime. The provider adds each finished lease,
//! the metrics page and the command line show the sums, and the owner can reset them at any time.
//! The file in the provider's folder keeps them over restarts.
//!
//! The file is the only copy. Each writer must hold a lock, so that an owner's reset and a lease
//! that has just finished cannot overwrite each other. A damaged file is reset with a warning,
//! because no payment depends on it.

use std::fs::File;
use std::path::Path;

use serde::{Deserialize, Serialize};
use souk_folder::clock::unix_ms;
use souk_folder::config::{self, ConfigError, FORMAT};
use souk_scheduler::execution::report::Report;

/// The name of the file in a provider's folder.
const STATISTICS_FILE: &str = "statistics.json";

/// The lock that each writer of the file holds.
const LOCK_FILE: &str = "statistics.lock";

/// The most devices that are counted separately: enough for all that a provider sells over the
/// years. Others are not counted.
const DEVICES_MAX: usize = 64;

/// The work that a provider's devices have done since a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// [`FORMAT`] of the souk that wrote it.
    format: u32,
    /// The start of the count, in milliseconds since 1970.
    pub since_ms: u64,
    /// The number of finished leases.
    pub leases: u64,
    /// Bytes received over the network for them.
    pub received_bytes: u64,
    /// Bytes of tensors that they produced.
    pub made_bytes: u64,
    /// The sum of their reports. Its makespan is the sum of all leases' makespans.
    pub report: Report,
}

impl Statistics {
    /// Returns empty statistics that start now.
    pub(super) fn new(now_ms: u64) -> Statistics {
        Statistics {
            format: FORMAT,
            since_ms: now_ms,
            leases: 0,
            received_bytes: 0,
            made_bytes: 0,
            report: Report::default(),
        }
    }

    /// Reads a provider's statistics; returns none if nothing was counted yet.
    ///
    /// # Errors
    /// If the file is damaged or cannot be read.
    pub fn read(home: &Path) -> Result<Option<Statistics>, ConfigError> {
        match config::read(&home.join(STATISTICS_FILE)) {
            Ok(statistics) => Ok(Some(statistics)),
            Err(ConfigError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Resets the statistics and returns the count until now.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn reset(home: &Path, now_ms: u64) -> Result<Option<Statistics>, ConfigError> {
        let _lock = lock(home)?;
        // A file that cannot be read is replaced too.
        let before = Statistics::read(home).unwrap_or_default();
        config::write(&home.join(STATISTICS_FILE), &Statistics::new(now_ms))?;
        Ok(before)
    }

    /// Adds the work of a lease.
    fn add_lease(home: &Path, now_ms: u64, done: &DoneLease) -> Result<(), ConfigError> {
        let _lock = lock(home)?;
        let kept = Statistics::read(home).unwrap_or_else(|error| {
            tracing::warn!(%error, "the statistics could not be read; counting starts anew");
            None
        });
        let mut kept = kept.unwrap_or_else(|| Statistics::new(now_ms));
        kept.add(done);
        config::write(&home.join(STATISTICS_FILE), &kept)
    }

    fn add(&mut self, done: &DoneLease) {
        self.leases = self.leases.saturating_add(1);
        self.received_bytes = self.received_bytes.saturating_add(done.received_bytes);
        self.made_bytes = self.made_bytes.saturating_add(done.made_bytes);
        self.report.append_run(&done.report, DEVICES_MAX);
    }
}

/// The statistics of one lease.
pub(super) struct DoneLease {
    pub(super) received_bytes: u64,
    pub(super) made_bytes: u64,
    pub(super) report: Report,
}

/// Adds the work of a lease on a thread that can wait for the disk; the caller does not wait. A
/// failure does not affect the lease.
pub(super) fn count_aside(home: &Path, done: DoneLease) {
    let home = home.to_owned();
    tokio::task::spawn_blocking(move || {
        if let Err(error) = Statistics::add_lease(&home, unix_ms(), &done) {
            tracing::warn!(%error, "a lease could not be added to the statistics");
        }
    });
}

/// Waits for the lock, which other writers hold only for a short write.
fn lock(home: &Path) -> Result<File, ConfigError> {
    let path = home.join(LOCK_FILE);
    let opened = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|file| file.lock().map(|()| file));
    opened.map_err(|source| ConfigError::File { path, source })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use souk_scheduler::execution::report::DeviceReport;

    use super::*;

    fn lease(device: &str) -> DoneLease {
        let one = DeviceReport {
            tasks: 2,
            busy_micros: 30,
            transfer_micros: 7,
            ..DeviceReport::default()
        };
        DoneLease {
            received_bytes: 100,
            made_bytes: 10,
            report: Report {
                makespan_micros: 60,
                partitioned_tasks: 1,
                devices: BTreeMap::from([(device.to_owned(), one)]),
                ..Report::default()
            },
        }
    }

    #[test]
    fn leases_add_up_over_restarts_until_it_is_begun_anew() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(Statistics::read(home.path()).unwrap(), None);
        for name in ["cpu", "gpu", "cpu"] {
            Statistics::add_lease(home.path(), 5, &lease(name)).unwrap();
        }
        let before = Statistics::reset(home.path(), 9).unwrap().unwrap();
        assert_eq!((before.since_ms, before.leases), (5, 3));
        assert_eq!((before.received_bytes, before.made_bytes), (300, 30));
        let (report, cpu) = (&before.report, &before.report.devices["cpu"]);
        assert_eq!((report.makespan_micros, report.partitioned_tasks), (180, 3));
        assert_eq!(
            (cpu.tasks, cpu.busy_micros, cpu.transfer_micros),
            (4, 60, 14)
        );
        assert!((cpu.utilisation - 60.0 / 180.0).abs() < 1e-9);
        let after = Statistics::read(home.path()).unwrap().unwrap();
        assert_eq!(after, Statistics::new(9));
    }

    #[test]
    fn counts_of_many_at_once_are_all_there() {
        let home = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        Statistics::add_lease(home.path(), 5, &lease("cpu")).unwrap();
                    }
                });
            }
        });
        let all = Statistics::read(home.path()).unwrap().unwrap();
        assert_eq!((all.leases, all.report.devices["cpu"].tasks), (100, 200));
    }

    #[test]
    fn a_damaged_file_is_begun_anew_and_names_are_bounded() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(STATISTICS_FILE), "{").unwrap();
        assert!(Statistics::read(home.path()).is_err());
        for number in 0..=DEVICES_MAX {
            Statistics::add_lease(home.path(), 5, &lease(&number.to_string())).unwrap();
        }
        let all = Statistics::read(home.path()).unwrap().unwrap();
        assert_eq!(all.leases, DEVICES_MAX as u64 + 1);
        assert_eq!(all.report.devices.len(), DEVICES_MAX);
    }
}
