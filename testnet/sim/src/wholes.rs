//! Whole states at the same entries, compared field by field, and byte by byte where these differ.

use std::collections::BTreeMap;

use souk_consensus::{Digest, LogIndex};
use souk_market::Exchange;

/// States kept as they are: replicas reach the same entry at about the same time.
const STATES_MAX: usize = 16;

/// The state the first replica had at each entry; of the older ones the digest of every byte.
#[derive(Default)]
pub struct Wholes {
    states: BTreeMap<LogIndex, Exchange>,
    older: BTreeMap<LogIndex, Digest>,
}

impl Wholes {
    /// Whether a replica's state at an entry is the one that the first replica there had.
    pub fn agree(&mut self, index: LogIndex, state: &Exchange) -> bool {
        if let Some(first) = self.states.get(&index) {
            return same(first, state);
        }
        if let Some(first) = self.older.get(&index) {
            return *first == digest(state);
        }
        self.states.insert(index, state.clone());
        if self.states.len() > STATES_MAX
            && let Some((index, state)) = self.states.pop_first()
        {
            self.older.insert(index, digest(&state));
        }
        true
    }
}

/// Whether two states are the same. What is equal in all fields is written as the same bytes.
pub fn same(one: &Exchange, other: &Exchange) -> bool {
    one == other || one.snapshot() == other.snapshot()
}

fn digest(state: &Exchange) -> Digest {
    Digest(*blake3::hash(&state.snapshot()).as_bytes())
}
