//! The manifest of a snapshot: the list of its parts, each with its digest. A leader sends it
//! first, so that a follower can check each part when it arrives.

use std::ops::Range;

use bytes::Bytes;

use crate::codec::{Reader, TruncationError, Writer};
use crate::voucher::Certificate;
use souk_proof::Digest;

/// The most parts of a manifest: with parts of 256 KiB, a snapshot of 16 GiB.
const PARTS_MAX: u32 = 65_536;

/// The most bytes of a part, which one message can carry.
const PART_BYTES_MAX: u64 = 1 << 20;

/// The parts of one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    digest: Digest,
    total_bytes: u64,
    chunk_bytes: u64,
    parts: Vec<Digest>,
}

/// Why bytes are not a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes end early.
    #[error("it is cut short: {0}")]
    Truncated(#[from] TruncationError),
    /// The numbers contradict each other.
    #[error("{parts} parts of {chunk_bytes} bytes do not make {total_bytes} bytes")]
    Shape {
        /// The number of parts listed.
        parts: u32,
        /// The bytes of one part.
        chunk_bytes: u64,
        /// The bytes of the whole snapshot.
        total_bytes: u64,
    },
}

impl Manifest {
    /// Creates the manifest of `bytes` with parts of `chunk_bytes` bytes, which must not be 0.
    #[must_use]
    pub fn for_snapshot(bytes: &Bytes, chunk_bytes: usize) -> Self {
        assert!(chunk_bytes > 0, "a part is not empty");
        Self {
            digest: digest_of(bytes),
            total_bytes: bytes.len() as u64,
            chunk_bytes: chunk_bytes as u64,
            parts: bytes.chunks(chunk_bytes).map(digest_of).collect(),
        }
    }

    /// Returns the digest of the whole snapshot, which names it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the number of parts.
    #[must_use]
    pub fn part_count(&self) -> u32 {
        u32::try_from(self.parts.len()).expect("bounded when it was read")
    }

    /// Returns the byte range of a part in the snapshot.
    #[must_use]
    pub fn part_range(&self, number: u32) -> Option<Range<usize>> {
        if number >= self.part_count() {
            return None;
        }
        let start = u64::from(number) * self.chunk_bytes;
        let end = (start + self.chunk_bytes).min(self.total_bytes);
        Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    /// Returns whether `bytes` are this part.
    #[must_use]
    pub fn is_part(&self, number: u32, bytes: &[u8]) -> bool {
        let fits = self
            .part_range(number)
            .is_some_and(|it| it.len() == bytes.len());
        fits && self.parts.get(number as usize) == Some(&digest_of(bytes))
    }

    /// Encodes the manifest.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.write_raw(&self.digest.0);
        writer.write_u64(self.total_bytes);
        writer.write_u64(self.chunk_bytes);
        writer.write_u32(self.part_count());
        for part in &self.parts {
            writer.write_raw(&part.0);
        }
        writer.into_bytes().into()
    }

    /// Decodes bytes that [`Manifest::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes end early or the numbers contradict each other.
    pub fn decode(bytes: Bytes) -> Result<Self, ManifestError> {
        let mut reader = Reader::new(bytes);
        let digest = Digest(reader.read_digest()?);
        let (total_bytes, chunk_bytes) = (reader.read_u64()?, reader.read_u64()?);
        let parts = reader.read_u32()?;
        let fits = (1..=PART_BYTES_MAX).contains(&chunk_bytes)
            && parts <= PARTS_MAX
            && total_bytes.div_ceil(chunk_bytes) == u64::from(parts);
        if !fits {
            return Err(ManifestError::Shape {
                parts,
                chunk_bytes,
                total_bytes,
            });
        }
        let parts = (0..parts)
            .map(|_| reader.read_digest().map(Digest))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            digest,
            total_bytes,
            chunk_bytes,
            parts,
        })
    }
}

/// A snapshot that one replica offers to another: its certificate and its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOffer {
    /// The statement about the snapshot, with its signatures.
    pub certificate: Certificate,
    /// The list of its parts.
    pub manifest: Manifest,
}

impl SnapshotOffer {
    /// Encodes the offer.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::default();
        self.certificate.encode(&mut writer);
        writer.write_block(&self.manifest.encode());
        writer.into_bytes().into()
    }

    /// Decodes bytes that [`SnapshotOffer::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes end early or the numbers of the manifest contradict each other.
    pub fn decode(bytes: Bytes) -> Result<Self, ManifestError> {
        let mut reader = Reader::new(bytes);
        Ok(Self {
            certificate: Certificate::decode(&mut reader)?,
            manifest: Manifest::decode(reader.read_block()?)?,
        })
    }
}

fn digest_of(bytes: impl AsRef<[u8]>) -> Digest {
    Digest(*blake3::hash(bytes.as_ref()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_make_the_whole() {
        let bytes: Bytes = (0..=255).cycle().take(1_000).collect::<Vec<u8>>().into();
        let manifest = Manifest::for_snapshot(&bytes, 300);
        assert_eq!(Manifest::decode(manifest.encode()), Ok(manifest.clone()));
        assert_eq!(manifest.part_count(), 4);
        let mut whole = Vec::new();
        for number in 0..4 {
            let part = &bytes[manifest.part_range(number).unwrap()];
            assert!(manifest.is_part(number, part));
            assert!(!manifest.is_part(number, &part[1..]));
            whole.extend_from_slice(part);
        }
        assert_eq!(whole, bytes);
        assert_eq!(manifest.part_range(4), None);
    }

    #[test]
    fn parts_that_no_message_carries_are_refused() {
        let bytes = Bytes::from_static(b"books and balances");
        let huge = Manifest {
            chunk_bytes: u64::MAX,
            ..Manifest::for_snapshot(&bytes, 300)
        };
        assert!(Manifest::decode(huge.encode()).is_err());
        assert_eq!(huge.part_range(u32::MAX), None);
    }

    #[test]
    fn a_part_of_another_length_is_none() {
        let longer = Bytes::from_static(b"books and balances, and more");
        let manifest = Manifest {
            parts: vec![digest_of(&longer)],
            ..Manifest::for_snapshot(&longer.slice(..18), 300)
        };
        assert!(!manifest.is_part(0, &longer));
    }
}
