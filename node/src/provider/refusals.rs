//! What a device refused only when it compiled: kept in the provider's folder, told in its asks.
//!
//! A node is kept by what it is but for its names, so whoever plans a model with such a node goes
//! elsewhere. What is sold and the version of souk are kept with it: another one may run it.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_market::RefusedNodes;
use souk_onnx::custom::Custom;
use souk_scheduler::graph::{Bindings, Graph};

use crate::device::operators;
use crate::folder::config::{self, DeviceChoice, FORMAT};

/// What it is kept in.
const FILE: &str = "refused.json";

/// What a provider's device was seen to refuse.
pub(super) struct Refusals {
    of: String,
    told: Mutex<RefusedNodes>,
}

#[derive(Serialize, Deserialize)]
struct RefusalFile {
    format: u32,
    of: String,
    nodes: RefusedNodes,
}

impl Refusals {
    /// What is kept in a folder, if it is of this device.
    pub(super) fn kept(home: &Path, device: &DeviceChoice) -> Refusals {
        let sold = serde_json::to_string(device).expect("a choice has only named fields");
        let of = format!("souk {}, {sold}", env!("CARGO_PKG_VERSION"));
        let kept: Option<RefusalFile> = config::read(&home.join(FILE)).ok();
        let kept = kept.filter(|kept| kept.of == of).map(|kept| kept.nodes);
        Refusals {
            of,
            told: Mutex::new(kept.unwrap_or_default()),
        }
    }

    /// What its asks tell.
    pub(super) fn told(&self) -> RefusedNodes {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.clone()
    }

    /// Keeps one more.
    pub(super) fn learn(&self, home: &Path, digest: u64) {
        let nodes = self.told().with(digest);
        let file = RefusalFile {
            format: FORMAT,
            of: self.of.clone(),
            nodes: nodes.clone(),
        };
        if let Err(error) = config::write(&home.join(FILE), &file) {
            tracing::warn!(%error, "what the device refuses is not known at the next start");
        }
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }
}

/// What a node of a part is called; none of a kernel of the buyer's own, of which the digest does
/// not say what it computes.
pub(super) fn digest(part: Bytes, node: &str) -> Option<u64> {
    let graph = Graph::import(part, &Bindings::assume(1)).ok()?;
    let mut nodes = graph.nodes().iter();
    let is_it =
        |name: &str, made: Option<&String>| name == node || made.is_some_and(|it| it == node);
    let found = nodes.find(|it| is_it(it.name(), it.proto.output.first()))?;
    let is_kernel = Custom::of(&found.proto).is_some();
    (!is_kernel).then(|| operators::digest(&graph, found))
}

#[cfg(test)]
mod tests {
    use souk_scheduler::graph::cut;

    use super::*;

    const MODEL: &[u8] = include_bytes!("../../../testnet/models/digits/digits.onnx");

    #[test]
    fn what_was_refused_is_kept_for_the_same_device_alone() {
        let home = tempfile::tempdir().unwrap();
        let device = DeviceChoice::emulated("nvidia-t4");
        Refusals::kept(home.path(), &device).learn(home.path(), 7);
        let told = |device: &DeviceChoice| Refusals::kept(home.path(), device).told();
        assert_eq!(told(&device).digests(), [7]);
        assert!(told(&DeviceChoice::Cpu { threads: 1 }).digests().is_empty());
    }

    #[test]
    fn a_node_of_a_part_is_called_as_the_buyer_calls_it_in_the_whole() {
        let bindings = Bindings::assume(4);
        let graph = Graph::import(Bytes::from_static(MODEL), &bindings).unwrap();
        let half = graph.nodes().len() / 2;
        let assignment: Vec<usize> = (0..graph.nodes().len())
            .map(|node| usize::from(node >= half))
            .collect();
        let parts = cut::cut(&graph, &assignment).unwrap();
        for node in graph.nodes() {
            let own = operators::digest(&graph, node);
            let mut seen = parts.iter().filter_map(|part| {
                let model = part.model.clone();
                digest(model, node.name())
            });
            assert_eq!(seen.next(), Some(own), "{}", node.name());
        }
        let kinds = operators::needed(&graph).nodes.len();
        assert!(kinds > 3 && kinds <= graph.nodes().len());
    }
}
