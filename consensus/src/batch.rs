//! The batch: the commands of one validator that travel together as the content of one log entry,
//! packed, numbered and stamped with a time.
//!
//! The number (origin, incarnation, sequence) lets every replica apply a batch once even if its
//! origin proposed it twice. The time has a fixed position, so that the leader can stamp a batch
//! that another validator forwarded.

use bytes::Bytes;

use crate::codec::{Reader, TruncationError, Writer};
use crate::ids::{Incarnation, ReplicaId};
use souk_proof::LogTime;

/// The layout version of an entry; a replica that does not know the version stops.
const VERSION: u8 = 1;

/// The position of the time's eight bytes.
const TIME_AT: usize = 1;

/// The unique name of a batch in the whole life of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchId {
    /// The replica that proposed the batch.
    pub origin: ReplicaId,
    /// The incarnation of that replica.
    pub incarnation: Incarnation,
    /// The batch's number in that incarnation, from 1.
    pub sequence: u64,
}

/// A batch of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The leader's clock when it appended the batch to its log.
    pub time: LogTime,
    /// The batch's unique name.
    pub id: BatchId,
    /// The lowest sequence for which the origin still waits; replicas can forget lower ones.
    /// It must not exceed the batch's own sequence.
    pub floor: u64,
    /// The commands in the order of application; without commands the batch only advances time.
    pub commands: Vec<Bytes>,
}

/// Why bytes are not a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The entry ends early.
    #[error("the entry is cut short: {0}")]
    Truncated(#[from] TruncationError),
    /// The entry has another layout version.
    #[error("an entry of layout {found}, this version reads {VERSION}")]
    Version {
        /// The version found.
        found: u8,
    },
    /// The origin is replica zero.
    #[error("the entry names no origin")]
    NoOrigin,
    /// Bytes follow the last command.
    #[error("{0} bytes after the last command")]
    Trailing(usize),
    /// The floor is above the batch itself, although its origin still waits for the batch.
    #[error("batch {sequence} states the floor {floor}, which is above the batch")]
    Floor {
        /// The batch's sequence.
        sequence: u64,
        /// The batch's floor.
        floor: u64,
    },
}

impl Batch {
    /// Encodes the batch as an entry's data.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let size: usize = self.commands.iter().map(|command| command.len() + 4).sum();
        let mut writer = Writer::with_capacity(size + 48);
        writer.write_u8(VERSION);
        writer.write_u64(self.time.0);
        writer.write_u64(self.id.origin.get());
        writer.write_u64(self.id.incarnation.0);
        writer.write_u64(self.id.sequence);
        writer.write_u64(self.floor);
        writer.write_u32(u32::try_from(self.commands.len()).expect("a batch is bounded"));
        for command in &self.commands {
            writer.write_block(command);
        }
        writer.into_bytes()
    }

    /// Decodes an entry's data.
    ///
    /// # Errors
    /// If the bytes are not exactly one batch.
    pub fn decode(bytes: Bytes) -> Result<Self, BatchError> {
        let mut reader = Reader::new(bytes);
        let BatchHeader {
            time,
            id,
            floor,
            count,
        } = BatchHeader::read(&mut reader)?;
        let mut commands = Vec::with_capacity(count.min(reader.remaining_len() / 4));
        for _ in 0..count {
            commands.push(reader.read_block()?);
        }
        match reader.remaining_len() {
            0 => Ok(Self {
                time,
                id,
                floor,
                commands,
            }),
            left => Err(BatchError::Trailing(left)),
        }
    }
}

/// The fields before a batch's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// See [`Batch::time`].
    pub time: LogTime,
    /// See [`Batch::id`].
    pub id: BatchId,
    /// See [`Batch::floor`].
    pub floor: u64,
    /// The number of commands.
    pub count: usize,
}

impl BatchHeader {
    /// Reads the head of an entry's data after checking that it holds exactly one batch.
    ///
    /// # Errors
    /// If [`Batch::decode`] would fail.
    pub fn from_entry_data(bytes: &Bytes) -> Result<Self, BatchError> {
        let mut reader = Reader::new(bytes.clone());
        let head = Self::read(&mut reader)?;
        for _ in 0..head.count {
            reader.skip_block()?;
        }
        match reader.remaining_len() {
            0 => Ok(head),
            left => Err(BatchError::Trailing(left)),
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, BatchError> {
        let found = reader.read_u8()?;
        if found != VERSION {
            return Err(BatchError::Version { found });
        }
        let time = LogTime(reader.read_u64()?);
        let origin = ReplicaId::new(reader.read_u64()?).ok_or(BatchError::NoOrigin)?;
        let incarnation = Incarnation(reader.read_u64()?);
        let sequence = reader.read_u64()?;
        let floor = reader.read_u64()?;
        if floor > sequence {
            return Err(BatchError::Floor { sequence, floor });
        }
        let count = reader.read_u32()? as usize;
        let id = BatchId {
            origin,
            incarnation,
            sequence,
        };
        Ok(Self {
            time,
            id,
            floor,
            count,
        })
    }
}

/// Writes the leader's time into a batch's bytes; bytes too short for it stay unchanged.
#[must_use]
pub fn restamp_batch(bytes: &Bytes, time: LogTime) -> Bytes {
    let mut stamped = bytes.to_vec();
    if let Some(place) = stamped.get_mut(TIME_AT..TIME_AT + 8) {
        place.copy_from_slice(&time.0.to_le_bytes());
    }
    Bytes::from(stamped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        Batch {
            time: LogTime(5),
            id: BatchId {
                origin: ReplicaId::new(3).unwrap(),
                incarnation: Incarnation(2),
                sequence: 9,
            },
            floor: 8,
            commands: vec![
                Bytes::from_static(b"bid"),
                Bytes::new(),
                Bytes::from_static(b"ask"),
            ],
        }
    }

    #[test]
    fn a_batch_is_read_as_written() {
        assert_eq!(Batch::decode(batch().encode().into()), Ok(batch()));
    }

    #[test]
    fn the_leader_stamps_time_in_place() {
        let stamped = restamp_batch(&batch().encode().into(), LogTime(77));
        assert_eq!(
            Batch::decode(stamped),
            Ok(Batch {
                time: LogTime(77),
                ..batch()
            })
        );
    }

    #[test]
    fn a_head_is_what_the_whole_batch_says() {
        let bytes = Bytes::from(batch().encode());
        let head = BatchHeader::from_entry_data(&bytes).unwrap();
        assert_eq!(
            (head.time, head.id, head.floor),
            (LogTime(5), batch().id, 8)
        );
        for length in 0..bytes.len() {
            let part = bytes.slice(..length);
            assert_eq!(
                BatchHeader::from_entry_data(&part).err(),
                Batch::decode(part).err(),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn a_batch_that_gives_itself_up_is_refused() {
        let muting = Batch {
            floor: u64::MAX,
            ..batch()
        };
        let fault = BatchError::Floor {
            sequence: 9,
            floor: u64::MAX,
        };
        assert_eq!(Batch::decode(muting.encode().into()), Err(fault));
    }

    #[test]
    fn every_shortened_batch_is_refused() {
        let bytes = Bytes::from(batch().encode());
        for length in 0..bytes.len() {
            assert!(
                Batch::decode(bytes.slice(..length)).is_err(),
                "{length} bytes"
            );
        }
    }
}
