//! The innermost loops of the image and sequence engines: they compute a tile (a small block of the
//! result) of a convolution or product, or one place of a depthwise convolution's result.
//!
//! A tile is a few rows (places of the result) by a few vectors of filters, which stay in
//! registers. For each tap (place of the window) every row has a pointer to the channels it reads.
//! So the tile needs no case for stride, dilation, padding (a row of zeros) or groups, and no copy
//! of the image as a matrix.

use std::mem::MaybeUninit;
use std::ops::Range;

use souk_host::isa::Isa;

#[cfg(target_arch = "aarch64")]
use super::vectors::neon::Neon;
#[cfg(target_arch = "x86_64")]
use super::vectors::x86::{Half, Wide};
use super::vectors::{Plain, Vector};

/// Floats to a cache line.
const LINE_FLOATS: usize = 16;

/// Rows of the tallest tile of any [`Isa`].
pub(crate) const TILE_ROWS_MAX: usize = 8;

/// Upper bound on the floats to prefetch: they must fit the cache with the tile's own reads.
const AHEAD_FLOATS_MAX: usize = 1 << 17;

/// A tile to compute.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// Where each row reads, tap by tap: `taps × rows`.
    pub reads: &'a [*const f32],
    /// First channel of the group, which is added to each read.
    pub channel: usize,
    /// Channels to each tap.
    pub depth: usize,
    /// Filters' weights: for each tap and channel, one float for each of the tile's columns.
    pub weights: *const f32,
    /// Factors of the sums, one float for each column.
    pub scale: *const f32,
    /// Terms to add after the scaling, one float for each column.
    pub bias: *const f32,
    /// Where each row's results go.
    pub writes: &'a [*mut f32],
    /// Terms to add to each row's results, if any.
    pub adds: Option<&'a [*const f32]>,
    /// The floats to read after this tile; each channel prefetches one line of them.
    pub ahead: &'a [f32],
    /// Columns that are real; the others only fill the vectors.
    pub columns: usize,
    /// Bounds of the results.
    pub low: f32,
    /// Bounds of the results.
    pub high: f32,
}

/// Divides the floats to read next into at most as many parts as there are tiles; each tile
/// prefetches one part.
pub(crate) fn prefetch_parts(next: &[f32], tiles: usize) -> impl Iterator<Item = &[f32]> {
    let next = &next[..next.len().min(AHEAD_FLOATS_MAX)];
    next.chunks(next.len().div_ceil(tiles.max(1)).max(1))
}

/// Computes a tile of `tile.writes.len()` rows by `vectors` vectors.
///
/// # Safety
/// This processor must have the instructions of `isa`. Every read must have `tile.channel +
/// tile.depth` floats behind it, the weights taps × depth × columns of the tile, the scale and the
/// bias the tile's columns, and every write (and add) `tile.columns`. No other thread may touch the
/// memory that the tile writes.
#[expect(unsafe_code, reason = "the caller vouches for the pointers")]
pub(crate) unsafe fn compute_tile(isa: Isa, vectors: usize, tile: &Tile<'_>) {
    // Every height is built for itself: the last tile of an image is seldom a full one.
    macro_rules! by_size {
        ($built:ident: $($vectors:literal => [$($rows:literal)*])*) => {
            match (vectors, tile.writes.len()) {
                // SAFETY: `isa` was found; the rest is the caller's contract handed on.
                $($(($vectors, $rows) => unsafe { $built::<$rows, $vectors>(tile) },)*)*
                size => unreachable!("no tile of {size:?} vectors and rows"),
            }
        };
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => by_size!(tile_512:
            1 => [1 2 3 4 5 6 7 8]
            2 => [1 2 3 4 5 6 7 8]
            3 => [1 2 3 4 5 6 7 8]
            4 => [1 2 3 4 5 6]),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => by_size!(tile_256: 1 => [1 2 3 4 5 6] 2 => [1 2 3 4 5 6]),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => by_size!(tile_neon: 1 => [1 2 3 4 5 6] 2 => [1 2 3 4 5 6]),
        Isa::Plain => by_size!(tile_plain: 1 => [1 2 3 4 5 6] 2 => [1 2 3 4 5 6]),
    }
}

#[expect(unsafe_code, reason = "the caller vouches for the pointers")]
unsafe fn tile_plain<const ROWS: usize, const VECTORS: usize>(tile: &Tile<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { tile_of::<Plain, ROWS, VECTORS>(tile) }
}

#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "the caller vouches for the pointers")]
unsafe fn tile_neon<const ROWS: usize, const VECTORS: usize>(tile: &Tile<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { tile_of::<Neon, ROWS, VECTORS>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
#[expect(unsafe_code, reason = "built for wider vectors; the caller has them")]
unsafe fn tile_512<const ROWS: usize, const VECTORS: usize>(tile: &Tile<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { tile_of::<Wide, ROWS, VECTORS>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[expect(unsafe_code, reason = "built for wider vectors; the caller has them")]
unsafe fn tile_256<const ROWS: usize, const VECTORS: usize>(tile: &Tile<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { tile_of::<Half, ROWS, VECTORS>(tile) }
}

#[inline(always)]
#[expect(unsafe_code, reason = "pointers keep the inner loop free of checks")]
unsafe fn tile_of<V: Vector, const ROWS: usize, const VECTORS: usize>(tile: &Tile<'_>) {
    // SAFETY: by the contract of `tile` every pointer reaches as far as the loops go.
    unsafe {
        let mut sums: [[V; VECTORS]; ROWS] = [[V::splat(0.0); VECTORS]; ROWS];
        let mut weights = tile.weights;
        let Range {
            start: mut ahead,
            end,
        } = tile.ahead.as_ptr_range();
        for reads in tile.reads.chunks_exact(ROWS) {
            let reads: [*const f32; ROWS] = std::array::from_fn(|row| reads[row].add(tile.channel));
            for channel in 0..tile.depth {
                if ahead < end {
                    V::prefetch_line(ahead);
                    ahead = ahead.wrapping_add(LINE_FLOATS);
                }
                let filters: [V; VECTORS] =
                    std::array::from_fn(|vector| V::load(weights.add(vector * V::WIDTH)));
                for row in 0..ROWS {
                    let value = V::splat(*reads[row].add(channel));
                    for vector in 0..VECTORS {
                        sums[row][vector] = value.times_plus(filters[vector], sums[row][vector]);
                    }
                }
                weights = weights.add(VECTORS * V::WIDTH);
            }
        }
        if tile.columns == VECTORS * V::WIDTH && tile.adds.is_none() {
            return finish_whole(tile, sums);
        }
        // A copy that is indexed at run time: so the sums themselves stay in registers, and no
        // round of the loop above writes them to memory.
        let mut made = MaybeUninit::<[[V; VECTORS]; ROWS]>::uninit();
        let place = made.as_mut_ptr().cast::<V>();
        for (row, sums) in sums.iter().enumerate() {
            for (vector, sum) in sums.iter().enumerate() {
                place.add(row * VECTORS + vector).write(*sum);
            }
        }
        finish::<V, ROWS, VECTORS>(tile, made.assume_init_ref());
    }
}

/// Bounds the results of a tile without columns that only fill it and writes them, straight from
/// the registers.
#[inline(always)]
#[expect(unsafe_code, reason = "as the loop it ends")]
#[expect(
    clippy::needless_range_loop,
    reason = "sums are named by constants, so that they stay in registers"
)]
unsafe fn finish_whole<V: Vector, const ROWS: usize, const VECTORS: usize>(
    tile: &Tile<'_>,
    sums: [[V; VECTORS]; ROWS],
) {
    // SAFETY: every vector lies within the tile's columns, all of which are real.
    unsafe {
        let (low, high) = (V::splat(tile.low), V::splat(tile.high));
        let load = |from: *const f32, vector: usize| V::load(from.add(vector * V::WIDTH));
        let scales: [V; VECTORS] = std::array::from_fn(|vector| load(tile.scale, vector));
        let biases: [V; VECTORS] = std::array::from_fn(|vector| load(tile.bias, vector));
        for row in 0..ROWS {
            let write = tile.writes[row];
            for vector in 0..VECTORS {
                let sum = sums[row][vector].times_plus(scales[vector], biases[vector]);
                let sum = sum.at_least(low).at_most(high);
                sum.store(write.add(vector * V::WIDTH));
            }
        }
    }
}

/// Adds the terms, bounds the results and writes them.
#[inline(always)]
#[expect(unsafe_code, reason = "as the loop it ends")]
unsafe fn finish<V: Vector, const ROWS: usize, const VECTORS: usize>(
    tile: &Tile<'_>,
    sums: &[[V; VECTORS]; ROWS],
) {
    // SAFETY: no vector goes further than the tile's real columns.
    unsafe {
        let (low, high) = (V::splat(tile.low), V::splat(tile.high));
        for (row, sums) in sums.iter().enumerate() {
            let (write, add) = (tile.writes[row], tile.adds.map(|adds| adds[row]));
            for (vector, sum) in sums.iter().enumerate() {
                let at = vector * V::WIDTH;
                let count = tile.columns.saturating_sub(at).min(V::WIDTH);
                let (scale, bias) = (V::load(tile.scale.add(at)), V::load(tile.bias.add(at)));
                let mut sum = sum.times_plus(scale, bias);
                if let Some(add) = add {
                    let added = if count == V::WIDTH {
                        V::load(add.add(at))
                    } else {
                        V::load_part(add.add(at), count)
                    };
                    sum = sum.plus(added);
                }
                sum = sum.at_least(low).at_most(high);
                if count == V::WIDTH {
                    sum.store(write.add(at));
                } else {
                    sum.store_part(write.add(at), count);
                }
            }
        }
    }
}

/// One place of a depthwise convolution's result: every channel has a filter of its own.
#[derive(Clone, Copy)]
pub(crate) struct Depthwise<'a> {
    /// Where it reads, tap by tap.
    pub reads: &'a [*const f32],
    /// Weights: for each tap one float for each channel.
    pub weights: &'a [f32],
    /// Factors of the sums.
    pub scale: &'a [f32],
    /// Terms to add after the scaling.
    pub bias: &'a [f32],
    /// Where the results go.
    pub write: *mut f32,
    /// Terms to add to the results, if any.
    pub add: Option<*const f32>,
    /// Bounds of the results.
    pub low: f32,
    /// Bounds of the results.
    pub high: f32,
}

/// Computes one place.
///
/// # Safety
/// This processor must have the instructions of `isa`. Every read, the write, the add and the scale
/// must reach over as many floats as there are biases. No other thread may touch the memory that
/// the call writes.
#[expect(unsafe_code, reason = "the caller vouches for the pointers")]
pub(crate) unsafe fn compute_depthwise(isa: Isa, place: &Depthwise<'_>) {
    // SAFETY: `isa` was found; the rest is the caller's contract handed on.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => depthwise_512(place),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => depthwise_256(place),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => depthwise_of::<Neon>(place),
            Isa::Plain => depthwise_of::<Plain>(place),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
#[expect(unsafe_code, reason = "built for wider vectors; the caller has them")]
unsafe fn depthwise_512(place: &Depthwise<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { depthwise_of::<Wide>(place) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[expect(unsafe_code, reason = "built for wider vectors; the caller has them")]
unsafe fn depthwise_256(place: &Depthwise<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { depthwise_of::<Half>(place) }
}

#[inline(always)]
#[expect(unsafe_code, reason = "pointers keep the inner loop free of checks")]
unsafe fn depthwise_of<V: Vector>(place: &Depthwise<'_>) {
    let channels = place.bias.len();
    let whole = channels / V::WIDTH * V::WIDTH;
    // SAFETY: vectors are whole up to `whole`; the rest goes float by float up to `channels`.
    unsafe {
        let (low, high) = (V::splat(place.low), V::splat(place.high));
        for channel in (0..whole).step_by(V::WIDTH) {
            let mut sum = V::splat(0.0);
            for (tap, read) in place.reads.iter().enumerate() {
                let weight = V::load(place.weights.as_ptr().add(tap * channels + channel));
                sum = V::load(read.add(channel)).times_plus(weight, sum);
            }
            let scale = V::load(place.scale.as_ptr().add(channel));
            sum = sum.times_plus(scale, V::load(place.bias.as_ptr().add(channel)));
            if let Some(add) = place.add {
                sum = sum.plus(V::load(add.add(channel)));
            }
            sum.at_least(low)
                .at_most(high)
                .store(place.write.add(channel));
        }
        for channel in whole..channels {
            // The width of vectors decides which channels are left, so these fuse as vectors do.
            let mut sum = 0.0_f32;
            for (tap, read) in place.reads.iter().enumerate() {
                let value: f32 = *read.add(channel);
                sum = value.mul_add(place.weights[tap * channels + channel], sum);
            }
            sum = sum.mul_add(place.scale[channel], place.bias[channel]);
            if let Some(add) = place.add {
                sum += *add.add(channel);
            }
            *place.write.add(channel) = clamp_or_nan(sum, place.low, place.high);
        }
    }
}

/// Returns a value within bounds; NaN stays NaN.
#[inline(always)]
pub(crate) fn clamp_or_nan(value: f32, low: f32, high: f32) -> f32 {
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}

#[cfg(test)]
pub(crate) mod tests;
