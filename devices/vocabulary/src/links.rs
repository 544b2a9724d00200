//! States the speed that souk assumes for links between a device's memory and the host's or another
//! card's, before anything is measured. A measured [`Link`] should replace it as soon as there is
//! one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_memory::paths::{Path, PathKind};

/// PCI Express by generation: transfers per second and lane (10^9) of one bit each, and the part of
/// them that is data rather than encoding. From PCI-SIG's base specifications 1.0 to 6.0: 8 of 10
/// bits, from the third generation on 128 of 130, in the sixth 242 of 256 bytes.
pub const PCIE: [(f64, f64); 6] = [
    (2.5, 8.0 / 10.0),
    (5.0, 8.0 / 10.0),
    (8.0, 128.0 / 130.0),
    (16.0, 128.0 / 130.0),
    (32.0, 128.0 / 130.0),
    (64.0, 242.0 / 256.0),
];
/// Time before the first byte of a copy by a driver, assumed until it is measured: the order of
/// magnitude of a driver's call and of the device's copy engine.
const LATENCY: Duration = Duration::from_micros(10);
/// Bytes per second of an unknown link, assumed until it is measured: a copy by one core of any
/// machine of the last ten years.
const COPIED_PER_SECOND: f64 = 5e9;

/// Returns a PCI Express link with this many lanes; an unknown generation counts as the latest
/// known one.
#[must_use]
pub fn pcie_path(generation: u8, lanes: u8) -> Path {
    let index = usize::from(generation.max(1) - 1).min(PCIE.len() - 1);
    let (transfers, data) = PCIE[index];
    Path {
        kind: PathKind::Pcie { generation, lanes },
        latency: LATENCY,
        bytes_per_second: f64::from(lanes.max(1)) * transfers * 1e9 * data / 8.0,
    }
}

/// Returns NVLink between cards of this compute capability, each way. The rates are half of the
/// two-way rates in NVIDIA's data sheets for the V100 (300 GB/s), A100 (600), H100 (900) and B200
/// (1,800), where all links of a card lead to one other. Other cards have the bridge of the A40 and
/// RTX A6000 (112.5).
#[must_use]
pub fn nvlink_path(capability: (u8, u8)) -> Path {
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

/// Returns a copy by the host, which also stands for an unknown link.
#[must_use]
pub fn host_copy_path() -> Path {
    Path {
        kind: PathKind::HostCopy,
        latency: LATENCY,
        bytes_per_second: COPIED_PER_SECOND,
    }
}

/// A measured link between two memories.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Source: `host`, or a device's name.
    pub from: String,
    /// Destination: `host`, or a device's name.
    pub to: String,
    /// The kind of link, as the device reports it.
    pub over: String,
    /// Bytes per second of a large copy, without its latency.
    pub bytes_per_second: f64,
    /// Seconds that a small copy takes.
    pub latency_seconds: f64,
    /// Whether the time comes from a profile instead of hardware.
    pub modelled: bool,
}
