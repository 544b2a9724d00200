//! Stores the measured costs of devices from run to run, as a [`CostHistory`] that a node can write
//! to a file and load again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use souk_onnx::NodeProto;
use souk_vocabulary::history::{History, JointMeasurement, KNOWN};

use super::speeds::kind_of_class;
use crate::graph::cost::{OperatorClass, class_of};
use crate::planning::Slowness;

/// Maximum bytes of a device's name.
const NAME_BYTES_MAX: usize = 1024;
/// Maximum number of devices with a history.
const DEVICES_MAX: usize = 256;
/// Maximum factor by which an operator counts as slower or quicker than the median of its kind.
const OFF_MAX: f64 = 4.0;

/// One class of each kind of work.
const KINDS: [OperatorClass; 3] = [
    OperatorClass::Matmul,
    OperatorClass::Convolution,
    OperatorClass::Other,
];

/// The histories of devices, by the names of the devices with their models.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostHistory {
    devices: BTreeMap<String, History>,
}

/// A device's measured time for some operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the device with its model.
    pub device: String,
    /// The operators and their time.
    pub measured: JointMeasurement,
}

impl CostHistory {
    /// Creates a cost history from devices' names with their models and histories.
    pub(crate) fn of_devices(devices: impl Iterator<Item = (String, History)>) -> Self {
        Self {
            devices: devices.collect(),
        }
    }

    /// Returns whether runs can have produced this history. You should check a history from a file,
    /// because the file can be damaged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.devices.len() <= DEVICES_MAX && self.devices.values().all(History::is_sound)
    }

    /// Records a measurement of a run. It will ignore a device whose name is too long, and a new
    /// device if there are too many.
    pub fn record_measurement(&mut self, learned: &Measurement) {
        let is_new = !self.devices.contains_key(&learned.device);
        let is_named = learned.device.len() <= NAME_BYTES_MAX;
        if !is_named || (is_new && self.devices.len() >= DEVICES_MAX) {
            return;
        }
        for (device, history) in &mut self.devices {
            if *device != learned.device {
                history.pass_over();
            }
        }
        let history = self.devices.entry(learned.device.clone()).or_default();
        history.learn_joint(&learned.measured);
    }

    /// Returns the devices' names and histories.
    pub fn devices(&self) -> impl Iterator<Item = (&String, &History)> {
        self.devices.iter()
    }

    /// Returns the history of a device, if there is one.
    #[must_use]
    pub fn history_for(&self, device: &str) -> Option<&History> {
        self.devices.get(device)
    }

    /// Returns the factors by which a device with this label and model exceeds its profile's time
    /// for each kind of work; one for unknown devices and kinds.
    #[must_use]
    pub fn slowness(&self, label: &str, model: &str) -> Slowness {
        let history = self.history_for(&history_name(label, model));
        history.map_or_else(Slowness::default, slowness_of)
    }
}

/// Returns the factors by which a device with this history exceeds its profile's time for each kind
/// of work.
#[must_use]
pub fn slowness_of(history: &History) -> Slowness {
    let mut slowness = Slowness::default();
    for class in KINDS {
        let of_kind = |operator: &str| {
            let proto = NodeProto {
                op_type: Some(operator.to_owned()),
                ..NodeProto::default()
            };
            kind_of_class(class_of(&proto)) == kind_of_class(class)
        };
        if let Some(times) = times_of(history, of_kind) {
            slowness = slowness.with(class, times);
        }
    }
    slowness
}

/// Returns the factor by which a device exceeds its profile's time for some operators; none without
/// measurements.
///
/// An operator's ratio is the median of its classes and sizes. A ratio far from the median over all
/// operators counts as [`OFF_MAX`] away from it, because a few runs that take a thousand times as
/// long as similar ones say little of the rest. Operators weigh by their profile's time, which no
/// run makes longer, and none weighs more than all others together.
fn times_of(history: &History, is_of: impl Fn(&str) -> bool) -> Option<f64> {
    let mut operators: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for (key, record) in history.records() {
        if !key.is_model() && is_of(&key.operator) {
            let weight = record.weight.min(KNOWN) * (record.seconds - record.mean).exp();
            let ratios = operators.entry(&key.operator).or_default();
            ratios.push((record.mean, weight));
        }
    }
    let each = operators.into_values().filter_map(|ratios| {
        let weight: f64 = ratios.iter().map(|(_, weight)| weight).sum();
        Some((weighted_median(ratios)?, weight)).filter(|_| weight.is_finite())
    });
    let each: Vec<(f64, f64)> = each.collect();
    let usual = weighted_median(each.iter().map(|(ratio, _)| (*ratio, 1.0)).collect())?;
    let all: f64 = each.iter().map(|(_, weight)| weight).sum();
    let (mut took, mut stated) = (0.0, 0.0);
    for (ratio, weight) in each {
        let others = all - weight;
        let weight = if others > 0.0 {
            weight.min(others)
        } else {
            weight
        };
        let ratio = ratio.clamp(usual - OFF_MAX.ln(), usual + OFF_MAX.ln());
        took += weight * ratio.exp();
        stated += weight;
    }
    Some(took / stated).filter(|times| times.is_finite() && *times > 0.0)
}

/// Returns the least figure that has half of the weight at or below it.
fn weighted_median(mut weighed: Vec<(f64, f64)>) -> Option<f64> {
    weighed.sort_by(|one, other| one.0.total_cmp(&other.0));
    let all: f64 = weighed.iter().map(|(_, weight)| weight).sum();
    let mut below = 0.0;
    let found = weighed.iter().find(|(_, weight)| {
        below += weight;
        below * 2.0 >= all
    });
    found.map(|(figure, _)| *figure)
}

/// Returns the name of a device with its model.
pub(crate) fn history_name(label: &str, model: &str) -> String {
    format!("{label}: {model}")
}

#[cfg(test)]
mod tests {
    use souk_memory::DType;
    use souk_onnx::work::Work;
    use souk_vocabulary::history::{Key, Part};

    use super::*;

    /// A run of one operator that the profile puts at a millisecond.
    fn run(operator: &str, times: f64) -> Measurement {
        let work = Work {
            operations: 1 << 20,
            bytes_read: 1 << 12,
            bytes_written: 1 << 12,
            launches: 1,
            dtype: Some(DType::F32),
        };
        let modelled = 0.001;
        let part = Part {
            key: Key::for_work(operator, "", &work),
            count: 1,
            modelled,
            prior: 1.0,
        };
        Measurement {
            device: history_name("p", "a model"),
            measured: JointMeasurement {
                parts: vec![part],
                seconds: modelled * times,
                joules: None,
            },
        }
    }

    fn after(runs: &[(&str, f64)]) -> f64 {
        let mut costs = CostHistory::default();
        for (operator, times) in runs {
            (0..5).for_each(|_| costs.record_measurement(&run(operator, *times)));
        }
        costs.slowness("p", "a model").other
    }

    #[test]
    fn an_operator_far_from_the_others_of_its_kind_is_an_outlier() {
        let usual = [("Relu", 2.0), ("Softmax", 2.5), ("Add", 1.8)];
        let before = after(&usual);
        assert!((1.8..2.5).contains(&before), "{before}");
        let far = [&usual[..], &[("StringSplit", 100_000.0)]].concat();
        let spoilt = after(&far) / before;
        assert!(spoilt < OFF_MAX, "{spoilt}");
        let quick = [&usual[..], &[("StringSplit", 1e-5)]].concat();
        assert!(before / after(&quick) < OFF_MAX);
    }

    #[test]
    fn a_whole_model_says_nothing_of_a_kind() {
        let mut costs = CostHistory::default();
        costs.record_measurement(&run("Relu", 2.0));
        let before = costs.slowness("p", "a model");
        let mut of_model = run("Relu", 1e5);
        of_model.measured.parts[0].key = Key::of_model("abc", &Work::default());
        (0..9).for_each(|_| costs.record_measurement(&of_model));
        assert_eq!(costs.slowness("p", "a model"), before);
    }
}
