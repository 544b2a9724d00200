//! Turns the settings of an emulated device, as a provider's file states them, into the
//! configuration of its emulation.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;

use souk_cpu::Cpu;
use souk_emulated::EmulatedConfig;
use souk_folder::config::EmulationSettings;
use souk_vocabulary::profile::Profile;

/// Returns the configuration of the emulation, with defaults for omitted values.
pub(super) fn emulation_config(settings: &EmulationSettings) -> EmulatedConfig {
    let usual = EmulatedConfig::default();
    EmulatedConfig {
        pace: usual.pace,
        speed: settings.speed.unwrap_or(usual.speed),
        jitter: settings.jitter.unwrap_or(usual.jitter),
        failures: settings.failures.unwrap_or(usual.failures),
        seed: settings.seed.unwrap_or_else(draw_seed),
    }
}

/// Opens the CPU that computes the results of an emulated device.
pub(super) fn open_computing_cpu(
    settings: &EmulationSettings,
    profile: &Profile,
    threads: NonZeroUsize,
) -> Cpu {
    match settings.exact {
        true => Cpu::new_exact(profile.clone(), threads),
        false => Cpu::new(profile.clone(), threads),
    }
}

/// Draws a seed, a new one each time.
fn draw_seed() -> u64 {
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_device_is_as_its_profile_says_unless_the_file_does() {
        let EmulatedConfig {
            speed,
            jitter,
            failures,
            ..
        } = emulation_config(&EmulationSettings::default());
        assert_eq!((speed, jitter, failures), (1.0, 0.0, 0.0));
        let stated = EmulationSettings {
            speed: Some(0.5),
            failures: Some(0.25),
            seed: Some(7),
            ..EmulationSettings::default()
        };
        assert_eq!(
            emulation_config(&stated),
            EmulatedConfig {
                speed: 0.5,
                failures: 0.25,
                seed: 7,
                ..EmulatedConfig::default()
            }
        );
    }
}
