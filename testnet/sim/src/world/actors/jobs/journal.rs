//! Stores the facts from which a simulated buyer or provider continues after a crash, as lines with
//! a checksum on a simulated disk. Opening it cuts an incomplete last line.

use serde::Serialize;
use serde::de::DeserializeOwned;
use souk_consensus::Disk;

use crate::disk::SimDisk;

const NAME: &str = "journal";

/// A journal on a simulated disk.
pub struct Journal {
    pub disk: SimDisk,
    length: u64,
}

impl Journal {
    /// Opens the journal on a disk and returns it with its facts.
    pub fn open<F: DeserializeOwned>(mut disk: SimDisk) -> (Self, Vec<F>) {
        let bytes = disk.read(NAME).unwrap_or_default();
        let (mut facts, mut length) = (Vec::new(), 0_usize);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(fact) = read(line) else { break };
            facts.push(fact);
            length += line.len();
        }
        let length = length as u64;
        (Self { disk, length }, facts)
    }

    /// Appends facts, which will be safe after the next sync. Returns false if the disk refuses.
    pub fn write<F: Serialize>(&mut self, facts: &[F]) -> bool {
        let mut bytes = Vec::new();
        for fact in facts {
            let text = serde_json::to_vec(fact).expect("plain data in memory always encodes");
            let check = super::contents::hash_to_number(&text);
            bytes.extend(format!("{check:016x} ").bytes());
            bytes.extend(text);
            bytes.push(b'\n');
        }
        let written = self.disk.write(NAME, self.length, &bytes).is_ok();
        if written {
            self.length += bytes.len() as u64;
        }
        written
    }

    /// Syncs the journal and returns whether its facts are safe now.
    pub fn sync(&mut self) -> bool {
        self.disk.sync_file(NAME).is_ok() && self.disk.sync_names().is_ok()
    }
}

fn read<F: DeserializeOwned>(line: &[u8]) -> Option<F> {
    let (check, text) = line.strip_suffix(b"\n")?.split_at_checked(17)?;
    let check = std::str::from_utf8(check).ok()?.trim_end();
    let check = u64::from_str_radix(check, 16).ok()?;
    (super::contents::hash_to_number(text) == check).then(|| serde_json::from_slice(text).ok())?
}
