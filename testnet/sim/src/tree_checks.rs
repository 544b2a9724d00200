//! Checks the tree over the history of commands: all replicas must have the same root at the same
//! size, and each machine's folder must have every tile (piece of the tree) that its replica
//! filled, whenever it crashed.

use std::collections::BTreeMap;

use souk_consensus::{Digest, Tile, TileId, TreeHead};
use souk_roles::validator::action::RoundResults;

/// The leaves under one hash of the next level, as a power of two.
const TILE_BITS: u32 = 8;

/// The tiles in one machine's folder.
#[derive(Default)]
pub struct TileFolder {
    files: BTreeMap<TileId, Vec<Digest>>,
    /// The size of the tree in the last snapshot that another replica made: its tiles never were
    /// here.
    installed_size: u64,
    /// The largest tree that a replica reached here.
    reached_size: u64,
}

impl TileFolder {
    /// Records the tree of a replica that starts from its snapshot. If no replica reached that tree
    /// on this machine, the snapshot came from another replica, and the machine crashed before it
    /// reported this.
    pub fn on_start(&mut self, size: u64) {
        if size > self.reached_size {
            self.installed_size = size;
        }
    }

    /// Writes the tiles of a round after which the tree has `size` leaves, as a validator does
    /// before it keeps a snapshot.
    pub fn on_news(&mut self, news: &RoundResults, size: u64) {
        if news.installed.is_some() {
            self.installed_size = size;
        }
        self.reached_size = self.reached_size.max(size);
        for tile in &news.tiles {
            self.files.insert(tile.id, tile.hashes.clone());
        }
    }
}

/// The tree of the replay from genesis, and the heads that replicas reached.
#[derive(Default)]
pub struct TreeChecks {
    /// The full tiles of the replay.
    pub tiles: Vec<Tile>,
    heads: BTreeMap<u64, TreeHead>,
}

impl TreeChecks {
    /// Compares a head with that of the other replicas. Returns false if they differ.
    pub fn compare_head(&mut self, head: TreeHead) -> bool {
        *self.heads.entry(head.size).or_insert(head) == head
    }

    /// Returns the first tile that a folder must have and lacks, or has with other hashes, if its
    /// replica has a tree of `size` leaves.
    pub fn find_wrong_tile(&self, folder: &TileFolder, size: u64) -> Option<TileId> {
        let is_due = |tile: &&Tile| {
            let end = (tile.id.index + 1) << (TILE_BITS * (tile.id.level + 1));
            folder.installed_size < end && end <= size
        };
        let is_right = |tile: &&Tile| folder.files.get(&tile.id) == Some(&tile.hashes);
        let due = self.tiles.iter().filter(is_due);
        due.filter(|tile| !is_right(tile))
            .map(|tile| tile.id)
            .next()
    }
}
