//! Compares whole states of the exchange between replicas at the same entries of the log: field by
//! field, and byte by byte if these differ.

use std::collections::BTreeMap;

use souk_consensus::{Digest, LogIndex};
use souk_market::Exchange;

/// Full states to keep: replicas reach the same entry at about the same time.
const STATES_MAX: usize = 16;

/// The first replica's state at each entry; for older entries, only the digest of every byte.
#[derive(Default)]
pub struct ReplicaStates {
    states: BTreeMap<LogIndex, Exchange>,
    older: BTreeMap<LogIndex, Digest>,
}

impl ReplicaStates {
    /// Returns whether a replica's state at an entry equals the first replica's.
    pub fn compare_state(&mut self, index: LogIndex, state: &Exchange) -> bool {
        if let Some(first) = self.states.get(&index) {
            return is_same_state(first, state);
        }
        if let Some(first) = self.older.get(&index) {
            return *first == state_digest(state);
        }
        self.states.insert(index, state.clone());
        if self.states.len() > STATES_MAX
            && let Some((index, state)) = self.states.pop_first()
        {
            self.older.insert(index, state_digest(&state));
        }
        true
    }
}

/// Returns whether two states are equal. States with equal fields have equal bytes.
pub fn is_same_state(one: &Exchange, other: &Exchange) -> bool {
    one == other || one.snapshot() == other.snapshot()
}

fn state_digest(state: &Exchange) -> Digest {
    Digest(*blake3::hash(&state.snapshot()).as_bytes())
}
