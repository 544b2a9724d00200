//! Builds the messages of a lying validator: invented states, and membership changes that no
//! operator ordered. The faults of messages and of lying validators use it.

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, EntryType};
use souk_consensus::manifest::Manifest;

/// A raft id that operators will never assign.
pub const STRANGER: u64 = 1_000;

/// An invented state that a liar serves part by part.
pub struct ForgedState {
    /// The manifest of its parts.
    pub manifest: Manifest,
    /// The encoded state.
    pub bytes: Bytes,
}

/// Returns a membership change in raft's own form.
pub fn membership_change(steps: &[(ConfChangeType, u64)]) -> ConfChangeV2 {
    let single = |(kind, id): &(ConfChangeType, u64)| {
        let mut single = ConfChangeSingle {
            node_id: *id,
            ..ConfChangeSingle::default()
        };
        single.set_change_type(*kind);
        single
    };
    let mut change = ConfChangeV2::default();
    change.set_changes(steps.iter().map(single).collect::<Vec<_>>().into());
    change
}

/// Turns an entry into a membership change.
pub fn change_members(entry: &mut Entry, change: ConfChangeV2) {
    entry.set_entry_type(EntryType::EntryConfChangeV2);
    let data = change.write_to_bytes();
    entry.data = data.expect("every field can be encoded").into();
}
