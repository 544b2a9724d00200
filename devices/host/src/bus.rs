//! Reads the speed of a PCI device's link from the files in which Linux describes the bus. The GPU
//! and CUDA backends ask for a card's link.

use std::fs;
use std::path::Path as Folder;

use souk_memory::paths::Path;
use souk_vocabulary::links::{PCIE, pcie_path};

/// Returns the link of the PCI device that Linux describes in this folder: the most that it and the
/// port above it can do (an idle card's link can be slower for the time), with the lanes it has.
pub fn pcie_at(folder: &Folder) -> Option<Path> {
    let own = fs::canonicalize(folder).ok()?;
    let mut generation = generation_at(&own)?;
    if let Some(above) = own.parent().and_then(generation_at) {
        generation = generation.min(above);
    }
    let lanes = fs::read_to_string(own.join("current_link_width")).ok()?;
    let lanes: u8 = lanes.trim().parse().ok()?;
    // A port without a link says 0, one whose driver does not know says 255.
    (1..=32)
        .contains(&lanes)
        .then(|| pcie_path(generation, lanes))
}

/// The generation whose rate a port states, such as `16.0 GT/s PCIe`.
fn generation_at(folder: &Folder) -> Option<u8> {
    let text = fs::read_to_string(folder.join("max_link_speed")).ok()?;
    let stated: f64 = text.split_whitespace().next()?.parse().ok()?;
    let rates = (1..).zip(PCIE);
    let mut fitting = rates.filter(|(_, (transfers, _))| *transfers == stated);
    fitting.next().map(|(generation, _)| generation)
}

#[cfg(test)]
mod tests {
    use souk_memory::paths::PathKind;

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
