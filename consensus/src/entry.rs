//! Encodes and decodes one log entry, in the same form for the write-ahead log and for messages.

use raft::eraftpb::{Entry, EntryType};

use crate::codec::{Reader, TruncationError, Writer};

/// The encoded bytes of an entry besides its data and context.
pub(crate) const AROUND_BYTES: usize = 1 + 8 + 8 + 4 + 4;

/// Why bytes are not an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The entry ends early.
    #[error("an entry is cut short: {0}")]
    Truncated(#[from] TruncationError),
    /// The entry has an unknown type.
    #[error("an entry of type {0}, which this version does not know")]
    Kind(u8),
}

pub(crate) fn encode(entry: &Entry, writer: &mut Writer) {
    writer.write_u8(match entry.get_entry_type() {
        EntryType::EntryNormal => 0,
        EntryType::EntryConfChange => 1,
        EntryType::EntryConfChangeV2 => 2,
    });
    writer.write_u64(entry.term);
    writer.write_u64(entry.index);
    writer.write_block(&entry.context);
    writer.write_block(&entry.data);
}

pub(crate) fn decode(reader: &mut Reader) -> Result<Entry, EntryError> {
    let entry_type = match reader.read_u8()? {
        0 => EntryType::EntryNormal,
        1 => EntryType::EntryConfChange,
        2 => EntryType::EntryConfChangeV2,
        kind => return Err(EntryError::Kind(kind)),
    };
    Ok(Entry {
        entry_type,
        term: reader.read_u64()?,
        index: reader.read_u64()?,
        context: reader.read_block()?,
        data: reader.read_block()?,
        ..Entry::default()
    })
}
