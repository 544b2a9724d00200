//! Encodes the messages between replicas: one frame each, with a checksum, so that a replica drops
//! damaged ones.
//!
//! The transport must authenticate the sender; the checksum only keeps damaged bytes from raft,
//! which trusts its messages.

mod raft_message;

use bytes::Bytes;
use raft::eraftpb::Message;

use crate::checkpoint::Checkpoint;
use crate::codec::{Reader, TruncationError, Writer};
use crate::ids::ReplicaId;
use crate::voucher::Certificate;
use souk_proof::Digest;
use souk_proof::{LogIndex, LogTime};

pub use raft_message::RaftMessageError;

/// The layout version of a frame.
const VERSION: u8 = 8;

const RAFT: u8 = 1;
const CHECKPOINT: u8 = 2;
const PART_REQUEST: u8 = 3;
const PART: u8 = 4;
const CLOCK: u8 = 5;
const VOUCHERS: u8 = 6;
const VOUCHER_REQUEST: u8 = 7;
const COSIGNED: u8 = 8;

/// The bytes of a checksum. A CRC detects the errors of a faulty network or memory and costs a
/// tenth of a hash; the transport's authentication stops forgers.
const CHECKSUM_BYTES: usize = 4;

/// A frame for one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The replica that must get the frame.
    pub to: ReplicaId,
    /// The bytes to pass to [`crate::Replica::step`] of that replica.
    pub bytes: Bytes,
}

/// The content of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// A message between the raft cores.
    Raft(Box<Message>),
    /// The sender's state at an index.
    Checkpoint(Checkpoint),
    /// A request for a part of a snapshot.
    PartRequest {
        /// The digest of the whole snapshot.
        snapshot: Digest,
        /// The number of the part.
        number: u32,
    },
    /// A part of a snapshot.
    Part {
        /// The digest of the whole snapshot.
        snapshot: Digest,
        /// The number of the part.
        number: u32,
        /// The bytes of the part.
        bytes: Bytes,
    },
    /// The sender's clock.
    Clock(LogTime),
    /// Members' signatures under a state at an index.
    Vouchers(Certificate),
    /// A request for the signatures under the sender's state at an index.
    VoucherRequest(LogIndex),
    /// A tree head that the sender cosigned, as a note; see [`cosigned_note`].
    Cosigned(Bytes),
}

/// Encodes raft's messages, each for the peer that it names.
pub(crate) fn to_envelopes(messages: Vec<Message>) -> Vec<Envelope> {
    let envelope = |message: Message| {
        let to = ReplicaId::new(message.to)?;
        Some(Envelope {
            to,
            bytes: PeerMessage::Raft(Box::new(message)).encode(),
        })
    };
    messages.into_iter().filter_map(envelope).collect()
}

/// Why bytes are not a frame.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The bytes end early.
    #[error("the frame is cut short: {0}")]
    Truncated(#[from] TruncationError),
    /// The frame was damaged on its way.
    #[error("the frame's checksum does not match")]
    Checksum,
    /// The peer uses another version of the protocol.
    #[error("the peer speaks version {found} of the replication protocol, this one {VERSION}")]
    Version {
        /// The peer's version.
        found: u8,
    },
    /// The frame has an unknown kind.
    #[error("a frame of kind {0}, which this version does not know")]
    Kind(u8),
    /// The raft message cannot be read.
    #[error(transparent)]
    Raft(#[from] RaftMessageError),
}

impl PeerMessage {
    /// Encodes the message as a frame.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(self.encoded_len());
        writer.write_u8(VERSION);
        writer.write_u8(match self {
            Self::Raft(_) => RAFT,
            Self::Checkpoint(_) => CHECKPOINT,
            Self::PartRequest { .. } => PART_REQUEST,
            Self::Part { .. } => PART,
            Self::Clock(_) => CLOCK,
            Self::Vouchers(_) => VOUCHERS,
            Self::VoucherRequest(_) => VOUCHER_REQUEST,
            Self::Cosigned(_) => COSIGNED,
        });
        writer.write_raw(&[0; CHECKSUM_BYTES]);
        match self {
            Self::Raft(message) => raft_message::encode(message, &mut writer),
            Self::Checkpoint(checkpoint) => checkpoint.encode(&mut writer),
            Self::PartRequest { snapshot, number } => {
                writer.write_raw(&snapshot.0);
                writer.write_u32(*number);
            }
            Self::Part {
                snapshot,
                number,
                bytes,
            } => {
                writer.write_raw(&snapshot.0);
                writer.write_u32(*number);
                writer.write_raw(bytes);
            }
            Self::Clock(shown) => writer.write_u64(shown.0),
            Self::Vouchers(certificate) => certificate.encode(&mut writer),
            Self::VoucherRequest(index) => writer.write_u64(index.0),
            Self::Cosigned(note) => writer.write_raw(note),
        }
        write_checksum(writer.into_bytes())
    }

    /// Returns the frame's length: a writer of exact capacity turns into [`Bytes`] without a copy.
    fn encoded_len(&self) -> usize {
        let content = match self {
            Self::Raft(message) => raft_message::encoded_len(message),
            Self::Checkpoint(_) => 88,
            Self::PartRequest { .. } => 36,
            Self::Clock(_) | Self::VoucherRequest(_) => 8,
            Self::Vouchers(certificate) => certificate.encoded_len(),
            Self::Part { bytes, .. } => bytes.len() + 36,
            Self::Cosigned(note) => note.len(),
        };
        content + 2 + CHECKSUM_BYTES
    }

    /// Decodes a frame.
    ///
    /// # Errors
    /// If the frame is damaged or of another version.
    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let found = reader.read_u8()?;
        if found != VERSION {
            return Err(WireError::Version { found });
        }
        let kind = reader.read_u8()?;
        let sum = reader.read_u32()?.to_le_bytes();
        if checksum(kind, reader.unread_bytes()) != sum {
            return Err(WireError::Checksum);
        }
        let mut fields = reader;
        Ok(match kind {
            RAFT => Self::Raft(Box::new(raft_message::decode(&mut fields)?)),
            CHECKPOINT => Self::Checkpoint(Checkpoint::decode(&mut fields)?),
            PART_REQUEST => Self::PartRequest {
                snapshot: Digest(fields.read_digest()?),
                number: fields.read_u32()?,
            },
            PART => Self::Part {
                snapshot: Digest(fields.read_digest()?),
                number: fields.read_u32()?,
                bytes: fields.read_rest(),
            },
            CLOCK => Self::Clock(LogTime(fields.read_u64()?)),
            VOUCHERS => Self::Vouchers(Certificate::decode(&mut fields)?),
            VOUCHER_REQUEST => Self::VoucherRequest(LogIndex(fields.read_u64()?)),
            COSIGNED => Self::Cosigned(fields.read_rest()),
            kind => return Err(WireError::Kind(kind)),
        })
    }
}

/// Returns the note in a frame of kind [`PeerMessage::Cosigned`]. No replica needs it, so the
/// caller can keep it from the replica's queue.
#[must_use]
pub fn cosigned_note(frame: &Bytes) -> Option<Bytes> {
    if frame.get(1) != Some(&COSIGNED) {
        return None;
    }
    match PeerMessage::decode(frame.clone()) {
        Ok(PeerMessage::Cosigned(note)) => Some(note),
        _ => None,
    }
}

/// Writes the checksum into its place.
fn write_checksum(mut frame: Vec<u8>) -> Bytes {
    let sum = checksum(frame[1], &frame[2 + CHECKSUM_BYTES..]);
    frame[2..2 + CHECKSUM_BYTES].copy_from_slice(&sum);
    Bytes::from(frame)
}

fn checksum(kind: u8, content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(content);
    hasher.finalize().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flipped_bit_anywhere_is_refused() {
        let message = Message {
            to: 2,
            from: 1,
            term: 7,
            ..Message::default()
        };
        let frame = PeerMessage::Raft(Box::new(message)).encode();
        assert!(PeerMessage::decode(frame.clone()).is_ok());
        for place in 0..frame.len() {
            let mut damaged = frame.to_vec();
            damaged[place] ^= 4;
            assert!(PeerMessage::decode(damaged.into()).is_err(), "byte {place}");
        }
    }
}
