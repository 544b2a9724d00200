//! Reads the free memory and the load of a card, across all processes that use it, from the files
//! that its kernel driver offers in Linux. The context reads them only on request.

use std::fs;
use std::path::{Path, PathBuf};

/// A card's folder under `/sys/bus/pci/devices`.
pub(crate) struct SysfsCard {
    folder: PathBuf,
}

impl SysfsCard {
    /// Opens the card in this folder, if its driver reports the memory in use.
    pub fn open_folder(folder: &Path) -> Option<Self> {
        let live = Self {
            folder: folder.to_owned(),
        };
        live.free_bytes().map(|_| live)
    }

    fn read_number(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join(name)).ok()?;
        text.trim().parse().ok()
    }

    /// Returns the bytes of its memory that no process uses. Any process can take them afterwards.
    pub fn free_bytes(&self) -> Option<u64> {
        let used = self.read_number("mem_info_vram_used")?;
        Some(
            self.read_number("mem_info_vram_total")?
                .saturating_sub(used),
        )
    }

    /// Returns the part of recent time that the card worked, for all processes, 0 to 1.
    pub fn busy_fraction(&self) -> Option<f64> {
        let percent = self.read_number("gpu_busy_percent")?;
        Some((percent as f64 / 100.0).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_says_what_is_free_and_how_busy_it_is() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            SysfsCard::open_folder(folder.path()).is_none(),
            "a driver that says nothing"
        );
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("mem_info_vram_total", "8589934592\n");
        write("mem_info_vram_used", "1073741824\n");
        let live = SysfsCard::open_folder(folder.path()).unwrap();
        assert_eq!(live.free_bytes(), Some(7 << 30));
        assert_eq!(live.busy_fraction(), None);
        write("gpu_busy_percent", "37\n");
        assert_eq!(live.busy_fraction(), Some(0.37));
    }
}
