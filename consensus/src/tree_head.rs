//! A tree head: the size and root of the history (a Merkle tree of all commands and results) and
//! the root of the state, at one entry of the log. Every replica computes the same head at the same
//! entry, so that all can sign the same bytes.
//!
//! A head is due at the first entry in each [`WINDOW_MS`] of the log's time, and covers that entry.
//! If no entry comes, the leader proposes a tick (an entry without commands): for the next window
//! if entries wait for a head, otherwise after [`IDLE_MS`], as a sign that the market is alive.

use souk_proof::tiles::TILE_BITS;
use souk_proof::{Digest, History, LogIndex, LogTime, Tile, TileId, TreeHead};

/// The log's time between two tree heads, in milliseconds.
pub const WINDOW_MS: u64 = 250;

/// The longest time without a tree head while there is a leader, in milliseconds.
pub const IDLE_MS: u64 = 10_000;

/// A tree head that this replica reached itself, and the tiles that are open there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeTip {
    /// The tree head.
    pub head: TreeHead,
    /// The hashes of the open tile of each level, the lowest level first.
    pub open_tiles: Vec<Vec<Digest>>,
}

impl TreeTip {
    /// Returns the tip of a history after an entry; `state` is the root of the state there.
    pub(crate) fn new(history: &History, state: Digest, index: LogIndex, time: LogTime) -> Self {
        Self {
            head: TreeHead {
                index,
                time,
                size: history.size(),
                root: history.root(),
                state: Some(state),
            },
            open_tiles: history.open_tiles().to_vec(),
        }
    }

    /// Returns the tiles that are open in the tree of `size` leaves, as far as they still are here.
    #[must_use]
    pub fn open_tiles_at(&self, size: u64) -> Vec<Tile> {
        let levels = 0..u32::try_from(self.open_tiles.len()).expect("a tree has few levels");
        let open = levels.filter_map(|level| {
            let index = (size >> (level * TILE_BITS)) >> TILE_BITS;
            let id = TileId { level, index };
            let mut tile = self.open_tile(id)?;
            tile.hashes.truncate(id.width_at(size));
            (!tile.hashes.is_empty()).then_some(tile)
        });
        open.collect()
    }

    /// Returns an open tile, if it has hashes.
    #[must_use]
    pub fn open_tile(&self, id: TileId) -> Option<Tile> {
        let hashes = self.open_tiles.get(usize::try_from(id.level).ok()?)?;
        let open = self.head.size.checked_shr((id.level + 1) * TILE_BITS);
        let is_open = open.unwrap_or(0) == id.index && !hashes.is_empty();
        let hashes = hashes.clone();
        is_open.then_some(Tile { id, hashes })
    }
}

/// Returns whether an entry that moved the log's clock is the first in its window.
pub(crate) fn is_head_due(before: LogTime, after: LogTime) -> bool {
    before.0 / WINDOW_MS < after.0 / WINDOW_MS
}

/// Returns whether a leader must propose a tick for the next head. `last_size` is the size of the
/// last head, if any is known.
pub(crate) fn is_tick_due(last_size: Option<u64>, size: u64, time: LogTime, now: LogTime) -> bool {
    let is_covered = last_size == Some(size);
    let waits = size > 0 && !is_covered && is_head_due(time, now);
    waits || now.0.saturating_sub(time.0) >= IDLE_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tip_has_the_open_tiles_of_the_sizes_before_it() {
        let (mut history, mut full) = (History::default(), Vec::new());
        for number in 0..700_u32 {
            history.push(
                souk_proof::history::hash_leaf(&number.to_le_bytes()),
                &mut full,
            );
        }
        let tip = TreeTip::new(&history, Digest::default(), LogIndex(9), LogTime(9));
        let open = |size| {
            let tiles = tip.open_tiles_at(size).into_iter();
            let widths = tiles.map(|tile| (tile.id.level, tile.id.index, tile.hashes.len()));
            widths.collect::<Vec<_>>()
        };
        assert_eq!(open(700), [(0, 2, 188), (1, 0, 2)]);
        assert_eq!(open(600), [(0, 2, 88), (1, 0, 2)]);
        // Tile 1 is full by now, so it is a file.
        assert_eq!(open(400), [(1, 0, 1)]);
        assert_eq!(open(0), []);
    }

    #[test]
    fn the_first_entry_of_each_window_makes_a_head() {
        let due = |before, after| is_head_due(LogTime(before), LogTime(after));
        assert!(due(0, 250) && due(249, 250) && due(10, 9_000));
        assert!(!due(250, 250) && !due(250, 499) && !due(0, 0));
    }

    #[test]
    fn a_silent_leader_closes_a_window_once_and_then_shows_that_it_lives() {
        let due = |last, size, time, now| is_tick_due(last, size, LogTime(time), LogTime(now));
        assert!(due(Some(3), 5, 1_000, 1_250) && due(None, 5, 1_000, 1_250));
        assert!(!due(Some(3), 5, 1_000, 1_249), "the window is open");
        assert!(!due(Some(5), 5, 1_000, 1_250), "everything is covered");
        assert!(due(Some(5), 5, 1_000, 11_000) && !due(Some(5), 5, 1_000, 10_999));
        assert!(!due(None, 0, 1_000, 1_250), "there is nothing to cover");
        assert!(
            !due(Some(5), 5, 12_000, 1_000),
            "the clock is behind the log"
        );
    }
}
