//! Stores the costs of work (such as how slow each kind of operation is) that a provider's devices
//! showed in past runs, as the planner's estimates for later ones. They survive leases and restarts
//! until the owner resets them.
//!
//! A separate process runs each lease. It begins with the costs that earlier processes learned, and
//! reports new ones. A report can only correct estimates: if a process lies, plans get worse until
//! other reports correct them.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use souk_folder::config::{self, ConfigError, FORMAT};
use souk_memory::ContentId;
use souk_scheduler::learning::{CostHistory, Measurement, slowness_of};
use souk_scheduler::planning::Slowness;
use souk_vocabulary::history::{History, Key, Record};

/// The name of the file in a provider's folder.
const COSTS_FILE: &str = "costs.json";
/// The name that a damaged file gets.
const DAMAGED_FILE: &str = "costs.damaged.json";
/// The file by which an owner asks a running provider to reset its costs.
const RESET_FILE: &str = "costs.reset";
/// How many of the last runs are kept for the owner to look at.
const RECENT_MAX: usize = 16;

/// The contents of the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct CostsFile {
    format: u32,
    costs: CostHistory,
    /// The device of the last ask and the speed that it stated. The next ask can differ from it by
    /// no more than one job can change.
    #[serde(default)]
    stated: Option<(String, StatedSpeed)>,
    /// The last runs that taught something, oldest first.
    #[serde(default)]
    recent: VecDeque<LearnedRun>,
}

/// The speed of a device, relative to its measured peak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatedSpeed {
    /// The share of the peak that the fastest kind of work gets.
    pub share: f64,
    /// How much longer products, convolutions and all other work take, in hundredths.
    pub slowness: [u16; 3],
}

/// A run from which the provider learned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnedRun {
    /// When the run ended, in milliseconds since 1970.
    pub at_ms: u64,
    /// The content id of the graph.
    pub graph: String,
    /// The name of the device, with its model.
    pub device: String,
    /// How long the run took, in seconds.
    pub seconds: f64,
    /// The ratio of the measured to the expected time.
    pub times: f64,
}

/// What a provider learned about one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LearnedDevice {
    /// The name of the device, with its model.
    pub device: String,
    /// How many times as long as its profile says the device takes for products, convolutions and
    /// all other work.
    pub slowness: [f64; 3],
    /// How many classes and sizes of operators have records of their own.
    pub operators: usize,
    /// Models whose work is not known before a run. Each is costed by its own runs, which affect
    /// nothing else.
    pub models: Vec<LearnedModel>,
}

/// What a provider learned about a model as a whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LearnedModel {
    /// The content id of its graph.
    pub graph: String,
    /// The number of runs.
    pub runs: u64,
    /// The mean time of a run, in seconds.
    pub seconds: f64,
}

/// Everything that a provider learned.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LearnedCosts {
    /// The learned costs of each device.
    pub devices: Vec<LearnedDevice>,
    /// The last runs that taught something, oldest first.
    pub recent: VecDeque<LearnedRun>,
}

/// The learned costs of a running provider.
#[derive(Debug)]
pub struct DeviceCosts {
    home: PathBuf,
    known: Mutex<CostsFile>,
    unsaved: AtomicBool,
}

impl LearnedCosts {
    /// Reads the costs from a provider's folder. Returns nothing if the file is damaged; the
    /// provider sets such a file aside when it starts.
    #[must_use]
    pub fn read(home: &Path) -> LearnedCosts {
        let file = config::read::<CostsFile>(&home.join(COSTS_FILE));
        let known = file.ok().filter(|kept| kept.costs.is_sound());
        known.map_or_else(LearnedCosts::default, |file| LearnedCosts {
            devices: devices_of(&file.costs),
            recent: file.recent,
        })
    }

    /// Asks a provider to forget its learned costs. A running one will do so within seconds, a
    /// stopped one when it starts.
    ///
    /// # Errors
    /// When the file system refuses to write to the folder.
    pub fn request_reset(home: &Path) -> io::Result<()> {
        std::fs::write(home.join(RESET_FILE), b"")
    }
}

fn devices_of(costs: &CostHistory) -> Vec<LearnedDevice> {
    let of = |(device, history): (&String, &History)| {
        let times = slowness_of(history);
        let records = history.records();
        let (models, operators): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|(key, _)| key.is_model());
        let model = |(key, record): (&Key, &Record)| LearnedModel {
            graph: key.class.clone(),
            runs: record.count,
            seconds: record.seconds.exp(),
        };
        LearnedDevice {
            device: device.clone(),
            slowness: [times.product, times.convolution, times.other],
            operators: operators.len(),
            models: models.into_iter().map(model).collect(),
        }
    };
    costs.devices().map(of).collect()
}

impl DeviceCosts {
    /// Opens the costs in a provider's folder.
    pub fn load_or_default(home: &Path) -> Arc<DeviceCosts> {
        let file = home.join(COSTS_FILE);
        let known = match config::read::<CostsFile>(&file) {
            Ok(kept) if kept.costs.is_sound() => kept,
            Err(ConfigError::Missing { .. }) => CostsFile::default(),
            Ok(_) => set_aside(&file, "it contradicts itself"),
            Err(error) => set_aside(&file, &error.to_string()),
        };
        let costs = DeviceCosts {
            home: home.to_owned(),
            known: Mutex::new(known),
            unsaved: AtomicBool::new(false),
        };
        costs.begin_anew_if_asked();
        Arc::new(costs)
    }

    /// Creates costs of which nothing is known and nothing is stored.
    #[cfg(target_os = "linux")]
    pub(crate) fn forgetful() -> Arc<DeviceCosts> {
        Arc::new(DeviceCosts {
            home: PathBuf::new(),
            known: Mutex::default(),
            unsaved: AtomicBool::new(false),
        })
    }

    /// Returns the current costs.
    pub(crate) fn current_costs(&self) -> CostHistory {
        self.lock_known().costs.clone()
    }

    /// Returns how many times as long as its profile says a device takes for each kind of work.
    pub fn slowness(&self, label: &str, model: &str) -> Slowness {
        self.lock_known().costs.slowness(label, model)
    }

    /// Returns the speed of a device that the last ask stated, in this run or an earlier one.
    pub fn stated_speed(&self, device: &str) -> Option<StatedSpeed> {
        let known = self.lock_known();
        let stated = known.stated.as_ref().filter(|(of, _)| of == device);
        stated.map(|(_, speed)| *speed)
    }

    /// Records the speed that an ask states now.
    pub fn set_stated_speed(&self, device: &str, speed: StatedSpeed) {
        self.lock_known().stated = Some((device.to_owned(), speed));
        self.unsaved.store(true, Ordering::Relaxed);
    }

    /// Learns from the measurements of a run of a graph.
    pub fn learn_measurements(&self, learned: &[Measurement], graph: &ContentId, at_ms: u64) {
        if learned.is_empty() {
            return;
        }
        let mut known = self.lock_known();
        for learned in learned {
            known.costs.record_measurement(learned);
            let parts = learned.measured.parts.iter();
            let expected: f64 = parts.map(|part| part.modelled * part.prior).sum();
            if known.recent.len() >= RECENT_MAX {
                known.recent.pop_front();
            }
            known.recent.push_back(LearnedRun {
                at_ms,
                graph: graph.to_string(),
                device: learned.device.clone(),
                seconds: learned.measured.seconds,
                times: learned.measured.seconds / expected.max(f64::MIN_POSITIVE),
            });
        }
        self.unsaved.store(true, Ordering::Relaxed);
    }

    /// Forgets everything if the owner asked for it, and returns whether.
    pub fn begin_anew_if_asked(&self) -> bool {
        let asked = self.home.join(RESET_FILE);
        if !asked.exists() {
            return false;
        }
        *self.lock_known() = CostsFile::default();
        self.unsaved.store(true, Ordering::Relaxed);
        self.save();
        if let Err(error) = std::fs::remove_file(&asked) {
            tracing::warn!(%error, ?asked, "the reset request could not be removed");
        }
        true
    }

    /// Writes the file if something changed. You should call it where the thread can wait for a
    /// disk.
    pub fn save(&self) {
        if !self.unsaved.swap(false, Ordering::Relaxed) {
            return;
        }
        let file = CostsFile {
            format: FORMAT,
            ..self.lock_known().clone()
        };
        if let Err(error) = config::write(&self.home.join(COSTS_FILE), &file) {
            tracing::warn!(%error, "the devices' costs could not be written");
        }
    }

    fn lock_known(&self) -> MutexGuard<'_, CostsFile> {
        // A panic cannot leave a change half done under this lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DeviceCosts {
    fn drop(&mut self) {
        self.save();
    }
}

/// Renames a damaged file, so that its owner can inspect it, and returns empty costs.
fn set_aside(file: &Path, why: &str) -> CostsFile {
    let aside = file.with_file_name(DAMAGED_FILE);
    let kept = std::fs::rename(file, &aside).is_ok();
    tracing::warn!(
        ?file,
        why,
        ?aside,
        kept,
        "the file of the devices' costs is damaged; learning the costs anew"
    );
    CostsFile::default()
}

#[cfg(test)]
mod tests {
    use souk_onnx::work::Work;
    use souk_vocabulary::history::{JointMeasurement, Part};

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
            key: Key::for_work("Conv", "3x3/1", &work),
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

    const GRAPH: ContentId = ContentId::from_bytes([7; 32]);

    #[test]
    fn who_asks_for_it_has_all_of_it_forgotten_at_work_or_at_the_next_start() {
        let home = tempfile::tempdir().unwrap();
        let seen = DeviceCosts::load_or_default(home.path());
        let stated = StatedSpeed {
            share: 0.5,
            slowness: [0, 10, 0],
        };
        let teach = || {
            seen.learn_measurements(&[learned("one")], &GRAPH, 5);
            seen.set_stated_speed("one", stated);
            seen.save();
        };
        teach();
        let shown = LearnedCosts::read(home.path());
        assert_eq!(shown.devices[0].device, "one");
        // One run weighs a little less than all.
        assert!((shown.devices[0].slowness[1] - 5.0).abs() < 0.25);
        assert_eq!((shown.recent[0].at_ms, shown.recent[0].times), (5, 5.0));
        assert!(!seen.begin_anew_if_asked(), "nobody asked");
        LearnedCosts::request_reset(home.path()).unwrap();
        assert!(seen.begin_anew_if_asked());
        assert_eq!(
            (seen.current_costs(), seen.stated_speed("one")),
            (CostHistory::default(), None)
        );
        assert_eq!(LearnedCosts::read(home.path()), LearnedCosts::default());
        teach();
        LearnedCosts::request_reset(home.path()).unwrap();
        let next = DeviceCosts::load_or_default(home.path());
        assert_eq!(
            (next.current_costs(), next.stated_speed("one")),
            (CostHistory::default(), None)
        );
        assert!(!next.begin_anew_if_asked(), "once");
    }

    #[test]
    fn what_was_learned_is_there_after_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let seen = DeviceCosts::load_or_default(home.path());
        assert_eq!(seen.current_costs(), CostHistory::default());
        seen.learn_measurements(&[learned("one"), learned("two")], &GRAPH, 5);
        let known = seen.current_costs();
        assert!(known.history_for("one").is_some() && known.history_for("three").is_none());
        drop(seen);
        assert_eq!(
            DeviceCosts::load_or_default(home.path()).current_costs(),
            known
        );
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        let home = tempfile::tempdir().unwrap();
        let seen = DeviceCosts::load_or_default(home.path());
        seen.learn_measurements(&[learned("one")], &GRAPH, 5);
        drop(seen);
        let file = home.path().join(COSTS_FILE);
        let right = std::fs::read_to_string(&file).unwrap();
        let absurd = right.replacen("\"mean\": 1", "\"mean\": 1e9, \"was\": 1", 1);
        assert_ne!(absurd, right);
        for damaged in [&right[..right.len() / 2], "{}", absurd.as_str()] {
            std::fs::write(&file, damaged).unwrap();
            let seen = DeviceCosts::load_or_default(home.path());
            assert_eq!(seen.current_costs(), CostHistory::default());
            assert!(!file.exists(), "it is not read again");
            let aside = std::fs::read_to_string(home.path().join(DAMAGED_FILE)).unwrap();
            assert_eq!(aside, damaged);
        }
    }
}
