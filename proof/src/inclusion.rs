//! Proves that a leaf is in a tree of the market's history (RFC 6962, 2.1.1), and finds the hashes
//! for such proofs in tiles.
//!
//! [`Inclusion`] says which tiles it needs and builds the proof from them; [`verify`] checks it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::digest::Digest;
use crate::history::{fold_edge, hash_node, root_of};
use crate::tiles::{TILE_BITS, Tile, TileId};

/// Why a proof cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// A tile is missing, or has too few hashes.
    #[error("hashes of {} up to number {wanted} are missing", .tile.to_path())]
    Missing {
        /// The position of the tile that lacks them.
        tile: TileId,
        /// The hashes that it must have.
        wanted: usize,
    },
}

/// A proof to build: that the tree of `size` leaves has a leaf.
#[derive(Clone, Debug)]
pub struct Inclusion {
    /// The leaves under each hash of the proof, from the leaf's neighbour up.
    ranges: Vec<Range<u64>>,
}

impl Inclusion {
    /// Plans the proof for the leaf with `leaf` others before it, which must be fewer than `size`.
    #[must_use]
    pub fn of_leaf(leaf: u64, size: u64) -> Self {
        assert!(leaf < size, "the leaf is in the tree");
        let (mut tree, mut ranges) = (0..size, Vec::new());
        while tree.end - tree.start > 1 {
            let middle = tree.start + (tree.end - tree.start).next_power_of_two() / 2;
            let (inside, beside) = match leaf < middle {
                true => (tree.start..middle, middle..tree.end),
                false => (middle..tree.end, tree.start..middle),
            };
            ranges.push(beside);
            tree = inside;
        }
        ranges.reverse();
        Self { ranges }
    }

    /// Returns the tiles that the proof needs, and how many hashes of each.
    #[must_use]
    pub fn needed_tiles(&self) -> BTreeMap<TileId, usize> {
        list_tiles(&self.ranges)
    }

    /// Builds the proof from tiles, which can come from anyone.
    ///
    /// # Errors
    /// If a tile is missing.
    pub fn build(&self, tiles: &BTreeMap<TileId, Tile>) -> Result<Vec<Digest>, ProofError> {
        build_hashes(&self.ranges, tiles)
    }
}

/// Returns whether a proof shows that the tree of `size` leaves with this root has a leaf's hash at
/// `leaf`. This is the algorithm of RFC 9162, 2.1.3.2.
#[must_use]
pub fn verify(leaf: u64, hash: Digest, (size, root): (u64, Digest), proof: &[Digest]) -> bool {
    if leaf >= size {
        return false;
    }
    let (mut node, mut last, mut reached) = (leaf, size - 1, hash);
    for hash in proof {
        if last == 0 {
            return false;
        }
        if node % 2 == 1 || node == last {
            reached = hash_node(*hash, reached);
            while node % 2 == 0 && node != 0 {
                (node, last) = (node >> 1, last >> 1);
            }
        } else {
            reached = hash_node(reached, *hash);
        }
        (node, last) = (node >> 1, last >> 1);
    }
    last == 0 && reached == root
}

/// Returns the tiles in which the hashes over these ranges of leaves are, and how many hashes of
/// each are needed.
pub(crate) fn list_tiles(ranges: &[Range<u64>]) -> BTreeMap<TileId, usize> {
    let mut needed = BTreeMap::new();
    for place in ranges.iter().flat_map(split_range) {
        let (tile, hashes) = locate(place);
        let width: &mut usize = needed.entry(tile).or_default();
        *width = hashes.end.max(*width);
    }
    needed
}

/// Returns the hash over each range of leaves, or which tile is missing.
pub(crate) fn build_hashes(
    ranges: &[Range<u64>],
    tiles: &BTreeMap<TileId, Tile>,
) -> Result<Vec<Digest>, ProofError> {
    let subtree = |place| {
        let (id, hashes) = locate(place);
        let tile = tiles.get(&id);
        let found = tile.and_then(|tile| tile.hashes.get(hashes.clone()));
        found.map(root_of).ok_or(ProofError::Missing {
            tile: id,
            wanted: hashes.end,
        })
    };
    let hash = |range: &Range<u64>| {
        let edge: Result<Vec<Digest>, ProofError> =
            split_range(range).into_iter().map(subtree).collect();
        Ok(fold_edge(&edge?))
    };
    ranges.iter().map(hash).collect()
}

/// A whole subtree: the leaves from `index << bits` to `(index + 1) << bits`.
#[derive(Clone, Copy)]
struct Subtree {
    bits: u32,
    index: u64,
}

/// Splits the leaves under a node into the largest whole subtrees, from left to right.
fn split_range(range: &Range<u64>) -> Vec<Subtree> {
    let mut subtrees = Vec::new();
    let mut start = range.start;
    while let Some(bits) = (range.end - start).checked_ilog2() {
        let index = start >> bits;
        assert_eq!(index << bits, start, "a node begins at a multiple of it");
        subtrees.push(Subtree { bits, index });
        start += 1 << bits;
    }
    subtrees
}

/// Returns the tile over whose hashes a subtree lies, and these hashes.
fn locate(place: Subtree) -> (TileId, Range<usize>) {
    let (level, inner) = (place.bits / TILE_BITS, place.bits % TILE_BITS);
    let tiles_bits = TILE_BITS - inner;
    let index = place.index >> tiles_bits;
    let within = place.index - (index << tiles_bits);
    let start = usize::try_from(within << inner).expect("a place in a tile");
    (TileId { level, index }, start..start + (1 << inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consistency::tests::{leaves, tiles_of};
    use crate::history::tests::naive_root;

    /// RFC 6962's own definition of a path.
    fn naive_path(leaf: usize, leaves: &[Digest]) -> Vec<Digest> {
        if leaves.len() == 1 {
            return Vec::new();
        }
        let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
        let (mut path, beside) = match leaf < left.len() {
            true => (naive_path(leaf, left), right),
            false => (naive_path(leaf - left.len(), right), left),
        };
        path.push(naive_root(beside));
        path
    }

    #[test]
    fn each_leaf_of_the_first_300_trees_is_proven_as_defined_and_no_other() {
        let leaves = leaves(300);
        for size in 1..=300 {
            let tiles = tiles_of(&leaves[..size]);
            let root = naive_root(&leaves[..size]);
            for leaf in 0..size {
                // All of the small trees, and some leaves of the larger ones.
                if size > 70 && leaf % 37 != size % 37 && leaf + 2 < size {
                    continue;
                }
                let proof = Inclusion::of_leaf(leaf as u64, size as u64)
                    .build(&tiles)
                    .unwrap();
                assert_eq!(proof, naive_path(leaf, &leaves[..size]), "{leaf} of {size}");
                let check = |leaf, hash, root, proof: &[Digest]| {
                    verify(leaf as u64, hash, (size as u64, root), proof)
                };
                assert!(check(leaf, leaves[leaf], root, &proof));
                assert!(!check(leaf + 1, leaves[leaf], root, &proof));
                assert!(!check(leaf, Digest([1; 32]), root, &proof));
                assert!(!check(leaf, leaves[leaf], Digest([1; 32]), &proof));
                for place in 0..proof.len() {
                    let mut other = proof.clone();
                    other[place].0[7] ^= 1;
                    assert!(!check(leaf, leaves[leaf], root, &other));
                    other.remove(place);
                    assert!(!check(leaf, leaves[leaf], root, &other));
                }
            }
        }
    }
}
