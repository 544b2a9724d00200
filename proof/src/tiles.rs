//! Defines a tile: 256 adjacent hashes of one level of the history's tree, in the form of C2SP
//! `tlog-tiles`. A full tile never changes, so a validator stores each as a file, and anyone can
//! fetch, cache and compare it.
//!
//! A hash of tile level `l` is the root of a whole subtree of 256^l leaves.

use crate::digest::Digest;

/// The hashes of a full tile.
pub const TILE_HASHES: usize = 256;

/// The levels of the tree that one level of tiles spans.
pub const TILE_BITS: u32 = 8;

/// The highest level of tiles that a tree of 2^64 leaves can have.
pub const TILE_LEVEL_MAX: u32 = u64::BITS / TILE_BITS - 1;

/// The bytes of a hash.
const HASH_BYTES: usize = 32;

/// The position of a tile in the tree: its level and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileId {
    /// The level, 0 for leaves.
    pub level: u32,
    /// The number of full tiles to the left on that level.
    pub index: u64,
}

impl TileId {
    /// Returns the tile's path: the level, then the index in groups of three digits, of which all
    /// but the last begin with `x`.
    #[must_use]
    pub fn to_path(self) -> String {
        let mut path = format!("{:03}", self.index % 1_000);
        let mut rest = self.index / 1_000;
        while rest > 0 {
            path = format!("x{:03}/{path}", rest % 1_000);
            rest /= 1_000;
        }
        format!("tile/{}/{path}", self.level)
    }

    /// Returns the path of the tile while it holds only `width` hashes.
    #[must_use]
    pub fn to_partial_path(self, width: usize) -> String {
        format!("{}.p/{width}", self.to_path())
    }

    /// Returns the number of hashes that the tile has in a tree of `size` leaves.
    #[must_use]
    pub fn width_at(self, size: u64) -> usize {
        if self.level > TILE_LEVEL_MAX {
            return 0;
        }
        let hashes = size >> (self.level * TILE_BITS);
        let before = self.index.saturating_mul(TILE_HASHES as u64);
        let width = hashes.saturating_sub(before).min(TILE_HASHES as u64);
        usize::try_from(width).expect("at most a tile's hashes")
    }
}

/// The hashes of a tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The position of the tile.
    pub id: TileId,
    /// Its hashes from left to right; fewer than [`TILE_HASHES`] if the tile is still open.
    pub hashes: Vec<Digest>,
}

impl Tile {
    /// Returns whether the tile has all its hashes, so that it never changes.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.hashes.len() == TILE_HASHES
    }

    /// Returns the bytes of the tile's file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.hashes.iter().flat_map(|hash| hash.0).collect()
    }

    /// Reads a tile's bytes; none if they are not one to 256 whole hashes.
    #[must_use]
    pub fn decode(id: TileId, bytes: &[u8]) -> Option<Self> {
        let (hashes, rest) = bytes.as_chunks::<HASH_BYTES>();
        let is_tile = rest.is_empty() && (1..=TILE_HASHES).contains(&hashes.len());
        let hashes = hashes.iter().copied().map(Digest).collect();
        is_tile.then_some(Self { id, hashes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_format() {
        let path = |level, index| TileId { level, index }.to_path();
        assert_eq!(path(0, 0), "tile/0/000");
        assert_eq!(path(1, 999), "tile/1/999");
        assert_eq!(path(0, 1_234_067), "tile/0/x001/x234/067");
        let id = TileId { level: 2, index: 7 };
        assert_eq!(id.to_partial_path(13), "tile/2/007.p/13");
    }

    #[test]
    fn a_tile_is_as_wide_as_the_tree_fills_it() {
        let width = |level, index, size| TileId { level, index }.width_at(size);
        assert_eq!(width(0, 0, 7), 7);
        assert_eq!(width(0, 1, 256), 0);
        assert_eq!(width(0, 0, 300), 256);
        assert_eq!(width(1, 0, 70_000), 256);
        assert_eq!(width(1, 1, 70_000), 17);
        assert_eq!(width(TILE_LEVEL_MAX, 0, u64::MAX), 255);
        assert_eq!(width(u32::MAX, 0, u64::MAX), 0);
    }

    #[test]
    fn a_tile_is_read_as_written_and_no_other_length_is() {
        let id = TileId { level: 0, index: 3 };
        let hashes = vec![Digest([1; 32]), Digest([2; 32])];
        let tile = Tile { id, hashes };
        assert_eq!(Tile::decode(id, &tile.encode()), Some(tile));
        for bytes in [0, 31, 33, 257 * 32] {
            assert_eq!(Tile::decode(id, &vec![0; bytes]), None, "{bytes}");
        }
    }
}
