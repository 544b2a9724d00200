//! Encodes a raft message in a compact form: its non-zero numbers, its context, its entries.
//!
//! Most messages are a handful of numbers, and every command costs about ten messages. Numbers of
//! eight bytes with a mask encode and decode several times faster than protobuf's.

use protobuf::{Message as _, ProtobufEnum};
use raft::eraftpb::{ConfChangeV2, Entry, EntryType, Message, MessageType, Snapshot};

use crate::codec::{Reader, TruncationError, Writer};
use crate::entry::{self, EntryError};

/// The bytes of the kind and mask, and of the lengths of context and entries.
const FIXED_BYTES: usize = 4 + 4 + 4;

/// The position of the numbers' mask in the first word.
const MASK_SHIFT: u32 = 16;

/// The flag in the first word that the peer refuses.
const REJECT: u32 = 1 << 8;

/// Why bytes are not a raft message.
#[derive(Debug, thiserror::Error)]
pub enum RaftMessageError {
    /// The bytes end early.
    #[error("the raft message is cut short: {0}")]
    Truncated(#[from] TruncationError),
    /// The message has an unknown kind.
    #[error("a raft message of kind {0}, which this version does not know")]
    Kind(u32),
    /// An entry cannot be read.
    #[error("a raft message with an unreadable entry: {0}")]
    Entry(#[from] EntryError),
    /// The mask has numbers that no message has.
    #[error("a raft message with numbers this version does not know: {0:#06x}")]
    Numbers(u32),
    /// The offer of a snapshot cannot be read.
    #[error("a raft message with an unreadable snapshot: {0}")]
    Snapshot(protobuf::ProtobufError),
    /// A change of members cannot be read.
    #[error("a raft message with an unreadable change of members: {0}")]
    Change(protobuf::ProtobufError),
    /// A change of members has the old format, which no replica will propose.
    #[error("a raft message with a change of members in the old format, which no replica proposes")]
    OldChange,
}

/// Returns all numbers of a message in the order in which they are written.
fn number_fields(message: &Message) -> [u64; 11] {
    [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.request_snapshot,
        message.reject_hint,
        message.deprecated_priority,
        message.priority.cast_unsigned(),
    ]
}

/// Returns the number of bytes that [`encode`] writes.
pub(super) fn encoded_len(message: &Message) -> usize {
    let numbers = number_fields(message).iter().filter(|it| **it != 0).count();
    let entries = message.entries.iter();
    let entries = entries.map(|it| entry::AROUND_BYTES + it.context.len() + it.data.len());
    let snapshot = message.snapshot.as_ref();
    let snapshot = snapshot.map_or(0, |it| it.compute_size() as usize);
    FIXED_BYTES + 8 * numbers + message.context.len() + entries.sum::<usize>() + snapshot
}

/// Writes a message.
pub(super) fn encode(message: &Message, writer: &mut Writer) {
    let numbers = number_fields(message);
    let mut first = u32::try_from(message.msg_type.value()).expect("kinds count from zero");
    assert!(first < REJECT, "raft has some twenty kinds");
    first |= if message.reject { REJECT } else { 0 };
    for (number, place) in numbers.iter().zip(MASK_SHIFT..) {
        first |= u32::from(*number != 0) << place;
    }
    writer.write_u32(first);
    for number in numbers.iter().filter(|number| **number != 0) {
        writer.write_u64(*number);
    }
    writer.write_block(&message.context);
    writer.write_u32(u32::try_from(message.entries.len()).expect("a message is bounded"));
    for entry in &message.entries {
        entry::encode(entry, writer);
    }
    if let Some(snapshot) = message.snapshot.as_ref() {
        writer.write_raw(
            &snapshot
                .write_to_bytes()
                .expect("every field can be encoded"),
        );
    }
}

/// Reads a message to the end.
pub(super) fn decode(reader: &mut Reader) -> Result<Message, RaftMessageError> {
    let first = reader.read_u32()?;
    let kind = first & (REJECT - 1);
    let known = i32::try_from(kind).ok().and_then(MessageType::from_i32);
    let mut message = Message {
        msg_type: known.ok_or(RaftMessageError::Kind(kind))?,
        reject: first & REJECT != 0,
        ..Message::default()
    };
    decode_numbers(first >> MASK_SHIFT, reader, &mut message)?;
    message.context = reader.read_block()?;
    let count = reader.read_u32()? as usize;
    let mut entries = Vec::with_capacity(count.min(reader.remaining_len() / entry::AROUND_BYTES));
    for _ in 0..count {
        let entry = entry::decode(reader)?;
        check_change(&entry)?;
        entries.push(entry);
    }
    message.entries = entries.into();
    if reader.remaining_len() > 0 {
        let bytes = reader.read_rest();
        let snapshot = Snapshot::parse_from_carllerche_bytes(&bytes);
        message.snapshot = Some(snapshot.map_err(RaftMessageError::Snapshot)?).into();
    }
    Ok(message)
}

/// Checks that all replicas can apply an entry, because they must once it is committed.
fn check_change(entry: &Entry) -> Result<(), RaftMessageError> {
    match entry.get_entry_type() {
        EntryType::EntryNormal => Ok(()),
        EntryType::EntryConfChange => Err(RaftMessageError::OldChange),
        EntryType::EntryConfChangeV2 => {
            let read = ConfChangeV2::parse_from_carllerche_bytes(&entry.data);
            read.map(drop).map_err(RaftMessageError::Change)
        }
    }
}

fn decode_numbers(
    mask: u32,
    reader: &mut Reader,
    message: &mut Message,
) -> Result<(), RaftMessageError> {
    let mut numbers = [0; 11];
    if mask >> numbers.len() != 0 {
        return Err(RaftMessageError::Numbers(mask));
    }
    for (number, place) in numbers.iter_mut().zip(0..) {
        if (mask >> place) & 1 == 1 {
            *number = reader.read_u64()?;
        }
    }
    let priority;
    [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.request_snapshot,
        message.reject_hint,
        message.deprecated_priority,
        priority,
    ] = numbers;
    message.priority = priority.cast_signed();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damaged_bytes;
    use bytes::Bytes;

    /// A message with every field set to something of its own.
    fn full() -> Message {
        let mut message = Message {
            msg_type: MessageType::MsgSnapshot,
            to: 1,
            from: 2,
            term: 3,
            log_term: 4,
            index: 5,
            commit: 6,
            commit_term: 7,
            request_snapshot: 8,
            reject: true,
            reject_hint: 9,
            context: Bytes::from_static(b"context"),
            deprecated_priority: 10,
            priority: -11,
            ..Message::default()
        };
        let entry = Entry {
            entry_type: EntryType::EntryConfChangeV2,
            term: 12,
            index: u64::MAX,
            data: change().into(),
            context: Bytes::from_static(b"of the entry"),
            ..Entry::default()
        };
        message.entries = vec![entry, Entry::default()].into();
        message.mut_snapshot().data = Bytes::from_static(b"manifest");
        message.mut_snapshot().mut_metadata().index = 13;
        message
    }

    fn change() -> Vec<u8> {
        let change = ConfChangeV2 {
            context: Bytes::from_static(b"data"),
            ..ConfChangeV2::default()
        };
        change.write_to_bytes().unwrap()
    }

    fn written(message: &Message) -> Bytes {
        let mut writer = Writer::default();
        encode(message, &mut writer);
        writer.into_bytes().into()
    }

    #[test]
    fn every_field_is_read_as_written() {
        for message in [full(), Message::default()] {
            let bytes = written(&message);
            assert_eq!(bytes.len(), encoded_len(&message));
            let found = decode(&mut Reader::new(bytes)).unwrap();
            assert_eq!(
                found.write_to_bytes().unwrap(),
                message.write_to_bytes().unwrap()
            );
        }
    }

    #[test]
    fn a_shortened_message_is_refused_or_another() {
        let bytes = written(&full());
        for length in 0..bytes.len() {
            let found = decode(&mut Reader::new(bytes.slice(..length)));
            assert!(found.is_err() || found.unwrap() != full(), "{length} bytes");
        }
    }

    proptest::proptest! {
        #![proptest_config(damaged_bytes::proptest_config())]

        #[test]
        fn a_damaged_message_is_refused_or_another(
            bytes in damaged_bytes::arbitrary_damage(written(&full()))
        ) {
            if let Ok(message) = decode(&mut Reader::new(bytes)) {
                let again = decode(&mut Reader::new(written(&message)));
                proptest::prop_assert_eq!(again.ok(), Some(message));
            }
        }
    }

    fn with_change(entry_type: EntryType, data: Vec<u8>) -> Result<Message, RaftMessageError> {
        let data = data.into();
        let entry = Entry {
            entry_type,
            data,
            ..Entry::default()
        };
        let message = Message {
            entries: vec![entry].into(),
            ..Message::default()
        };
        decode(&mut Reader::new(written(&message)))
    }

    /// The advisory RUSTSEC-2024-0437: other releases of the protobuf crate skip a group within a
    /// group by a call of themselves, and a megabyte of openings ends the process.
    #[test]
    fn groups_within_groups_are_refused_and_not_descended_into() {
        let nested = vec![(9 << 3) | 3; 1 << 20];
        // The same as a field of the number, in which the reader does descend.
        let field = |number: u8, within: &[u8]| {
            let mut bytes = vec![(number << 3) | 2];
            let mut length = within.len();
            while length >= 0x80 {
                bytes.push(length as u8 | 0x80);
                length >>= 7;
            }
            bytes.push(length as u8);
            [bytes, within.to_vec()].concat()
        };
        let (metadata, members) = (field(2, &nested), field(2, &field(1, &nested)));
        for offer in [&nested, &metadata, &members] {
            let bytes = [written(&Message::default()).to_vec(), offer.clone()].concat();
            let refused = decode(&mut Reader::new(bytes.into())).unwrap_err();
            assert!(matches!(refused, RaftMessageError::Snapshot(_)));
        }
        for change in [&nested, &metadata] {
            let refused = with_change(EntryType::EntryConfChangeV2, change.clone());
            assert!(matches!(refused, Err(RaftMessageError::Change(_))));
        }
    }

    #[test]
    fn changes_of_members_that_none_can_apply_are_refused() {
        assert!(with_change(EntryType::EntryConfChangeV2, change()).is_ok());
        // A change of which the transition is no number.
        let unreadable = with_change(EntryType::EntryConfChangeV2, vec![10, 0]);
        assert!(matches!(unreadable, Err(RaftMessageError::Change(_))));
        let old = with_change(EntryType::EntryConfChange, Vec::new());
        assert!(matches!(old, Err(RaftMessageError::OldChange)));
    }

    #[test]
    fn numbers_of_a_later_version_are_refused() {
        let mut writer = Writer::default();
        writer.write_u32(1 << 31);
        let refused = decode(&mut Reader::new(writer.into_bytes().into()));
        assert!(
            matches!(refused, Err(RaftMessageError::Numbers(_))),
            "{refused:?}"
        );
    }
}
