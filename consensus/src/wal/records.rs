//! Encodes and decodes the records in a frame's payload: entries, hard state (raft's term, vote and
//! commit index), snapshot mark, incarnation (the number of the replica's start).

use bytes::Bytes;
use raft::eraftpb::{Entry, HardState};

use super::Append;
use crate::codec::{Reader, TruncationError, Writer};
use crate::entry::{self, EntryError};
use crate::ids::{Incarnation, Term};
use souk_proof::LogIndex;

const INCARNATION: u8 = 1;
const SNAPSHOT: u8 = 2;
const ENTRY: u8 = 3;
const HARD_STATE: u8 = 4;

/// One record of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The incarnation of the replica that wrote the records from here on.
    Incarnation(Incarnation),
    /// The entry and term after which the log begins.
    Snapshot(LogIndex, Term),
    /// An entry; it replaces any at or after its index.
    Entry(Entry),
    /// The term, vote and commit index.
    HardState(HardState),
}

/// Why this version cannot read a frame that verifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A record ends early.
    #[error("a record is cut short: {0}")]
    Truncated(#[from] TruncationError),
    /// A record has an unknown tag.
    #[error("a record of kind {0}, which this version does not know")]
    Kind(u8),
    /// An entry cannot be read.
    #[error(transparent)]
    Entry(#[from] EntryError),
}

/// Appends a batch as a payload.
pub(super) fn encode(batch: &Append<'_>, writer: &mut Writer) {
    encode_batch(batch, writer);
}

/// Encodes the first batch of a segment. It must repeat the records for which older segments would
/// be needed, because the log can remove these.
pub(super) fn encode_first(
    incarnation: Incarnation,
    hard_state: &HardState,
    batch: &Append<'_>,
    writer: &mut Writer,
) {
    writer.write_u8(INCARNATION);
    writer.write_u64(incarnation.0);
    encode_batch(batch, writer);
    encode_hard_state(hard_state, writer);
}

fn encode_batch(batch: &Append<'_>, writer: &mut Writer) {
    if let Some((index, term)) = batch.snapshot {
        writer.write_u8(SNAPSHOT);
        writer.write_u64(index.0);
        writer.write_u64(term.0);
    }
    for entry in batch.entries {
        writer.write_u8(ENTRY);
        entry::encode(entry, writer);
    }
    if let Some(hard_state) = batch.hard_state {
        encode_hard_state(hard_state, writer);
    }
}

fn encode_hard_state(hard_state: &HardState, writer: &mut Writer) {
    writer.write_u8(HARD_STATE);
    writer.write_u64(hard_state.term);
    writer.write_u64(hard_state.vote);
    writer.write_u64(hard_state.commit);
}

/// Decodes all records of a payload.
pub(super) fn decode(payload: Bytes) -> Result<Vec<Record>, RecordError> {
    let mut reader = Reader::new(payload);
    let mut records = Vec::new();
    while reader.remaining_len() > 0 {
        records.push(match reader.read_u8()? {
            INCARNATION => Record::Incarnation(Incarnation(reader.read_u64()?)),
            SNAPSHOT => Record::Snapshot(LogIndex(reader.read_u64()?), Term(reader.read_u64()?)),
            ENTRY => Record::Entry(entry::decode(&mut reader)?),
            HARD_STATE => Record::HardState(decode_hard_state(&mut reader)?),
            kind => return Err(RecordError::Kind(kind)),
        });
    }
    Ok(records)
}

fn decode_hard_state(reader: &mut Reader) -> Result<HardState, RecordError> {
    let (term, vote, commit) = (reader.read_u64()?, reader.read_u64()?, reader.read_u64()?);
    Ok(HardState {
        term,
        vote,
        commit,
        ..HardState::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damaged_bytes;

    fn payload() -> Bytes {
        let entries = [1, 2].map(|index| Entry {
            index,
            term: 3,
            data: Bytes::from_static(b"command"),
            ..Entry::default()
        });
        let hard_state = HardState {
            term: 3,
            vote: 1,
            ..HardState::default()
        };
        let batch = Append {
            snapshot: Some((LogIndex(0), Term(2))),
            entries: &entries,
            hard_state: Some(&hard_state),
        };
        let mut writer = Writer::default();
        encode_first(Incarnation(4), &hard_state, &batch, &mut writer);
        writer.into_bytes().into()
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(decode(payload()).map(|records| records.len()), Ok(6));
    }

    proptest::proptest! {
        #![proptest_config(damaged_bytes::proptest_config())]

        #[test]
        fn damaged_records_are_refused_or_others(
            bytes in damaged_bytes::arbitrary_damage(payload())
        ) {
            let most = bytes.len();
            if let Ok(records) = decode(bytes) {
                proptest::prop_assert!(records.len() <= most);
            }
        }
    }
}
