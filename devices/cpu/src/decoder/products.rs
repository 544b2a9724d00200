//! Multiplies rows with one tile (sixteen rows) of a weight matrix, for each format in which a
//! matrix can be packed. The tasks of a decoder's step call it for all products, those of experts
//! included.
//!
//! A tile's sixteen sums run along its depth, in the same order for any number of rows. Rows of
//! bytes have a scale for each block and the sum of its bytes: integers are stored unsigned with an
//! offset, and the sum serves to subtract the effect of that offset.

use super::lanes::{Array, LANES, LaneIsa, Lanes};
use super::matrix::{BLOCK, Matrix, MatrixFormat};

/// Upper bound on the rows computed at once, which share the loads of a tile's numbers.
const ROWS_MAX: usize = 4;
/// Offset of stored 4-bit integers.
const FOURS_ABOVE: i32 = 8;

/// Returns the floats that a row of bytes occupies: the bytes, and a scale and a sum per block.
pub(super) fn bytes_width(depth: usize) -> usize {
    depth / 4 + 2 * (depth / BLOCK)
}

/// Rows to be multiplied: floats, or bytes as [`super::rows::quantise`] leaves them.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// The first row.
    pub data: *const f32,
    /// Floats from one to the next.
    pub stride: usize,
    /// Number of rows.
    pub count: usize,
    /// Indices of the rows to read, if these are not the first ones.
    pub places: Option<&'a [usize]>,
}

/// Where results go.
#[derive(Clone, Copy)]
pub(super) struct Results<'a> {
    /// The first row of the result, at the matrix' first row.
    pub data: *mut f32,
    /// Floats from one to the next.
    pub stride: usize,
    /// Rows to add to the results, in the same layout.
    pub add: Option<*const f32>,
    /// Index of the result of each row, if results are not consecutive.
    pub places: Option<&'a [usize]>,
}

/// Multiplies rows with one tile; `bias` has a float for each of the matrix' rows, or is empty.
///
/// # Safety
/// This processor must have the instructions of `isa`. Rows and results must be as long as the
/// matrix requires. No other thread may touch this tile's columns of the results.
#[expect(unsafe_code, reason = "the caller vouches for the pointers")]
pub(super) unsafe fn multiply_tile(
    isa: LaneIsa,
    matrix: &Matrix,
    tile: usize,
    rows: Rows<'_>,
    results: Results<'_>,
    bias: &[f32],
) {
    let job = TileProduct {
        matrix,
        tile,
        rows,
        results,
        bias,
    };
    // SAFETY: `isa` was found; the rest is the caller's contract handed on.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            LaneIsa::Vnni => product_512(&job),
            #[cfg(target_arch = "x86_64")]
            LaneIsa::Avx2 => product_256(&job),
            #[cfg(target_arch = "aarch64")]
            LaneIsa::NeonDots => product_dots(&job),
            #[cfg(target_arch = "aarch64")]
            LaneIsa::Neon => job.run::<super::lanes::neon::Neon>(),
            LaneIsa::Plain => job.run::<Array>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
#[expect(unsafe_code, reason = "built for wider vectors; the caller has them")]
unsafe fn product_512(job: &TileProduct<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { job.run::<super::lanes::x86::Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
#[expect(unsafe_code, reason = "built for wider vectors; the caller has them")]
unsafe fn product_256(job: &TileProduct<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { job.run::<super::lanes::x86::Half>() }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
#[expect(
    unsafe_code,
    reason = "built for products of bytes; the caller has them"
)]
unsafe fn product_dots(job: &TileProduct<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { job.run::<super::lanes::neon::Dots>() }
}

/// A product of some rows with one tile.
struct TileProduct<'a> {
    matrix: &'a Matrix,
    tile: usize,
    rows: Rows<'a>,
    results: Results<'a>,
    bias: &'a [f32],
}

#[expect(unsafe_code, reason = "pointers keep the inner loops free of checks")]
impl TileProduct<'_> {
    /// # Safety
    /// As [`multiply_tile`], for the instructions of `L`.
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self) {
        let mut row = 0;
        while row < self.rows.count {
            // SAFETY: this many rows are left; the rest is the caller's contract.
            unsafe {
                if self.rows.count - row >= ROWS_MAX {
                    self.multiply_rows::<L, ROWS_MAX>(row);
                    row += ROWS_MAX;
                } else {
                    self.multiply_rows::<L, 1>(row);
                    row += 1;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply_rows<L: Lanes, const N: usize>(&self, first: usize) {
        let Rows {
            data,
            stride,
            places,
            ..
        } = self.rows;
        let read = std::array::from_fn(|row| {
            let place = places.map_or(first + row, |places| places[first + row]);
            data.wrapping_add(place * stride)
        });
        // SAFETY: the caller's contract: rows are as deep as the tile.
        let sums: [L; N] = unsafe {
            match self.matrix.kind {
                MatrixFormat::Floats => self.load_f32::<L, Floats, N>(read),
                MatrixFormat::Halves => self.load_f32::<L, Halves, N>(read),
                MatrixFormat::Brains => self.load_f32::<L, Brains, N>(read),
                MatrixFormat::Eights => self.blocks::<L, EightBitBlocks, N>(read),
                MatrixFormat::Fours => self.blocks::<L, FourBitBlocks, N>(read),
            }
        };
        for (row, sum) in sums.into_iter().enumerate() {
            // SAFETY: the caller's contract: this tile's columns are this call's.
            unsafe { self.store_row(first + row, sum) };
        }
    }

    /// Two sums each, over even and odd places, so that neither waits for the one before.
    #[inline(always)]
    unsafe fn load_f32<L: Lanes, F: LoadFloats, const N: usize>(
        &self,
        read: [*const f32; N],
    ) -> [L; N] {
        let depth = self.matrix.depth;
        let weights = self.matrix.tile(self.tile).as_ptr();
        // SAFETY: places are below the depth, for which rows and tile have numbers.
        unsafe {
            let mut sums = [[L::splat(0.0); 2]; N];
            for at in 0..depth {
                let weight: L = F::load(weights.add(at * LANES * F::BYTES));
                for (row, sums) in sums.iter_mut().enumerate() {
                    let factor = L::splat(*read[row].add(at));
                    sums[at % 2] = weight.times_plus(factor, sums[at % 2]);
                }
            }
            let mut made = [L::splat(0.0); N];
            for (made, [even, odd]) in made.iter_mut().zip(sums) {
                *made = even.plus(odd);
            }
            made
        }
    }

    /// Block by block: whole sums of products times both scales.
    #[inline(always)]
    unsafe fn blocks<L: Lanes, B: Blocks, const N: usize>(&self, read: [*const f32; N]) -> [L; N] {
        let depth = self.matrix.depth;
        let weights = self.matrix.tile(self.tile).as_ptr();
        // SAFETY: a tile has its scales behind its integers; a row has scales behind its bytes, and
        // sums behind those.
        unsafe {
            let scales = weights
                .add(self.matrix.kind.integer_bytes(depth))
                .cast::<u16>();
            let mut totals = [L::splat(0.0); N];
            for block in 0..depth / BLOCK {
                let mut sums = [L::splat_integers(0); N];
                for (row, whole) in sums.iter_mut().enumerate() {
                    let sum = read[row].add(depth / 4 + depth / BLOCK + block);
                    *whole = L::splat_integers(
                        -B::integer_offset::<L>() * sum.cast::<i32>().read_unaligned(),
                    );
                }
                let bytes = read.map(|row| row.wrapping_add(block * (BLOCK / 4)).cast::<i32>());
                B::add::<L, N>(&mut sums, weights.add(block * B::BYTES), bytes);
                let scale = L::load_f16(scales.add(block * LANES));
                for (row, total) in totals.iter_mut().enumerate() {
                    let own = L::splat(*read[row].add(depth / 4 + block));
                    *total = L::floats_from_sums(sums[row]).times_plus(scale.times(own), *total);
                }
            }
            totals
        }
    }

    #[inline(always)]
    unsafe fn store_row<L: Lanes>(&self, row: usize, sum: L) {
        let mut made = [0.0f32; LANES];
        let first = self.tile * LANES;
        let count = LANES.min(self.matrix.rows - first);
        let row = self.results.places.map_or(row, |places| places[row]);
        let place = row * self.results.stride + first;
        // SAFETY: sixteen floats are there; of the results only columns there are, are written.
        unsafe {
            sum.store(made.as_mut_ptr());
            for (lane, made) in made.iter_mut().enumerate().take(count) {
                if let Some(bias) = self.bias.get(first + lane) {
                    *made += bias;
                }
                if let Some(add) = self.results.add {
                    *made += *add.add(place + lane);
                }
            }
            let to = self.results.data.add(place);
            std::ptr::copy_nonoverlapping(made.as_ptr(), to, count);
        }
    }
}

/// How sixteen floats are read. These are types and no closures, which have not the instructions
/// of the function that they are in.
#[expect(unsafe_code, reason = "floats are read through pointers")]
trait LoadFloats {
    /// Bytes of a float.
    const BYTES: usize;
    /// # Safety
    /// Sixteen floats must be there; the processor must have the instructions of `L`.
    unsafe fn load<L: Lanes>(from: *const u8) -> L;
}

macro_rules! loads {
    ($name:ident, $bytes:expr, $load:ident) => {
        struct $name;

        #[expect(unsafe_code, reason = "floats are read through pointers")]
        impl LoadFloats for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<L: Lanes>(from: *const u8) -> L {
                // SAFETY: the caller's contract.
                unsafe { L::$load(from.cast()) }
            }
        }
    };
}
loads!(Floats, 4, load_f32);
loads!(Halves, 2, load_f16);
loads!(Brains, 2, load_bf16);

/// How a block's products are added up.
#[expect(unsafe_code, reason = "integers are read through pointers")]
trait Blocks {
    /// Bytes of a block in a tile.
    const BYTES: usize;
    /// Returns the offset of stored integers that a product must subtract.
    fn integer_offset<L: Lanes>() -> i32;
    /// # Safety
    /// A block must be at each place; the processor must have the instructions of `L`.
    unsafe fn add<L: Lanes, const N: usize>(
        sums: &mut [L::ByteSums; N],
        weights: *const u8,
        bytes: [*const i32; N],
    );
}

/// Blocks of 8-bit integers: eight groups, one after the other.
struct EightBitBlocks;

#[expect(unsafe_code, reason = "integers are read through pointers")]
impl Blocks for EightBitBlocks {
    const BYTES: usize = BLOCK * LANES;
    #[inline(always)]
    fn integer_offset<L: Lanes>() -> i32 {
        L::EIGHTS_ABOVE
    }
    #[inline(always)]
    unsafe fn add<L: Lanes, const N: usize>(
        sums: &mut [L::ByteSums; N],
        weights: *const u8,
        bytes: [*const i32; N],
    ) {
        for group in 0..8 {
            for (sum, bytes) in sums.iter_mut().zip(bytes) {
                // SAFETY: the caller's contract.
                unsafe {
                    let weights = weights.add(group * 4 * LANES);
                    *sum = L::add_eights(*sum, weights, bytes.add(group).read_unaligned());
                }
            }
        }
    }
}

/// Blocks of 4-bit integers: four groups, one after the other, each with the fourth from it.
struct FourBitBlocks;

#[expect(unsafe_code, reason = "integers are read through pointers")]
impl Blocks for FourBitBlocks {
    const BYTES: usize = BLOCK / 2 * LANES;
    #[inline(always)]
    fn integer_offset<L: Lanes>() -> i32 {
        FOURS_ABOVE
    }
    #[inline(always)]
    unsafe fn add<L: Lanes, const N: usize>(
        sums: &mut [L::ByteSums; N],
        weights: *const u8,
        bytes: [*const i32; N],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut fours = [L::no_fours(); N];
            for group in 0..4 {
                let weights = weights.add(group * 4 * LANES);
                for (fours, bytes) in fours.iter_mut().zip(bytes) {
                    let low = bytes.add(group).read_unaligned();
                    let high = bytes.add(group + 4).read_unaligned();
                    *fours = L::add_fours(*fours, weights, low, high);
                }
            }
            for (sum, fours) in sums.iter_mut().zip(fours) {
                *sum = L::plus_fours(*sum, fours);
            }
        }
    }
}

#[cfg(test)]
mod tests;
