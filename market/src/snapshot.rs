//! The whole state as bytes: versioned, canonical, refused by name where it can't be read.

use crate::digest::VecFlavor;
use crate::exchange::Exchange;

/// What every snapshot begins with; the two bytes after it are the version.
const MAGIC: &[u8; 8] = b"soukmkt\0";

/// The version this build writes.
const VERSION: u16 = 9;

/// Room for a small market at once: the digest's open block is up to half of it.
const ROOM_BYTES: usize = 128 << 10;

/// Why bytes are not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFault {
    /// They don't begin as a snapshot does.
    #[error("these {bytes} bytes are no market snapshot")]
    NotASnapshot {
        /// How many bytes were given.
        bytes: usize,
    },
    /// Written by another version.
    #[error("the snapshot has version {found}, this build reads {VERSION}")]
    Version {
        /// The version found.
        found: u16,
    },
    /// The content can't be decoded, or has bytes after it.
    #[error("the snapshot's content is damaged")]
    Damaged,
}

impl Exchange {
    /// The whole state, canonical: equal states give equal bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ROOM_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        debug_assert!(self.is_sound(), "what is written can be read again");
        postcard::serialize_with_flavor(self, VecFlavor(&mut bytes))
            .expect("plain data in memory always encodes");
        bytes
    }

    /// The state [`Self::snapshot`] wrote. The bytes must come from a source the caller trusts,
    /// such as its own disk or a verified manifest.
    ///
    /// # Errors
    /// When the bytes are no snapshot, of another version, or damaged.
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
                exchange.rebuild();
                Ok(exchange)
            }
            _ => Err(SnapshotFault::Damaged),
        }
    }
}
