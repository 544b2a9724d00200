//! Proves that one tree of the market's history continues another one (RFC 6962, 2.1.2). A verifier
//! that has both roots needs only a few hashes and must trust nobody.
//!
//! [`Consistency`] says which tiles it needs and builds the proof from them; [`verify`] checks it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::digest::Digest;
use crate::history::hash_node;
use crate::inclusion::{ProofError, build_hashes, list_tiles};
use crate::tiles::{Tile, TileId};

/// A proof to build: that the tree of `from` leaves is the beginning of the tree of `to` leaves.
#[derive(Clone, Debug)]
pub struct Consistency {
    /// The leaves under each hash of the proof, in its order, and then those of the smaller tree.
    ranges: Vec<Range<u64>>,
}

impl Consistency {
    /// Plans the proof; `from` must be between 1 and `to`.
    #[must_use]
    pub fn between(from: u64, to: u64) -> Self {
        assert!(0 < from && from <= to, "a tree continues a smaller one");
        let mut ranges = Vec::new();
        plan_subproof(from, 0..to, true, &mut ranges);
        ranges.push(0..from);
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
        let (_, ranges) = self.ranges.split_last().expect("the smaller tree is last");
        build_hashes(ranges, tiles)
    }

    /// Returns the root of the smaller tree by the tiles, which can come from anyone: if a proof
    /// shows that the larger tree continues *this* root, no other tree of that size begins it.
    ///
    /// # Errors
    /// If a tile is missing.
    pub fn build_beginning(&self, tiles: &BTreeMap<TileId, Tile>) -> Result<Digest, ProofError> {
        let beginning = self.ranges.last().expect("the smaller tree is last");
        Ok(build_hashes(std::slice::from_ref(beginning), tiles)?[0])
    }
}

/// `SUBPROOF` of RFC 6962, with ranges of leaves for the hashes.
fn plan_subproof(from: u64, tree: Range<u64>, is_whole: bool, ranges: &mut Vec<Range<u64>>) {
    let size = tree.end - tree.start;
    if from == size {
        if !is_whole {
            ranges.push(tree);
        }
        return;
    }
    let split = size.next_power_of_two() / 2;
    let middle = tree.start + split;
    if from <= split {
        plan_subproof(from, tree.start..middle, is_whole, ranges);
        ranges.push(middle..tree.end);
    } else {
        plan_subproof(from - split, middle..tree.end, false, ranges);
        ranges.push(tree.start..middle);
    }
}

/// Returns whether a proof shows that the tree of `new` continues the tree of `old`; each is a size
/// and a root. This is the algorithm of RFC 9162, 2.1.4.2.
#[must_use]
pub fn verify(old: (u64, Digest), new: (u64, Digest), proof: &[Digest]) -> bool {
    let ((from, old_root), (to, new_root)) = (old, new);
    if from == to {
        return proof.is_empty() && old_root == new_root;
    }
    if from == 0 || from > to {
        return false;
    }
    let begins_whole = from.is_power_of_two();
    let (first, rest) = match (begins_whole, proof.split_first()) {
        (true, _) => (old_root, proof),
        (false, Some((first, rest))) => (*first, rest),
        (false, None) => return false,
    };
    let (mut node, mut last) = (from - 1, to - 1);
    while node % 2 == 1 {
        (node, last) = (node >> 1, last >> 1);
    }
    let (mut old_hash, mut new_hash) = (first, first);
    for hash in rest {
        if last == 0 {
            return false;
        }
        if node % 2 == 1 || node == last {
            old_hash = hash_node(*hash, old_hash);
            new_hash = hash_node(*hash, new_hash);
            while node % 2 == 0 && node != 0 {
                (node, last) = (node >> 1, last >> 1);
            }
        } else {
            new_hash = hash_node(new_hash, *hash);
        }
        (node, last) = (node >> 1, last >> 1);
    }
    last == 0 && old_hash == old_root && new_hash == new_root
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::history::tests::naive_root;
    use crate::history::{History, hash_leaf};
    use crate::tiles::TILE_BITS;

    /// All tiles of a tree, the open ones included.
    pub(crate) fn tiles_of(leaves: &[Digest]) -> BTreeMap<TileId, Tile> {
        let (mut history, mut tiles) = (History::default(), Vec::new());
        for leaf in leaves {
            history.push(*leaf, &mut tiles);
        }
        for (level, hashes) in (0..).zip(history.open_tiles()) {
            let index = (history.size() >> (level * TILE_BITS)) >> TILE_BITS;
            let id = TileId { level, index };
            let hashes = hashes.clone();
            tiles.extend((!hashes.is_empty()).then_some(Tile { id, hashes }));
        }
        tiles.into_iter().map(|tile| (tile.id, tile)).collect()
    }

    pub(crate) fn leaves(count: u64) -> Vec<Digest> {
        (0..count).map(|it| hash_leaf(&it.to_le_bytes())).collect()
    }

    /// RFC 6962's own definition of a proof.
    fn naive_subproof(from: usize, leaves: &[Digest], is_whole: bool) -> Vec<Digest> {
        if from == leaves.len() {
            return if is_whole {
                Vec::new()
            } else {
                vec![naive_root(leaves)]
            };
        }
        let split = leaves.len().next_power_of_two() / 2;
        let (left, right) = leaves.split_at(split);
        let (mut proof, other) = match from <= split {
            true => (naive_subproof(from, left, is_whole), right),
            false => (naive_subproof(from - split, right, false), left),
        };
        proof.push(naive_root(other));
        proof
    }

    #[test]
    fn every_tree_of_the_first_sizes_is_proven_to_continue_every_smaller_one() {
        let leaves = leaves(40);
        for to in 1..=40 {
            let tiles = tiles_of(&leaves[..to]);
            let new = (to as u64, naive_root(&leaves[..to]));
            for from in 1..=to {
                let old = (from as u64, naive_root(&leaves[..from]));
                let plan = Consistency::between(old.0, new.0);
                let proof = plan.build(&tiles).unwrap();
                assert_eq!(proof, naive_subproof(from, &leaves[..to], true));
                assert!(verify(old, new, &proof), "{from} {to}");
                assert_eq!(plan.build_beginning(&tiles), Ok(old.1), "{from} {to}");
                for place in 0..proof.len() {
                    let mut other = proof.clone();
                    other[place].0[7] ^= 1;
                    assert!(!verify(old, new, &other), "{from} {to} {place}");
                    other.remove(place);
                    assert!(!verify(old, new, &other), "{from} {to} {place}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_proof_from_tiles_is_that_of_the_definition(to in 1_u64..5_000, part in 0.0..1.0) {
            let from = 1 + ((to - 1) as f64 * part) as u64;
            let leaves = leaves(to);
            let (old, new) = (naive_root(&leaves[..from as usize]), naive_root(&leaves));
            let plan = Consistency::between(from, to);
            let mut tiles = tiles_of(&leaves);
            let needed = plan.needed_tiles();
            tiles.retain(|id, _| needed.contains_key(id));
            for (id, width) in &needed {
                prop_assert!(*width <= id.width_at(to));
                tiles.get_mut(id).unwrap().hashes.truncate(*width);
            }
            let proof = plan.build(&tiles).unwrap();
            prop_assert_eq!(&proof, &naive_subproof(from as usize, &leaves, true));
            prop_assert!(verify((from, old), (to, new), &proof));
            prop_assert!(from == to || !verify((from, new), (to, new), &proof));
            prop_assert!(needed.len() <= 8, "{} tiles", needed.len());
            prop_assert_eq!(plan.build_beginning(&tiles), Ok(old));
            if let Some(id) = needed.keys().next() {
                tiles.remove(id);
                prop_assert!(plan.build(&tiles).is_err() || plan.build_beginning(&tiles).is_err());
            }
        }
    }
}
