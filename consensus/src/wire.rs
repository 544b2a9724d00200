//! What replicas say to each other: one frame, checksummed, so that a damaged one is dropped.
//!
//! The transport authenticates the sender; the checksum only keeps garbage out of raft, which
//! trusts its messages.

mod raft_message;

use bytes::Bytes;
use raft::eraftpb::Message;

use crate::checkpoint::Checkpoint;
use crate::codec::{Reader, TruncationError, Writer};
use crate::history::Digest;
use crate::ids::{LogIndex, LogTime, ReplicaId};
use crate::voucher::Certificate;

pub use raft_message::RaftMessageError;

/// Layout version of a frame.
const VERSION: u8 = 6;

const RAFT: u8 = 1;
const CHECKPOINT: u8 = 2;
const CHUNK_REQUEST: u8 = 3;
const CHUNK: u8 = 4;
const CLOCK: u8 = 5;
const VOUCHERS: u8 = 6;
const VOUCHER_REQUEST: u8 = 7;

/// Bytes of a checksum. A CRC finds what a faulty network or memory does, and costs a tenth of a
/// hash; who would forge messages meets the transport's authentication.
const CHECKSUM_BYTES: usize = 4;

/// A frame for one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Whom it is for.
    pub to: ReplicaId,
    /// What to hand to [`crate::Replica::step`] there.
    pub bytes: Bytes,
}

/// What a frame says.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// Between the raft cores.
    Raft(Box<Message>),
    /// What the sender's state was at an index.
    Checkpoint(Checkpoint),
    /// The sender wants a part of a snapshot.
    ChunkRequest {
        /// Digest of the whole snapshot.
        snapshot: Digest,
        /// Which part.
        number: u32,
    },
    /// A part of a snapshot.
    Chunk {
        /// Digest of the whole snapshot.
        snapshot: Digest,
        /// Which part.
        number: u32,
        /// The part.
        bytes: Bytes,
    },
    /// What the sender's clock shows.
    Clock(LogTime),
    /// Members' signatures under a state at an index.
    Vouchers(Certificate),
    /// The sender lacks signatures under its state at an index.
    VoucherRequest(LogIndex),
}

/// Raft's messages, each for the peer it names.
pub(crate) fn envelopes(messages: Vec<Message>) -> Vec<Envelope> {
    let envelope = |message: Message| {
        let to = ReplicaId::new(message.to)?;
        Some(Envelope {
            to,
            bytes: PeerMessage::Raft(Box::new(message)).encode(),
        })
    };
    messages.into_iter().filter_map(envelope).collect()
}

/// A frame that is none.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Cut short.
    #[error("the frame is cut short: {0}")]
    Truncated(#[from] TruncationError),
    /// Damaged on its way.
    #[error("the frame's checksum does not match")]
    Checksum,
    /// A peer of another version.
    #[error("the peer speaks version {found} of the replication protocol, this one {VERSION}")]
    Version {
        /// The peer's.
        found: u8,
    },
    /// Unknown kind.
    #[error("a frame of kind {0}, which this version does not know")]
    Kind(u8),
    /// No raft message.
    #[error(transparent)]
    Raft(#[from] RaftMessageError),
}

impl PeerMessage {
    /// The message as a frame.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(self.room());
        writer.u8(VERSION);
        writer.u8(match self {
            Self::Raft(_) => RAFT,
            Self::Checkpoint(_) => CHECKPOINT,
            Self::ChunkRequest { .. } => CHUNK_REQUEST,
            Self::Chunk { .. } => CHUNK,
            Self::Clock(_) => CLOCK,
            Self::Vouchers(_) => VOUCHERS,
            Self::VoucherRequest(_) => VOUCHER_REQUEST,
        });
        writer.raw(&[0; CHECKSUM_BYTES]);
        match self {
            Self::Raft(message) => raft_message::encode(message, &mut writer),
            Self::Checkpoint(checkpoint) => checkpoint.encode(&mut writer),
            Self::ChunkRequest { snapshot, number } => {
                writer.raw(&snapshot.0);
                writer.u32(*number);
            }
            Self::Chunk {
                snapshot,
                number,
                bytes,
            } => {
                writer.raw(&snapshot.0);
                writer.u32(*number);
                writer.raw(bytes);
            }
            Self::Clock(shown) => writer.u64(shown.0),
            Self::Vouchers(certificate) => certificate.encode(&mut writer),
            Self::VoucherRequest(index) => writer.u64(index.0),
        }
        seal(writer.finish())
    }

    /// How many bytes the frame will have: with no room to spare it becomes [`Bytes`] as it is.
    fn room(&self) -> usize {
        let content = match self {
            Self::Raft(message) => raft_message::room(message),
            Self::Checkpoint(_) => 88,
            Self::ChunkRequest { .. } => 36,
            Self::Clock(_) | Self::VoucherRequest(_) => 8,
            Self::Vouchers(certificate) => certificate.room(),
            Self::Chunk { bytes, .. } => bytes.len() + 36,
        };
        content + 2 + CHECKSUM_BYTES
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// When it is damaged or of another version.
    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let found = reader.u8()?;
        if found != VERSION {
            return Err(WireError::Version { found });
        }
        let kind = reader.u8()?;
        let sum = reader.u32()?.to_le_bytes();
        if checksum(kind, reader.ahead()) != sum {
            return Err(WireError::Checksum);
        }
        let mut fields = reader;
        Ok(match kind {
            RAFT => Self::Raft(Box::new(raft_message::decode(&mut fields)?)),
            CHECKPOINT => Self::Checkpoint(Checkpoint::decode(&mut fields)?),
            CHUNK_REQUEST => Self::ChunkRequest {
                snapshot: Digest(fields.digest()?),
                number: fields.u32()?,
            },
            CHUNK => Self::Chunk {
                snapshot: Digest(fields.digest()?),
                number: fields.u32()?,
                bytes: fields.rest(),
            },
            CLOCK => Self::Clock(LogTime(fields.u64()?)),
            VOUCHERS => Self::Vouchers(Certificate::decode(&mut fields)?),
            VOUCHER_REQUEST => Self::VoucherRequest(LogIndex(fields.u64()?)),
            kind => return Err(WireError::Kind(kind)),
        })
    }
}

/// Writes the checksum into its place.
fn seal(mut frame: Vec<u8>) -> Bytes {
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
