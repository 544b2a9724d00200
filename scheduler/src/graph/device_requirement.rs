//! Reads and writes the requirement of a node for a device: words in the node's metadata, which
//! travel with the model, such as `gpu`. The buyer sets them, and device groups honour them.

use std::fmt;

use souk_onnx::StringStringEntryProto;
use souk_vocabulary::profile::{Backend, Profile};

use super::{Graph, Node};

/// Metadata key of the requested devices, separated by commas: any of them will do.
pub const DEVICE_KEY: &str = "souk.device";

/// Metadata key of the [`Backend`] that the device must use.
pub const BACKEND_KEY: &str = "souk.backend";

/// The device that a node asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequirement<'a> {
    /// Kinds of devices, or parts of models' names; empty for any.
    words: Vec<&'a str>,
    /// Name of the required backend; none for any.
    backend: Option<&'a str>,
}

impl Graph {
    /// Returns the same graph, in which each node without a requirement asks for any device that
    /// one of these words names: a kind, for example `gpu`, or a part of a model's name. Empty
    /// words ask for nothing. `backend` works in the same way.
    #[must_use]
    pub fn with_device_requirement(mut self, words: &[String], backend: Option<Backend>) -> Self {
        let device = (!words.is_empty()).then(|| (DEVICE_KEY, words.join(",")));
        let backend_entry = backend.map(|backend| (BACKEND_KEY, backend.name().to_owned()));
        for (key, value) in device.into_iter().chain(backend_entry) {
            let lacks_key = |node: &&mut Node| node.metadata_words(key).next().is_none();
            for node in self.nodes.iter_mut().filter(lacks_key) {
                node.proto.metadata_props.push(StringStringEntryProto {
                    key: Some(key.to_owned()),
                    value: Some(value.clone()),
                });
            }
        }
        self
    }
}

impl Node {
    /// Returns the device that the node asks for; `None` if any device will do.
    #[must_use]
    pub fn device_requirement(&self) -> Option<DeviceRequirement<'_>> {
        let requirement = DeviceRequirement {
            words: self.metadata_words(DEVICE_KEY).collect(),
            backend: self.metadata_words(BACKEND_KEY).next(),
        };
        let asks = !requirement.words.is_empty() || requirement.backend.is_some();
        asks.then_some(requirement)
    }

    /// Returns the words under a key.
    fn metadata_words<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let entries = self.proto.metadata_props.iter();
        let own = entries.filter(move |entry| entry.key.as_deref() == Some(key));
        let words = own.flat_map(|entry| entry.value.as_deref().unwrap_or("").split(','));
        words.map(str::trim).filter(|word| !word.is_empty())
    }
}

impl DeviceRequirement<'_> {
    /// Returns whether a device meets the requirement.
    #[must_use]
    pub fn is_met_by(&self, profile: &Profile) -> bool {
        let named = self.words.is_empty() || self.words.iter().any(|word| profile.is_named(word));
        let own = profile.backend().map(Backend::name);
        named && self.backend.is_none_or(|asked| own == Some(asked))
    }
}

impl fmt::Display for DeviceRequirement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words.as_slice() {
            [] => f.write_str("any device")?,
            words => f.write_str(&words.join(" or "))?,
        }
        self.backend.map_or(Ok(()), |it| write!(f, " through {it}"))
    }
}
