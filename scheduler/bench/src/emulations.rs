//! Builds the pairs and mixes of emulated devices for the measurements: devices of the catalogue
//! whose real speed differs from their profile, as with real devices.

use std::num::NonZeroUsize;
use std::sync::Arc;

use souk_cpu::Cpu;
use souk_emulated::{EmulatedConfig, EmulatedDevice, Pace};
use souk_scheduler::execution::GroupDevice;
use souk_vocabulary::catalogue;

use super::{Mix, Pair};

/// An emulated device: its name, which must be in the catalogue, and its real speed relative to its
/// profile.
type Emulation = (&'static str, f64);

/// Pairs of emulated devices that share operators.
const PAIRS: [(&str, [Emulation; 2]); 4] = [
    (
        "two unlike GPUs",
        [("nvidia-h100-sxm", 0.7), ("amd-mi300x", 0.5)],
    ),
    ("GPU and CPU", [("nvidia-t4", 0.6), ("amd-epyc-9654", 0.6)]),
    (
        "phone",
        [("qualcomm-adreno-750", 0.5), ("qualcomm-kryo-8gen3", 0.9)],
    ),
    (
        "old and new GPU",
        [("nvidia-rtx-4090", 0.8), ("nvidia-rtx-3060", 1.1)],
    ),
];

/// Mixes of emulated devices.
const MIXES: [(&str, &[Emulation]); 3] = [
    (
        "H100 + TPU v5p + Groq + EPYC",
        &[
            ("nvidia-h100-sxm", 0.7),
            ("google-tpu-v5p", 0.6),
            ("groq-lpu-1", 0.9),
            ("amd-epyc-9654", 0.6),
        ],
    ),
    (
        "phone: Kryo + Adreno + Hexagon",
        &[
            ("qualcomm-kryo-8gen3", 0.9),
            ("qualcomm-adreno-750", 0.5),
            ("qualcomm-hexagon-8gen3", 0.7),
        ],
    ),
    (
        "two unlike GPUs",
        &[("nvidia-h100-sxm", 0.7), ("amd-mi300x", 0.5)],
    ),
];

/// Seed of the emulated devices' jitter, and the jitter's size.
const SEED: u64 = 7;
const JITTER: f64 = 0.01;

/// Threads that compute the results of emulated devices.
const THREADS: NonZeroUsize = NonZeroUsize::new(2).expect("two are more than none");

/// Returns every emulated pair.
#[must_use]
pub fn emulated_pairs() -> Vec<Pair> {
    let pair = |(name, emulations): (&str, [Emulation; 2])| Pair {
        name: name.to_owned(),
        members: build_emulated_devices(&emulations),
    };
    PAIRS.map(pair).into()
}

/// Returns every emulated mix.
#[must_use]
pub fn emulated_mixes() -> Vec<Mix> {
    let mix = |(name, emulations): (&str, &[Emulation])| Mix {
        name: name.to_owned(),
        members: build_emulated_devices(emulations),
    };
    MIXES.map(mix).into()
}

fn build_emulated_devices(emulations: &[Emulation]) -> Vec<GroupDevice> {
    let member = |(seed, &(name, speed)): (u64, &Emulation)| {
        let profile = catalogue::find_processor(name).expect("the catalogue has it");
        let cpu = Arc::new(Cpu::new(profile.clone(), THREADS));
        let config = EmulatedConfig {
            pace: Pace::Virtual,
            speed,
            jitter: JITTER,
            seed: SEED + seed,
            ..EmulatedConfig::default()
        };
        let device = EmulatedDevice::new(profile.clone(), cpu, config);
        GroupDevice {
            label: name.to_owned(),
            processor: Arc::new(device.expect("the configuration is in range")),
        }
    };
    (0..).zip(emulations).map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_has_every_device() {
        let pairs = emulated_pairs().into_iter().map(|pair| pair.members);
        let mixes = emulated_mixes().into_iter().map(|mix| mix.members);
        let mut all = pairs.chain(mixes).flatten();
        assert!(all.all(|member| member.processor.profile().emulated));
    }
}
