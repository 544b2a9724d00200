//! Computes one hash, the history root, over every command that the market ever applied, so that
//! anyone can compare whole histories by it. It is the root of an append-only Merkle tree as in RFC
//! 6962, hashed with SHA-256.
//!
//! A history stores the right edge of the tree, so it can append a leaf with about two hashes, and
//! the hashes of the tile that is still open on each level. A full tile leaves the history as a
//! [`Tile`], which a validator keeps as a file that never changes (C2SP `tlog-tiles`). Two trees of
//! one size have the same root if and only if they are equal.

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::place::{LogTime, Position};
use crate::tiles::{TILE_BITS, TILE_HASHES, Tile, TileId};

/// Precedes a leaf's content, so that a leaf cannot pass as a node (RFC 6962, 2.1).
const LEAF: u8 = 0;

/// Precedes a node's two children.
const NODE: u8 = 1;

/// The bytes of a leaf's content.
pub const LEAF_BYTES: usize = 84;

/// A leaf of the history: one applied command, or one step of time without a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The position of the command in the log.
    pub at: Position,
    /// The log's clock when it was applied.
    pub time: LogTime,
    /// The BLAKE3 hash of the command; that of no bytes for a tick.
    pub command: Digest,
    /// The hash of the result and of all other consequences; see [`Leaf::hash_result`].
    pub result: Digest,
}

impl Leaf {
    /// Encodes the content of the leaf: index, offset and time in little-endian order, then both
    /// hashes.
    #[must_use]
    pub fn encode(&self) -> [u8; LEAF_BYTES] {
        let mut bytes = [0; LEAF_BYTES];
        bytes[..8].copy_from_slice(&self.at.index.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.at.offset.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.time.0.to_le_bytes());
        bytes[20..52].copy_from_slice(&self.command.0);
        bytes[52..].copy_from_slice(&self.result.0);
        bytes
    }

    /// Returns the hash of a result and of the events that belong to it: BLAKE3 over the digest of
    /// the events, then the result. A proof of the result therefore does not reveal the events,
    /// which state the balances of others.
    #[must_use]
    pub fn hash_result(result: &[u8], events: Digest) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&events.0);
        hasher.update(result);
        Digest(*hasher.finalize().as_bytes())
    }

    /// Returns the leaf's hash in the tree.
    #[must_use]
    pub fn hash(&self) -> Digest {
        hash_leaf(&self.encode())
    }
}

/// A leaf together with the data that it hashes, so that others can check its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedLeaf {
    /// The number of leaves before it.
    pub number: u64,
    /// The position of the command in the log.
    pub at: Position,
    /// The log's clock when it was applied.
    pub time: LogTime,
    /// The bytes of the command; none for a tick.
    pub command: Vec<u8>,
    /// The bytes of the result.
    pub result: Vec<u8>,
    /// The digest of the events besides the result.
    pub events: Digest,
}

impl SealedLeaf {
    /// Returns the leaf.
    #[must_use]
    pub fn to_leaf(&self) -> Leaf {
        Leaf {
            at: self.at,
            time: self.time,
            command: Digest::for_content(&self.command),
            result: Leaf::hash_result(&self.result, self.events),
        }
    }
}

/// The history of a market: its root, and the tiles that are not full yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    size: u64,
    /// The roots of the whole subtrees that make the tree, one for each set bit of the size, the
    /// largest first.
    edge: Vec<Digest>,
    /// The hashes of the open tile of each level, the lowest level first.
    open_tiles: Vec<Vec<Digest>>,
}

impl History {
    /// Appends a leaf's hash. Adds the tiles that it fills to `full`.
    pub fn push(&mut self, leaf: Digest, full: &mut Vec<Tile>) {
        self.push_open(0, leaf);
        let mut whole = leaf;
        for joined in 1..=self.size.trailing_ones() {
            let left = self.edge.pop();
            let left = left.expect("one digest for each set bit of the size");
            whole = hash_node(left, whole);
            if joined % TILE_BITS == 0 {
                let level = joined / TILE_BITS - 1;
                let hashes = std::mem::take(&mut self.open_tiles[level as usize]);
                assert_eq!(hashes.len(), TILE_HASHES, "a joined tile is full");
                let index = self.size >> joined;
                let id = TileId { level, index };
                full.push(Tile { id, hashes });
                self.push_open(level as usize + 1, whole);
            }
        }
        self.edge.push(whole);
        self.size += 1;
        assert_eq!(
            self.edge.len(),
            self.size.count_ones() as usize,
            "edge and size agree"
        );
    }

    fn push_open(&mut self, level: usize, hash: Digest) {
        if self.open_tiles.len() <= level {
            self.open_tiles.resize_with(level + 1, Vec::new);
        }
        self.open_tiles[level].push(hash);
    }

    /// Returns the number of leaves.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the hashes of the open tile of each level, the lowest level first.
    #[must_use]
    pub fn open_tiles(&self) -> &[Vec<Digest>] {
        &self.open_tiles
    }

    /// Returns the root; the root of an empty tree is the hash of no bytes.
    #[must_use]
    pub fn root(&self) -> Digest {
        fold_edge(&self.edge)
    }

    /// Returns the number of hashes in the open tile of each level, the lowest level first, of a
    /// tree of `size` leaves.
    pub fn open_widths(size: u64) -> impl Iterator<Item = u64> {
        let levels = (u64::BITS - size.leading_zeros()).div_ceil(TILE_BITS);
        (0..levels).map(move |level| (size >> (level * TILE_BITS)) % TILE_HASHES as u64)
    }

    /// Returns the history of `size` leaves with these open tiles, from which the edge follows.
    /// They must have the widths of [`History::open_widths`].
    #[must_use]
    pub fn from_open_tiles(size: u64, open_tiles: Vec<Vec<Digest>>) -> Self {
        let widths = open_tiles.iter().map(|hashes| hashes.len() as u64);
        assert!(
            widths.eq(Self::open_widths(size)),
            "the tiles are of this size"
        );
        let mut edge = Vec::new();
        for hashes in open_tiles.iter().rev() {
            split_whole(hashes, &mut edge);
        }
        Self {
            size,
            edge,
            open_tiles,
        }
    }
}

/// Adds the roots of the largest whole subtrees over `hashes`, from left to right.
fn split_whole(hashes: &[Digest], edge: &mut Vec<Digest>) {
    let mut rest = hashes;
    while let Some(bits) = rest.len().checked_ilog2() {
        let (whole, after) = rest.split_at(1 << bits);
        edge.push(root_of(whole));
        rest = after;
    }
}

/// Returns the root over adjacent whole subtrees, the largest first.
pub(crate) fn fold_edge(edge: &[Digest]) -> Digest {
    let mut digests = edge.iter().rev().copied();
    match digests.next() {
        Some(last) => digests.fold(last, |right, left| hash_node(left, right)),
        None => Digest(Sha256::digest([]).into()),
    }
}

/// Returns the root of the tree over some hashes, which can be of any one level.
pub(crate) fn root_of(hashes: &[Digest]) -> Digest {
    let mut row = hashes.to_vec();
    if !row.len().is_power_of_two() {
        let mut edge = Vec::new();
        split_whole(hashes, &mut edge);
        return fold_edge(&edge);
    }
    while row.len() > 1 {
        row = row
            .chunks_exact(2)
            .map(|pair| hash_node(pair[0], pair[1]))
            .collect();
    }
    row[0]
}

/// Returns the hash of a leaf's content in the tree (RFC 6962, 2.1).
#[must_use]
pub fn hash_leaf(content: &[u8]) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update([LEAF]);
    hasher.update(content);
    Digest(hasher.finalize().into())
}

/// Returns the hash of a node from those of its children (RFC 6962, 2.1).
pub(crate) fn hash_node(left: Digest, right: Digest) -> Digest {
    let mut whole = [NODE; 65];
    whole[1..33].copy_from_slice(&left.0);
    whole[33..].copy_from_slice(&right.0);
    Digest(Sha256::digest(whole).into())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::place::LogIndex;

    /// RFC 6962's own definition: split at the largest power of two below the size.
    pub(crate) fn naive_root(leaves: &[Digest]) -> Digest {
        match leaves.len() {
            0 => Digest(Sha256::digest([]).into()),
            1 => leaves[0],
            size => {
                let split = size.next_power_of_two() / 2;
                hash_node(naive_root(&leaves[..split]), naive_root(&leaves[split..]))
            }
        }
    }

    /// The test vectors of Google's implementations of RFC 6962: a leaf, and the root with it.
    const VECTORS: [(&[u8], &str); 8] = [
        (
            b"",
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        ),
        (
            b"\x00",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        ),
        (
            b"\x10",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        ),
        (
            b"\x20\x21",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ),
        (
            b"\x30\x31",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        ),
        (
            b"\x40\x41\x42\x43",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        ),
        (
            b"\x50\x51\x52\x53\x54\x55\x56\x57",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        ),
        (
            b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ),
    ];

    #[test]
    fn roots_are_those_of_the_published_vectors() {
        let (mut history, mut full) = (History::default(), Vec::new());
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(history.root().to_string(), empty);
        for (leaf, root) in VECTORS {
            history.push(hash_leaf(leaf), &mut full);
            assert_eq!(history.root().to_string(), root);
        }
    }

    #[test]
    fn the_right_edge_gives_the_root_of_the_whole_tree_and_its_tiles() {
        let (mut history, mut full) = (History::default(), Vec::new());
        let mut leaves = Vec::new();
        for number in 0..66_000_u32 {
            if number < 600 || number.is_multiple_of(9_973) || number > 65_990 {
                assert_eq!(history.root(), naive_root(&leaves), "{number} leaves");
                let open = history.open_tiles().to_vec();
                assert_eq!(History::from_open_tiles(history.size(), open), history);
            }
            let leaf = hash_leaf(&number.to_le_bytes());
            history.push(leaf, &mut full);
            leaves.push(leaf);
        }
        let second: Vec<Digest> = leaves.chunks_exact(256).map(naive_root).collect();
        let mut expected: Vec<Tile> = Vec::new();
        for (index, hashes) in (0..).zip(leaves.chunks_exact(256)) {
            let id = TileId { level: 0, index };
            let hashes = hashes.to_vec();
            expected.push(Tile { id, hashes });
        }
        expected.push(Tile {
            id: TileId { level: 1, index: 0 },
            hashes: second[..256].to_vec(),
        });
        full.sort_by_key(|tile| tile.id);
        assert_eq!(full, expected);
        assert_eq!(history.open_tiles()[0], leaves[66_000 - 66_000 % 256..]);
        assert_eq!(history.open_tiles()[1], second[256..]);
    }

    #[test]
    fn a_leaf_has_each_of_its_parts() {
        let leaf = Leaf {
            at: Position {
                index: LogIndex(1),
                offset: 2,
            },
            time: LogTime(3),
            command: Digest([4; 32]),
            result: Digest([5; 32]),
        };
        let bytes = leaf.encode();
        assert_eq!(
            bytes[..20],
            [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(bytes[20..], [[4; 32], [5; 32]].concat());
        assert_eq!(leaf.hash(), hash_leaf(&bytes));
    }
}
