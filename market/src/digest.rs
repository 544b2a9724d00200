//! Computes the exchange's running digest: BLAKE3 chained over all inputs and outputs, so that
//! replicas can compare what they did by one hash.
//!
//! The chain gathers bytes and hashes them in blocks, because BLAKE3 is several times faster on
//! long inputs: about 64 KiB fill its widest form. Each block begins with the digest of the block
//! before it. The bytes alone determine the end of each block, so every replica will hash the same.

use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};

use crate::ids::Digest;

/// The bytes that one block hashes, including the digest of the block before it.
const BLOCK: usize = 65_536;

/// The length of a digest in bytes.
const DIGEST: usize = 32;

/// The chain so far: the digest of the last full block, and the bytes after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chain {
    #[serde(with = "raw")]
    open: Vec<u8>,
}

/// Encodes bytes as one piece. Postcard writes the same encoding as for single bytes, many times
/// faster.
mod raw {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        from.deserialize_bytes(BytesVisitor)
    }

    struct BytesVisitor;

    impl Visitor<'_> for BytesVisitor {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            // Reserve capacity for a full block.
            let mut open = Vec::with_capacity(bytes.len().max(super::BLOCK));
            open.extend_from_slice(bytes);
            Ok(open)
        }
    }
}

impl Default for Chain {
    fn default() -> Self {
        let mut open = Vec::with_capacity(BLOCK);
        open.resize(DIGEST, 0);
        Self { open }
    }
}

impl Chain {
    /// Returns whether the open block has a valid length, because a snapshot can hold anything.
    pub(crate) fn is_sound(&self) -> bool {
        (DIGEST..BLOCK).contains(&self.open.len())
    }

    /// Returns the current digest. This hashes one block at most.
    pub(crate) fn current_digest(&self) -> Digest {
        assert!(self.open.len() >= DIGEST, "a block begins with a digest");
        Digest(*blake3::hash(&self.open).as_bytes())
    }

    pub(crate) fn extend(&mut self, link: &impl Serialize) {
        let before = self.open.len();
        assert!(
            (DIGEST..BLOCK).contains(&before),
            "a block is begun and not full"
        );
        postcard::serialize_with_flavor(link, VecFlavor(&mut self.open))
            .expect("plain data in memory always encodes");
        debug_assert!(self.open.len() > before, "every link has bytes");
        while self.open.len() >= BLOCK {
            self.close_block();
        }
    }

    /// Hashes the first full block; the bytes after it begin the next one.
    fn close_block(&mut self) {
        assert!(self.open.len() >= BLOCK, "only a full block is closed");
        let head = blake3::hash(&self.open[..BLOCK]);
        let rest = self.open.len() - BLOCK;
        self.open.copy_within(BLOCK.., DIGEST);
        self.open[..DIGEST].copy_from_slice(head.as_bytes());
        self.open.truncate(DIGEST + rest);
        assert!(self.open.len() >= DIGEST, "the next block has begun");
    }
}

/// Appends Postcard's bytes to a vector.
pub(crate) struct VecFlavor<'a>(pub(crate) &'a mut Vec<u8>);

impl Flavor for VecFlavor<'_> {
    type Output = ();

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        match *bytes {
            // Most numbers are short: a call that copies them would cost more than the copy.
            [one] => self.0.push(one),
            [one, two] => self.0.extend_from_slice(&[one, two]),
            [one, two, three] => self.0.extend_from_slice(&[one, two, three]),
            _ => self.0.extend_from_slice(bytes),
        }
        Ok(())
    }

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_chained_and_a_link_may_cross_their_border() {
        let mut chain = Chain::default();
        let link = [7_u8; 1_000];
        let mut bytes = vec![0; DIGEST];
        for _ in 0..100 {
            chain.extend(&link.as_slice());
            // Postcard writes a slice's length first, 1,000 in two bytes.
            bytes.extend_from_slice(&[0xe8, 0x07]);
            bytes.extend_from_slice(&link);
        }
        let first = blake3::hash(&bytes[..BLOCK]);
        let mut second = first.as_bytes().to_vec();
        second.extend_from_slice(&bytes[BLOCK..]);
        assert_eq!(chain.current_digest().0, *blake3::hash(&second).as_bytes());
    }
}
