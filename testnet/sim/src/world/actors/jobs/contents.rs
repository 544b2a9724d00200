//! Contents: an id, a length and a value. Two honest devices make unlike ids of one value.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::AccountKey;
use souk_memory::ContentId;

/// Bytes of each content.
pub const CONTENT_BYTES: u64 = 1_000;

/// See the module.
#[derive(Default)]
pub struct Contents {
    values: BTreeMap<ContentId, u64>,
    held: BTreeMap<AccountKey, BTreeSet<ContentId>>,
}

impl Contents {
    /// A content of a value, made by somebody whose rounding is `noise`.
    pub fn make(&mut self, value: u64, noise: u64) -> ContentId {
        let mut bytes = value.to_le_bytes().to_vec();
        bytes.extend(noise.to_le_bytes());
        let id = ContentId::of(&bytes);
        self.values.insert(id, value);
        id
    }

    /// What a content says.
    pub fn value(&self, id: ContentId) -> Option<u64> {
        self.values.get(&id).copied()
    }

    /// Somebody has it from now on.
    pub fn hold(&mut self, who: AccountKey, id: ContentId) {
        self.held.entry(who).or_default().insert(id);
    }

    /// Whether somebody has it.
    pub fn has(&self, who: AccountKey, id: ContentId) -> bool {
        self.held.get(&who).is_some_and(|held| held.contains(&id))
    }

    /// What somebody had only in memory is gone.
    pub fn forget(&mut self, who: AccountKey, kept: &BTreeSet<ContentId>) {
        if let Some(held) = self.held.get_mut(&who) {
            held.retain(|id| kept.contains(id));
        }
    }
}

/// What a device gives for a graph and inputs, by their values, under an output's name.
pub fn computed(graph: ContentId, inputs: &BTreeMap<String, u64>, output: &str) -> u64 {
    let mut bytes = graph.as_bytes().to_vec();
    for (name, value) in inputs {
        bytes.extend(name.as_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(output.as_bytes());
    number(&bytes)
}

/// A number that bytes stand for.
pub fn number(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    let mut word = [0; 8];
    word.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(word)
}
