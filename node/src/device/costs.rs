//! What the devices of a provider were seen to take, kept over leases and restarts.
//!
//! Each lease is run by a process of its own, which begins with what the ones before it learned and
//! says what it learned itself. What a process says corrects estimates and nothing else: one that
//! lies makes plans worse until others put it right.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use souk_scheduler::learning::{CostHistory, Measurement};
use souk_scheduler::planning::Slowness;

use crate::folder::config::{self, ConfigError, FORMAT};

/// The name of the file in a provider's folder.
const COSTS_FILE: &str = "costs.json";
/// What a damaged one is called from then on.
const DAMAGED_FILE: &str = "costs.damaged.json";

/// What the file holds.
#[derive(Serialize, Deserialize)]
struct CostsFile {
    format: u32,
    costs: CostHistory,
}

/// What is known of a provider's devices.
#[derive(Debug)]
pub(crate) struct DeviceCosts {
    file: PathBuf,
    known: Mutex<CostHistory>,
    unsaved: AtomicBool,
}

impl DeviceCosts {
    /// What is remembered in a provider's folder.
    pub(crate) fn open(home: &Path) -> Arc<DeviceCosts> {
        let file = home.join(COSTS_FILE);
        let known = match config::read::<CostsFile>(&file) {
            Ok(kept) if kept.costs.is_sound() => kept.costs,
            Err(ConfigError::Missing { .. }) => CostHistory::default(),
            Ok(_) => set_aside(&file, "it contradicts itself"),
            Err(error) => set_aside(&file, &error.to_string()),
        };
        Arc::new(DeviceCosts {
            file,
            known: Mutex::new(known),
            unsaved: AtomicBool::new(false),
        })
    }

    /// What is known now.
    pub(crate) fn costs(&self) -> CostHistory {
        self.known().clone()
    }

    /// How many times as long as by its profile a device takes for kinds of work.
    pub(crate) fn slowness(&self, label: &str, model: &str) -> Slowness {
        self.known().slowness(label, model)
    }

    /// Takes in what a run told.
    pub(crate) fn learn(&self, learned: &[Measurement]) {
        if learned.is_empty() {
            return;
        }
        let mut known = self.known();
        learned.iter().for_each(|learned| known.learn(learned));
        self.unsaved.store(true, Ordering::Relaxed);
    }

    /// Writes the file if there is news; called where a disk may be waited for.
    pub(crate) fn save(&self) {
        if !self.unsaved.swap(false, Ordering::Relaxed) {
            return;
        }
        let file = CostsFile {
            format: FORMAT,
            costs: self.costs(),
        };
        if let Err(error) = config::write(&self.file, &file) {
            tracing::warn!(%error, "what the devices take is not kept");
        }
    }

    fn known(&self) -> MutexGuard<'_, CostHistory> {
        // What is learned is whole or not there when anything can panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DeviceCosts {
    fn drop(&mut self) {
        self.save();
    }
}

/// A file that says nothing of use gets another name, so that whoever wants to can look at it.
fn set_aside(file: &Path, why: &str) -> CostHistory {
    let aside = file.with_file_name(DAMAGED_FILE);
    let kept = std::fs::rename(file, &aside).is_ok();
    tracing::warn!(
        ?file,
        why,
        ?aside,
        kept,
        "what the devices take is learned anew"
    );
    CostHistory::default()
}

#[cfg(test)]
mod tests {
    use souk_onnx::work::Work;
    use souk_vocabulary::history::{JointMeasurement, Key, Part};

    use super::*;

    /// Half a second for what a profile puts at a tenth.
    fn learned(device: &str) -> Measurement {
        let work = Work {
            operations: 1 << 20,
            bytes_read: 1 << 12,
            bytes_written: 1 << 12,
            launches: 1,
            dtype: Some(souk_memory::DType::F32),
        };
        let part = Part {
            key: Key::of("Conv", "3x3/1", &work),
            count: 1,
            modelled: 0.1,
            prior: 1.0,
        };
        let measured = JointMeasurement {
            parts: vec![part],
            seconds: 0.5,
            joules: Some(3.0),
        };
        Measurement {
            device: device.to_owned(),
            measured,
        }
    }

    #[test]
    fn what_was_learned_is_there_after_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let seen = DeviceCosts::open(home.path());
        assert_eq!(seen.costs(), CostHistory::default());
        seen.learn(&[learned("one"), learned("two")]);
        let known = seen.costs();
        assert!(known.of("one").is_some() && known.of("three").is_none());
        drop(seen);
        assert_eq!(DeviceCosts::open(home.path()).costs(), known);
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        let home = tempfile::tempdir().unwrap();
        let seen = DeviceCosts::open(home.path());
        seen.learn(&[learned("one")]);
        drop(seen);
        let file = home.path().join(COSTS_FILE);
        let right = std::fs::read_to_string(&file).unwrap();
        let absurd = right.replacen("\"mean\": 1", "\"mean\": 1e9, \"was\": 1", 1);
        assert_ne!(absurd, right);
        for damaged in [&right[..right.len() / 2], "{}", absurd.as_str()] {
            std::fs::write(&file, damaged).unwrap();
            let seen = DeviceCosts::open(home.path());
            assert_eq!(seen.costs(), CostHistory::default());
            assert!(!file.exists(), "it is not read again");
            let aside = std::fs::read_to_string(home.path().join(DAMAGED_FILE)).unwrap();
            assert_eq!(aside, damaged);
        }
    }
}
