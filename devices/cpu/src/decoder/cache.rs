//! Lays out the caches of keys and values in memory, and converts them from and to the tensors of a
//! session. Attention and the steps that write caches find each position by it.
//!
//! Sixteen positions of a head's keys lie side by side, so that a query meets sixteen at once and
//! no sum runs across a vector. A position's values lie one after the other, padded to whole
//! vectors.

use super::lanes::LANES;
use crate::tiled::aligned_floats::AlignedFloats;

/// How attention reads a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheOrder {
    /// Keys: number by number of sixteen positions.
    Keys,
    /// Values: position by position.
    Values,
}

/// A cache's order and sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheShape {
    pub order: CacheOrder,
    pub heads: usize,
    /// Positions of a head.
    pub room: usize,
    /// Numbers of a position.
    pub width: usize,
}

/// A row's place in the caches of its sequence.
#[derive(Clone, Copy)]
pub(super) struct RowPlace {
    /// The sequence, as the step counts them.
    pub sequence: usize,
    /// Where it is written.
    pub write: usize,
    /// Positions it looks at, its own the last.
    pub seen: usize,
}

impl CacheShape {
    /// Floats of a head.
    pub fn head_floats(&self) -> usize {
        match self.order {
            CacheOrder::Keys => self.room.next_multiple_of(LANES) * self.width,
            CacheOrder::Values => self.room * self.width.next_multiple_of(LANES),
        }
    }

    /// Where a position's first number is.
    pub fn position_start(&self, head: usize, position: usize) -> usize {
        let within = match self.order {
            CacheOrder::Keys => position / LANES * LANES * self.width + position % LANES,
            CacheOrder::Values => position * self.width.next_multiple_of(LANES),
        };
        head * self.head_floats() + within
    }

    /// Floats from a position's number to its next.
    pub fn stride(&self) -> usize {
        match self.order {
            CacheOrder::Keys => LANES,
            CacheOrder::Values => 1,
        }
    }

    /// Returns a cache of `[heads, room, width]` floats. Does not write zeros, so the system will
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

    /// The floats of a cache, `[heads, room, width]`.
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
    fn a_cache_gives_back_what_it_was_made_of() {
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
