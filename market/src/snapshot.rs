//! Snapshots of the market: encodes the whole state of the exchange as bytes, and restores it.
//!
//! The encoding is canonical, because replicas compare the hashes of their snapshots, and it has a
//! version, because a replica must refuse the snapshot of another build instead of misreading it.

use crate::digest::VecFlavor;
use crate::exchange::Exchange;

/// The first bytes of every snapshot; the next two bytes are the version.
const MAGIC: &[u8; 8] = b"soukmkt\0";

/// The version that this build writes, and the only one that it can read.
const VERSION: u16 = 12;

/// The initial capacity, enough for a small market: the digest's open block is up to half of it.
const ROOM_BYTES: usize = 128 << 10;

/// Why the exchange cannot restore from bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFault {
    /// The bytes do not begin as a snapshot does.
    #[error("these {bytes} bytes are not a market snapshot")]
    NotASnapshot {
        /// The number of bytes.
        bytes: usize,
    },
    /// Another version wrote the snapshot.
    #[error("the snapshot has version {found}, this build reads {VERSION}")]
    Version {
        /// The version in the snapshot.
        found: u16,
    },
    /// The content cannot be decoded, is not consistent, or has bytes after it.
    #[error("the snapshot's content is damaged")]
    Damaged,
}

impl Exchange {
    /// Encodes the whole state. Equal states give equal bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ROOM_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        debug_assert!(self.is_sound(), "what is written can be read again");
        postcard::serialize_with_flavor(self, VecFlavor(&mut bytes))
            .expect("plain data in memory always encodes");
        bytes
    }

    /// Decodes a state that [`Self::snapshot`] encoded. The bytes must come from a source that you
    /// trust, such as your own disk or a verified manifest.
    ///
    /// # Errors
    /// If the bytes are no snapshot, have another version, or are damaged.
    pub fn restore(bytes: &[u8]) -> Result<Self, SnapshotFault> {
        let not_one = SnapshotFault::NotASnapshot { bytes: bytes.len() };
        let rest = bytes.strip_prefix(MAGIC).ok_or(not_one.clone())?;
        let (version, content) = rest.split_first_chunk().ok_or(not_one)?;
        let found = u16::from_le_bytes(*version);
        if found != VERSION {
            return Err(SnapshotFault::Version { found });
        }
        match postcard::take_from_bytes::<Self>(content) {
            Ok((mut exchange, [])) if exchange.is_sound() => {
                exchange.rebuild_indices();
                Ok(exchange)
            }
            _ => Err(SnapshotFault::Damaged),
        }
    }
}
