//! What histories say in sum: of each kind of work, and of power.

use souk_devices::onnx::NodeProto;

use super::{Costs, Known, Ledger, called};
use crate::cost::{OperatorClass, class_of};
use crate::plan::Slowness;
use crate::run::team::offers::kind;

/// A class of each kind of work.
const KINDS: [OperatorClass; 3] = [
    OperatorClass::Matmul,
    OperatorClass::Convolution,
    OperatorClass::Other,
];

impl Costs {
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

impl Known {
    /// Watts that a member draws for the graph, by its history or as it states; none if neither
    /// says.
    pub fn watts(&self, device: usize, ledger: &Ledger, stated: Option<f64>) -> Option<f64> {
        let history = &ledger.histories[device];
        let (mut joules, mut seconds) = (0.0, 0.0);
        for entry in &self.alike {
            let time = entry.stated[device] * entry.factor[device];
            if time.is_finite() {
                joules += time * history.watts(&entry.key).or(stated)?;
                seconds += time;
            }
        }
        let watts = joules / seconds;
        if watts.is_finite() {
            Some(watts)
        } else {
            stated
        }
    }
}
