//! What lies between a device's memory and the host's, as far as it is known before anything was
//! measured.

use std::fs;
use std::path::Path as Folder;
use std::time::Duration;

use souk_memory::paths::{Path, PathKind};

/// Generations of PCI Express: transfers a second and lane (10^9), each of one bit, and the part of
/// them that is not encoding. PCI-SIG's base specifications 1.0 to 6.0: 8 of 10 bits, from the
/// third generation on 128 of 130, in the sixth 242 of 256 bytes.
const PCIE: [(f64, f64); 6] = [
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
pub(crate) fn pcie(generation: u8, lanes: u8) -> Path {
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
#[cfg(feature = "cuda")]
pub(crate) fn nvlink(capability: (u8, u8)) -> Path {
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

/// The link of a PCI device that Linux describes in this folder: the most that it and the port
/// above it do (an idle card's is slower for the time), with the lanes it has.
pub(crate) fn pcie_at(folder: &Folder) -> Option<Path> {
    let own = fs::canonicalize(folder).ok()?;
    let mut generation = generation_at(&own)?;
    if let Some(above) = own.parent().and_then(generation_at) {
        generation = generation.min(above);
    }
    let lanes = fs::read_to_string(own.join("current_link_width")).ok()?;
    let lanes: u8 = lanes.trim().parse().ok()?;
    // A port without a link says 0, one whose driver does not know says 255.
    (1..=32).contains(&lanes).then(|| pcie(generation, lanes))
}

/// The generation whose rate a port states, such as `16.0 GT/s PCIe`.
fn generation_at(folder: &Folder) -> Option<u8> {
    let text = fs::read_to_string(folder.join("max_link_speed")).ok()?;
    let stated: f64 = text.split_whitespace().next()?.parse().ok()?;
    let rates = (1..).zip(PCIE);
    let mut fitting = rates.filter(|(_, (transfers, _))| *transfers == stated);
    fitting.next().map(|(generation, _)| generation)
}

/// A copy by the host, or a way of which nothing is known.
pub(crate) fn copied() -> Path {
    Path {
        kind: PathKind::HostCopy,
        latency: LATENCY,
        bytes_per_second: COPIED_PER_SECOND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(folder: &Folder, speed: &str, lanes: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("max_link_speed"), speed).unwrap();
        fs::write(folder.join("current_link_width"), lanes).unwrap();
    }

    #[test]
    fn a_link_is_as_fast_as_its_slower_end() {
        let bus = tempfile::tempdir().unwrap();
        let card = bus.path().join("above/card");
        port(&bus.path().join("above"), "16.0 GT/s PCIe\n", "16\n");
        port(&card, "32.0 GT/s PCIe\n", "8\n");
        let link = pcie_at(&card).unwrap();
        let (generation, lanes) = (4, 8);
        assert_eq!(link.kind, PathKind::Pcie { generation, lanes });
        assert!((link.bytes_per_second / 15.754e9 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn what_a_port_does_not_say_is_not_known() {
        let bus = tempfile::tempdir().unwrap();
        let card = bus.path().join("card");
        assert!(pcie_at(&card).is_none(), "no such device");
        port(&card, "Unknown\n", "255\n");
        assert!(pcie_at(&card).is_none());
        port(&card, "8.0 GT/s PCIe\n", "0\n");
        assert!(pcie_at(&card).is_none(), "no link");
        port(&card, "8.0 GT/s PCIe\n", "16\n");
        let (generation, lanes) = (3, 16);
        let kind = PathKind::Pcie { generation, lanes };
        assert_eq!(pcie_at(&card).unwrap().kind, kind);
    }
}
