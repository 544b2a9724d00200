//! Which device a node asks for: words in its own metadata, so that they go wherever it goes.

use std::fmt;

use souk_onnx::StringStringEntryProto;
use souk_vocabulary::profile::{Backend, Profile};

use super::{Graph, Node};

/// The key of a device's names, with commas between them: any of them will do.
pub const DEVICE_KEY: &str = "souk.device";

/// The key of the [`Backend`] that the device is to run it through.
pub const BACKEND_KEY: &str = "souk.backend";

/// The device that a node asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish<'a> {
    /// Kinds, or parts of models' names; none for any.
    words: Vec<&'a str>,
    /// What it is to go through; none for anything.
    backend: Option<&'a str>,
}

impl Graph {
    /// The same graph, where each node that asks for no device yet asks for one that any of these
    /// words names: a kind (`gpu`), or a part of a model's name. No words ask for nothing. Likewise
    /// with what it is to go through.
    #[must_use]
    pub fn asking_for(mut self, words: &[String], backend: Option<Backend>) -> Self {
        let device = (!words.is_empty()).then(|| (DEVICE_KEY, words.join(",")));
        let through = backend.map(|backend| (BACKEND_KEY, backend.name().to_owned()));
        for (key, value) in device.into_iter().chain(through) {
            let silent = |node: &&mut Node| node.metadata(key).next().is_none();
            for node in self.nodes.iter_mut().filter(silent) {
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
    /// The device it asks for; `None` if any will do.
    #[must_use]
    pub fn wish(&self) -> Option<Wish<'_>> {
        let wish = Wish {
            words: self.metadata(DEVICE_KEY).collect(),
            backend: self.metadata(BACKEND_KEY).next(),
        };
        let asks = !wish.words.is_empty() || wish.backend.is_some();
        asks.then_some(wish)
    }

    /// The words under a key.
    fn metadata<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let entries = self.proto.metadata_props.iter();
        let own = entries.filter(move |entry| entry.key.as_deref() == Some(key));
        let words = own.flat_map(|entry| entry.value.as_deref().unwrap_or("").split(','));
        words.map(str::trim).filter(|word| !word.is_empty())
    }
}

impl Wish<'_> {
    /// Whether a device is one of those asked for.
    #[must_use]
    pub fn means(&self, profile: &Profile) -> bool {
        let named = self.words.is_empty() || self.words.iter().any(|word| profile.is_named(word));
        let own = profile.backend().map(Backend::name);
        named && self.backend.is_none_or(|asked| own == Some(asked))
    }
}

impl fmt::Display for Wish<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words.as_slice() {
            [] => f.write_str("any device")?,
            words => f.write_str(&words.join(" or "))?,
        }
        self.backend.map_or(Ok(()), |it| write!(f, " through {it}"))
    }
}
