//! Which device a node asks for: words in its own metadata, so that they go wherever it goes.

use souk_devices::onnx::StringStringEntryProto;

use super::{Graph, Node};

/// The key of the words, with commas between them.
pub const DEVICE_KEY: &str = "souk.device";

impl Graph {
    /// The same graph, where each node that asks for no device yet asks for one that any of these
    /// words names: a kind (`gpu`), or a part of a model's name. No words ask for nothing.
    #[must_use]
    pub fn asking_for(mut self, words: &[String]) -> Self {
        if words.is_empty() {
            return self;
        }
        for node in &mut self.nodes {
            if node.wishes().next().is_none() {
                node.proto.metadata_props.push(StringStringEntryProto {
                    key: Some(DEVICE_KEY.to_owned()),
                    value: Some(words.join(",")),
                });
            }
        }
        self
    }
}

impl Node {
    /// The words for the device it asks for; none if any will do.
    pub fn wishes(&self) -> impl Iterator<Item = &str> {
        let entries = self.proto.metadata_props.iter();
        let own = entries.filter(|entry| entry.key.as_deref() == Some(DEVICE_KEY));
        let words = own.flat_map(|entry| entry.value.as_deref().unwrap_or("").split(','));
        words.map(str::trim).filter(|word| !word.is_empty())
    }
}
