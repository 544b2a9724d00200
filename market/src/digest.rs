//! The running digest: BLAKE3 chained over all that went in and came out.
//!
//! What is to be hashed is gathered and hashed in blocks, for BLAKE3 is several times faster on
//! long inputs. Where a block ends follows from the bytes alone, so every replica hashes the same.

use serde::{Deserialize, Serialize};

use crate::ids::Digest;

/// Gathered bytes are hashed when there are so many.
const BLOCK: usize = 16_384;

/// The chain so far: the digest of all whole blocks, and the bytes after them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chain {
    blocks: Digest,
    rest: Vec<u8>,
}

impl Chain {
    /// The digest now: at most one block's hashing.
    pub(crate) fn head(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.blocks.0);
        hasher.update(&self.rest);
        Digest(*hasher.finalize().as_bytes())
    }

    pub(crate) fn extend(&mut self, link: &impl Serialize) {
        postcard::to_io(link, &mut self.rest).expect("plain data in memory always encodes");
        if self.rest.len() >= BLOCK {
            self.blocks = self.head();
            self.rest.clear();
        }
    }
}
