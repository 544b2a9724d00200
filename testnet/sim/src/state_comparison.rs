//! Compares the exchange's full states of different replicas at the same log entry. Two states are
//! equal if their snapshots are; equal fields show this without encoding.

use std::collections::BTreeMap;

use souk_consensus::{Digest, LogIndex};
use souk_market::Exchange;

/// Maximum number of full states to keep. A few suffice, because replicas reach the same entry at
/// about the same time.
const STATES_MAX: usize = 16;

/// For each entry, the state of the replica that reached it first; for older entries, only the
/// digest of its snapshot.
#[derive(Default)]
pub struct ReplicaStates {
    states: BTreeMap<LogIndex, Exchange>,
    older: BTreeMap<LogIndex, Digest>,
}

impl ReplicaStates {
    /// Records the first state given for an entry. Returns whether a later one equals it.
    pub fn record_or_compare(&mut self, index: LogIndex, state: &Exchange) -> bool {
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

/// Returns whether two states have equal snapshots. Compares fields first, because equal fields
/// imply equal snapshots.
pub fn is_same_state(one: &Exchange, other: &Exchange) -> bool {
    one == other || one.snapshot() == other.snapshot()
}

fn state_digest(state: &Exchange) -> Digest {
    Digest(*blake3::hash(&state.snapshot()).as_bytes())
}
