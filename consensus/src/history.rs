//! Computes one hash, the history root, over all commands and results ever applied, so that
//! replicas can compare their whole pasts by it. It is an append-only Merkle log shaped as in RFC
//! 6962, hashed with BLAKE3.
//!
//! A history stores only the right edge, one digest for each set bit of the size, so it can append
//! a leaf with about two hashes. Two logs of one size have the same root if and only if they are
//! equal. The shape allows inclusion paths for receipts.

use std::fmt;

use crate::codec::{Reader, TruncationError, Writer};

/// Precedes a leaf's content, so that a leaf cannot pass as a node (RFC 6962, 2.1).
const LEAF: u8 = 0;

/// Precedes a node's two children.
const NODE: u8 = 1;

/// A BLAKE3 digest that prints as hex.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// All commands and results ever applied, as one root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    size: u64,
    edge: Vec<Digest>,
}

impl History {
    /// Computes the leaf of a command and its result.
    #[must_use]
    pub fn hash_leaf(command: &[u8], result: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[LEAF]);
        hasher.update(&(command.len() as u64).to_le_bytes());
        hasher.update(command);
        hasher.update(result);
        Digest(*hasher.finalize().as_bytes())
    }

    /// Appends a leaf.
    pub fn push(&mut self, leaf: Digest) {
        let mut whole = leaf;
        for _ in 0..self.size.trailing_ones() {
            let left = self
                .edge
                .pop()
                .expect("one digest for each set bit of the size");
            whole = hash_node(left, whole);
        }
        self.edge.push(whole);
        self.size += 1;
        assert_eq!(
            self.edge.len(),
            self.size.count_ones() as usize,
            "edge and size agree"
        );
    }

    /// Returns the number of leaves.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the root; the root of an empty log is the hash of no bytes.
    #[must_use]
    pub fn root(&self) -> Digest {
        let mut digests = self.edge.iter().rev().copied();
        match digests.next() {
            Some(last) => digests.fold(last, |right, left| hash_node(left, right)),
            None => Digest(*blake3::hash(&[]).as_bytes()),
        }
    }

    /// Writes the size and the edge.
    pub fn encode(&self, writer: &mut Writer) {
        writer.write_u64(self.size);
        for digest in &self.edge {
            writer.write_raw(&digest.0);
        }
    }

    /// Reads a history that [`History::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes end early.
    pub fn decode(reader: &mut Reader) -> Result<Self, TruncationError> {
        let size = reader.read_u64()?;
        let edge = (0..size.count_ones()).map(|_| reader.read_digest().map(Digest));
        Ok(Self {
            size,
            edge: edge.collect::<Result<_, _>>()?,
        })
    }
}

fn hash_node(left: Digest, right: Digest) -> Digest {
    // One call on contiguous bytes: starting a hasher costs as much as hashing so few bytes.
    let mut whole = [NODE; 65];
    whole[1..33].copy_from_slice(&left.0);
    whole[33..].copy_from_slice(&right.0);
    Digest(*blake3::hash(&whole).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6962's own definition: split at the largest power of two below the size.
    fn naive_root(leaves: &[Digest]) -> Digest {
        match leaves.len() {
            0 => Digest(*blake3::hash(&[]).as_bytes()),
            1 => leaves[0],
            size => {
                let split = size.next_power_of_two() / 2;
                hash_node(naive_root(&leaves[..split]), naive_root(&leaves[split..]))
            }
        }
    }

    #[test]
    fn the_right_edge_gives_the_root_of_the_whole_tree() {
        let mut history = History::default();
        let mut leaves = Vec::new();
        for number in 0..70_u8 {
            assert_eq!(history.root(), naive_root(&leaves), "{number} leaves");
            let leaf = History::hash_leaf(&[number], b"ok");
            history.push(leaf);
            leaves.push(leaf);
        }
    }

    #[test]
    fn a_command_and_its_result_are_kept_apart() {
        assert_ne!(
            History::hash_leaf(b"ab", b"c"),
            History::hash_leaf(b"a", b"bc")
        );
    }

    #[test]
    fn a_history_is_read_as_written() {
        let mut history = History::default();
        for number in 0..13_u8 {
            history.push(History::hash_leaf(&[number], &[]));
        }
        let mut writer = Writer::default();
        history.encode(&mut writer);
        let mut reader = Reader::new(writer.into_bytes().into());
        assert_eq!(History::decode(&mut reader), Ok(history));
    }
}
