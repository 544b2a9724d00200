//! What devices were seen to take, kept from run to run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use souk_onnx::NodeProto;
use souk_vocabulary::history::{History, JointMeasurement};

use super::speeds::kind;
use crate::graph::cost::{OperatorClass, class_of};
use crate::planning::Slowness;

/// Bytes of what a device is called.
const NAME_BYTES_MAX: usize = 1024;
/// Devices whose history is kept.
const DEVICES_MAX: usize = 256;

/// A class of each kind of work.
const KINDS: [OperatorClass; 3] = [
    OperatorClass::Matmul,
    OperatorClass::Convolution,
    OperatorClass::Other,
];

/// What devices were seen to take, by what they are called with their model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostHistory {
    devices: BTreeMap<String, History>,
}

/// What a device took for some operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What it is called with its model.
    pub device: String,
    /// The operators, and their time.
    pub measured: JointMeasurement,
}

impl CostHistory {
    /// Devices by what they are called with their models.
    pub(crate) fn of_devices(devices: impl Iterator<Item = (String, History)>) -> Self {
        Self {
            devices: devices.collect(),
        }
    }

    /// Whether runs can have taught it: what a file says may be damaged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.devices.len() <= DEVICES_MAX && self.devices.values().all(History::is_sound)
    }

    /// Takes in what a run told.
    pub fn learn(&mut self, learned: &Measurement) {
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

    /// The devices and their histories.
    #[cfg(test)]
    pub(crate) fn devices(&self) -> impl Iterator<Item = (&String, &History)> {
        self.devices.iter()
    }

    /// The history of a device, if there is one.
    #[must_use]
    pub fn of(&self, device: &str) -> Option<&History> {
        self.devices.get(device)
    }

    /// How many times as long as by its profile a device takes for each kind of work, so called and
    /// of this model; where nothing is known of it, or of a kind, as long.
    #[must_use]
    pub fn slowness(&self, label: &str, model: &str) -> Slowness {
        let mut slowness = Slowness::default();
        let Some(history) = self.of(&called(label, model)) else {
            return slowness;
        };
        // What takes long says more of its kind than what is over at once.
        let (mut took, mut modelled) = ([0.0; 3], [0.0; 3]);
        for (key, record) in history.records() {
            let operator = NodeProto {
                op_type: Some(key.operator.clone()),
                ..NodeProto::default()
            };
            let of = usize::from(kind(class_of(&operator)));
            took[of] += record.weight * record.seconds.exp();
            modelled[of] += record.weight * (record.seconds - record.mean).exp();
        }
        for class in KINDS {
            let of = usize::from(kind(class));
            let ratio = took[of] / modelled[of];
            if ratio.is_finite() && ratio > 0.0 {
                slowness = slowness.with(class, ratio);
            }
        }
        slowness
    }
}

/// What a device is called with its model.
pub(crate) fn called(label: &str, model: &str) -> String {
    format!("{label}: {model}")
}
