//! Lays out the caches of keys and values in memory, and converts them from and to the tensors of a
//! session. Attention and the writers of caches locate each position through this layout.
//!
//! The keys of sixteen positions of a head are interleaved, so that one vector operation multiplies
//! a query's number with all sixteen, and no kernel sums across the lanes of a vector. The values
//! of a position are contiguous, padded to whole vectors.

use super::lanes::LANES;
use crate::tiled::aligned_floats::AlignedFloats;

/// The memory order of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheOrder {
    /// For keys: blocks of sixteen positions; in a block, the first number of each position, then
    /// the second of each.
    Keys,
    /// For values: one position after the other.
    Values,
}

/// A cache's order and sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheShape {
    pub order: CacheOrder,
    pub heads: usize,
    /// Capacity of a head, in positions.
    pub room: usize,
    /// Floats per position.
    pub width: usize,
}

/// A row's place in the caches of its sequence.
#[derive(Clone, Copy)]
pub(super) struct RowPlace {
    /// Index of the sequence within the step.
    pub sequence: usize,
    /// Position at which the step writes the row's key and value.
    pub write: usize,
    /// Number of positions that the row attends to; the last is its own.
    pub seen: usize,
}

impl CacheShape {
    /// Returns the number of floats that a head occupies, with padding.
    pub fn head_floats(&self) -> usize {
        match self.order {
            CacheOrder::Keys => self.room.next_multiple_of(LANES) * self.width,
            CacheOrder::Values => self.room * self.width.next_multiple_of(LANES),
        }
    }

    /// Returns the index of a position's first float.
    pub fn position_start(&self, head: usize, position: usize) -> usize {
        let within = match self.order {
            CacheOrder::Keys => position / LANES * LANES * self.width + position % LANES,
            CacheOrder::Values => position * self.width.next_multiple_of(LANES),
        };
        head * self.head_floats() + within
    }

    /// Returns the distance between consecutive floats of a position.
    pub fn stride(&self) -> usize {
        match self.order {
            CacheOrder::Keys => LANES,
            CacheOrder::Values => 1,
        }
    }

    /// Packs `[heads, room, width]` floats into a cache. Does not write zeros, so the system will
    /// allocate the pages of an empty cache only on use.
    pub fn pack_cache(&self, floats: &[f32]) -> AlignedFloats {
        let mut cache = AlignedFloats::zeros(self.heads * self.head_floats());
        for (row, from) in floats.chunks_exact(self.width.max(1)).enumerate() {
            if from.iter().all(|float| float.to_bits() == 0) {
                continue;
            }
            let start = self.position_start(row / self.room, row % self.room);
            let to = cache[start..].iter_mut().step_by(self.stride());
            to.zip(from).for_each(|(to, from)| *to = *from);
        }
        cache
    }

    /// Unpacks a cache into `[heads, room, width]` floats.
    pub fn unpack_cache(&self, cache: &[f32]) -> Vec<f32> {
        let rows = (0..self.heads * self.room).flat_map(|row| {
            let start = self.position_start(row / self.room, row % self.room);
            let from = cache[start..].iter().step_by(self.stride());
            from.take(self.width).copied()
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacking_a_packed_cache_returns_its_floats() {
        for order in [CacheOrder::Keys, CacheOrder::Values] {
            for (heads, room, width) in [(1, 1, 1), (2, 21, 6), (3, 32, 16), (1, 0, 4)] {
                let shape = CacheShape {
                    order,
                    heads,
                    room,
                    width,
                };
                let floats: Vec<f32> = (0..heads * room * width).map(|at| at as f32).collect();
                assert_eq!(shape.unpack_cache(&shape.pack_cache(&floats)), floats);
            }
        }
    }
}
