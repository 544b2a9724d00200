//! What lies between a device's memory and the host's, as far as it is known before anything was
//! measured.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_memory::paths::{Path, PathKind};

/// Generations of PCI Express: transfers a second and lane (10^9), each of one bit, and the part of
/// them that is not encoding. PCI-SIG's base specifications 1.0 to 6.0: 8 of 10 bits, from the
/// third generation on 128 of 130, in the sixth 242 of 256 bytes.
pub const PCIE: [(f64, f64); 6] = [
    (2.5, 8.0 / 10.0),
    (5.0, 8.0 / 10.0),
    (8.0, 128.0 / 130.0),
    (16.0, 128.0 / 130.0),
    (32.0, 128.0 / 130.0),
    (64.0, 242.0 / 256.0),
];
/// Time before the first byte of a copy that a driver is asked for, assumed until it is measured:
/// the order of magnitude of a driver's call and of the device's engine that copies.
const LATENCY: Duration = Duration::from_micros(10);
/// Bytes a second where nothing is known, assumed until it is measured: a copy by one core on any
/// machine of the last ten years.
const COPIED_PER_SECOND: f64 = 5e9;

/// PCI Express of so many lanes; of a generation that is not known, the last one that is.
#[must_use]
pub fn pcie(generation: u8, lanes: u8) -> Path {
    let index = usize::from(generation.max(1) - 1).min(PCIE.len() - 1);
    let (transfers, data) = PCIE[index];
    Path {
        kind: PathKind::Pcie { generation, lanes },
        latency: LATENCY,
        bytes_per_second: f64::from(lanes.max(1)) * transfers * 1e9 * data / 8.0,
    }
}

/// NVLink between cards of this compute capability, each way: half of what NVIDIA's data sheets
/// give for both ways of the V100 (300 GB/s), A100 (600), H100 (900) and B200 (1,800), which have a
/// card's links all lead to one other; others have the bridge of the A40 and RTX A6000 (112.5).
#[must_use]
pub fn nvlink(capability: (u8, u8)) -> Path {
    let both_ways = match capability {
        (7, 0) => 300e9,
        (8, 0) => 600e9,
        (9, _) => 900e9,
        (10, _) => 1800e9,
        _ => 112.5e9,
    };
    Path {
        kind: PathKind::NvLink,
        latency: LATENCY,
        bytes_per_second: both_ways / 2.0,
    }
}

/// A copy by the host, or a way of which nothing is known.
#[must_use]
pub fn copied() -> Path {
    Path {
        kind: PathKind::HostCopy,
        latency: LATENCY,
        bytes_per_second: COPIED_PER_SECOND,
    }
}

/// A way between two memories, timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Where it begins: `host`, or a device's name.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// What it runs over, as the device says.
    pub over: String,
    /// Bytes per second of a large copy, its latency taken off.
    pub bytes_per_second: f64,
    /// Seconds of a small copy.
    pub latency_seconds: f64,
    /// Whether a profile gave the time, not hardware.
    pub modelled: bool,
}
