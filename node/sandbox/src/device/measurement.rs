//! Measures a provider's CPU and stores the result in the provider's folder, to use it again after
//! restarts.
//!
//! A new measurement differs by a few per cent and can put the CPU in another class, where a
//! waiting bid does not find it. So the provider measures only if the machine, souk, or the offered
//! devices changed, once a day, and on request. It measures a device with a driver each time it
//! opens, and an emulated device never.

use std::num::NonZeroUsize;
use std::path::Path;

use serde::{Deserialize, Serialize};
use souk_folder::config::{self, ConfigError, DeviceChoice, FORMAT};
use souk_host::discover;
use souk_registry::measure;
use souk_vocabulary::profile::Profile;

use super::{
    DeviceError, device_profiles, flatten_choice, has_driver, open_devices, peak_share, threads_of,
};

/// The name of the file.
const MEASURED_FILE: &str = "measured.json";

/// The age from which a measurement is no longer used.
const AGE_SECONDS_MAX: u64 = 86_400;

/// The measurement of a provider's devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceMeasurement {
    /// [`FORMAT`] of the souk that wrote it.
    format: u32,
    /// The machine, the version of souk and the offered devices for which it is valid.
    of: String,
    /// The time of the measurement, in Unix seconds.
    pub at: u64,
    /// The profiles of the devices, in their order.
    pub profiles: Vec<Profile>,
    /// The share of the measured peak that mixed work gets.
    pub share: f64,
}

impl DeviceMeasurement {
    /// Reads the measurement from a provider's folder; returns none if it is no longer valid.
    #[must_use]
    pub fn read_valid(
        home: &Path,
        choice: &DeviceChoice,
        cores: Option<u32>,
        now_seconds: u64,
    ) -> Option<DeviceMeasurement> {
        let kept: DeviceMeasurement = config::read(&home.join(MEASURED_FILE)).ok()?;
        let age = now_seconds.checked_sub(kept.at)?;
        (kept.of == measurement_key(choice, cores) && age < AGE_SECONDS_MAX).then_some(kept)
    }

    /// Measures the devices, which can take up to two seconds each.
    ///
    /// # Errors
    /// When a device does not open.
    pub fn measure_devices(
        choice: &DeviceChoice,
        cores: Option<u32>,
        now_seconds: u64,
    ) -> Result<DeviceMeasurement, DeviceError> {
        let profiles = device_profiles(&open_devices(choice, cores)?);
        Ok(DeviceMeasurement {
            format: FORMAT,
            of: measurement_key(choice, cores),
            at: now_seconds,
            share: peak_share(choice, cores, &profiles),
            profiles,
        })
    }

    /// Returns the stored measurement if it is valid; otherwise measures and stores the result.
    ///
    /// # Errors
    /// When a device does not open.
    pub fn read_or_measure(
        home: &Path,
        choice: &DeviceChoice,
        cores: Option<u32>,
        now_seconds: u64,
    ) -> Result<DeviceMeasurement, DeviceError> {
        if let Some(kept) = DeviceMeasurement::read_valid(home, choice, cores, now_seconds) {
            return Ok(kept);
        }
        let measured = DeviceMeasurement::measure_devices(choice, cores, now_seconds)?;
        if let Err(error) = measured.store_measurement(home) {
            tracing::warn!(%error, "the measurement could not be stored for the next start");
        }
        Ok(measured)
    }

    /// Writes the measurement to a provider's folder.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn store_measurement(&self, home: &Path) -> Result<(), ConfigError> {
        config::write(&home.join(MEASURED_FILE), self)
    }
}

/// Returns whether measurements of these devices are stored: there is a CPU among them, and no
/// device with a driver.
#[must_use]
pub fn is_kept(choice: &DeviceChoice) -> bool {
    let mut each = Vec::new();
    flatten_choice(choice, &mut each);
    let is_cpu = |choice: &&DeviceChoice| {
        matches!(
            choice,
            DeviceChoice::Cpu { .. } | DeviceChoice::Exact { .. }
        )
    };
    !has_driver(choice) && each.iter().any(is_cpu)
}

/// Measures this many threads of this machine's CPU.
pub(super) fn measure_threads(threads: NonZeroUsize) -> Profile {
    let description = discover::describe_cpu();
    measure::cpu_profile(&description, &measure::measure_cpu(&description, threads))
}

fn measurement_key(choice: &DeviceChoice, cores: Option<u32>) -> String {
    let sold = serde_json::to_string(choice).expect("a choice has only named fields");
    let (machine, threads) = (discover::describe_cpu(), threads_of(0, cores));
    let version = env!("CARGO_PKG_VERSION");
    format!("souk {version}, {machine:?}, {sold} with {threads} threads at most")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICE: DeviceChoice = DeviceChoice::Cpu { threads: 1 };

    #[test]
    fn what_was_measured_is_kept_until_something_changes_or_a_day_is_over() {
        let home = tempfile::tempdir().unwrap();
        let known =
            |now| DeviceMeasurement::read_or_measure(home.path(), &CHOICE, None, now).unwrap();
        assert_eq!(known(1_000).at, 1_000);
        assert_eq!(known(1_000 + AGE_SECONDS_MAX - 1).at, 1_000);
        let kept = |choice: &DeviceChoice, cores, now| {
            DeviceMeasurement::read_valid(home.path(), choice, cores, now).is_some()
        };
        assert!(kept(&CHOICE, None, 1_001));
        assert!(!kept(&CHOICE, None, 999), "a clock that was ahead");
        assert!(!kept(&CHOICE, None, 1_000 + AGE_SECONDS_MAX));
        assert!(!kept(&DeviceChoice::Cpu { threads: 0 }, None, 1_001));
        std::fs::write(home.path().join(MEASURED_FILE), "{").unwrap();
        assert!(!kept(&CHOICE, None, 1_001), "damage is no figure");
        assert_eq!(known(2_000).at, 2_000);
    }

    #[test]
    fn only_a_cpu_without_drivers_beside_it_is_kept() {
        let emulated = DeviceChoice::new_emulated("nvidia-h100-sxm");
        let runtime = DeviceChoice::Onnxruntime {
            provider: "cpu".to_owned(),
        };
        let group = |other: &DeviceChoice| DeviceChoice::Group(vec![CHOICE, other.clone()]);
        assert!(is_kept(&CHOICE) && is_kept(&group(&emulated)));
        assert!(!is_kept(&emulated) && !is_kept(&group(&runtime)));
    }
}
