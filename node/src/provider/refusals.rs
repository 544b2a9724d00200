//! Stores the graph nodes that a provider's device refused only when it compiled them, and passes
//! them to the provider's asks. A buyer whose model has such a node then chooses another provider.
//!
//! A node is identified by a digest that ignores names. The file in the provider's folder also
//! states the device and the version of souk; with another device or version the provider ignores
//! the file, because that one may run the node.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use souk_folder::config::{self, DeviceChoice, FORMAT};
use souk_market::RefusedGraphNodes;

/// The file in the provider's folder.
const FILE: &str = "refused.json";

/// The nodes that a provider's device has refused.
pub(super) struct Refusals {
    /// The version of souk and the device.
    origin: String,
    nodes: Mutex<RefusedGraphNodes>,
}

#[derive(Serialize, Deserialize)]
struct RefusalFile {
    format: u32,
    /// The version of souk and the device that it sold.
    #[serde(rename = "of")]
    origin: String,
    nodes: RefusedGraphNodes,
}

impl Refusals {
    /// Reads the refusals in a folder, if they are of this device.
    pub(super) fn read_folder(home: &Path, device: &DeviceChoice) -> Refusals {
        let sold = serde_json::to_string(device).expect("a choice has only named fields");
        let origin = format!("souk {}, {sold}", env!("CARGO_PKG_VERSION"));
        let stored: Option<RefusalFile> = config::read(&home.join(FILE)).ok();
        let stored = stored.filter(|file| file.origin == origin);
        let nodes = stored.map(|file| file.nodes);
        Refusals {
            origin,
            nodes: Mutex::new(nodes.unwrap_or_default()),
        }
    }

    /// Returns the refusals that its asks state.
    pub(super) fn refused_nodes(&self) -> RefusedGraphNodes {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.clone()
    }

    /// Adds a refusal.
    pub(super) fn add_refusal(&self, home: &Path, digest: u64) {
        let nodes = self.refused_nodes().with(digest);
        let file = RefusalFile {
            format: FORMAT,
            origin: self.origin.clone(),
            nodes: nodes.clone(),
        };
        if let Err(error) = config::write(&home.join(FILE), &file) {
            tracing::warn!(%error, "the nodes that the device refuses could not be stored");
        }
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_kept_for_the_same_device_alone() {
        let home = tempfile::tempdir().unwrap();
        let device = DeviceChoice::new_emulated("nvidia-t4");
        Refusals::read_folder(home.path(), &device).add_refusal(home.path(), 7);
        let refused =
            |device: &DeviceChoice| Refusals::read_folder(home.path(), device).refused_nodes();
        assert_eq!(refused(&device).digests(), [7]);
        assert!(
            refused(&DeviceChoice::Cpu { threads: 1 })
                .digests()
                .is_empty()
        );
    }
}
