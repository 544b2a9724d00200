//! Packs a decoder's weight matrices in the order in which products read them: sixteen rows of the
//! weight side by side (a tile), from the first to the last number of each, so that a product
//! streams through memory once. The model packs each matrix once, when it is compiled.
//!
//! Integers of a block lie by fours for each row, as instructions on bytes take them, and the
//! blocks' scales behind them. A matrix of 4 bits has its groups 0 to 3 in the lower halves of
//! bytes and 4 to 7 in the upper.

mod experts;

use souk_memory::{DType, F16, Tensor};

use super::lanes::LANES;
use crate::tiled::aligned_floats::AlignedFloats;

/// Numbers of a row that share a scale.
pub(super) const BLOCK: usize = 32;
/// Bytes of each row in a group: those that one instruction sums.
const GROUP: usize = 4;
/// Offset of stored 8-bit integers, which makes them unsigned.
const ABOVE_EIGHTS: u8 = 128;
/// Offset of stored 4-bit integers, which makes them unsigned.
const ABOVE_FOURS: u8 = 8;

/// The storage format of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatrixFormat {
    /// Floats of 32 bits.
    Floats,
    /// Floats of 16 bits.
    Halves,
    /// Upper halves of floats of 32 bits.
    Brains,
    /// Blocks of 8 bits.
    Eights,
    /// Blocks of 4 bits.
    Fours,
}

/// The source of a matrix's numbers.
#[derive(Clone, Debug)]
pub(super) enum MatrixSource {
    /// Floats, `[rows, depth]`.
    Floats(Tensor),
    /// Integers of that shape, and 16-bit scales for each block.
    Blocks(Tensor, Tensor),
}

/// A packed matrix.
#[derive(Debug)]
pub(super) struct Matrix {
    pub kind: MatrixFormat,
    /// Columns of the result.
    pub rows: usize,
    /// Numbers of each.
    pub depth: usize,
    bytes: AlignedFloats,
}

impl MatrixSource {
    pub fn kind(&self) -> Option<MatrixFormat> {
        match self {
            Self::Floats(tensor) => match tensor.dtype() {
                DType::F32 => Some(MatrixFormat::Floats),
                DType::F16 => Some(MatrixFormat::Halves),
                DType::Bf16 => Some(MatrixFormat::Brains),
                _ => None,
            },
            Self::Blocks(integers, _) => match integers.dtype() {
                DType::I8 => Some(MatrixFormat::Eights),
                DType::I4 => Some(MatrixFormat::Fours),
                _ => None,
            },
        }
    }

    fn source_dims(&self) -> Option<[usize; 2]> {
        let (Self::Floats(tensor) | Self::Blocks(tensor, _)) = self;
        tensor.dims().try_into().ok()
    }

    /// Returns the rows and the depth, if products take a matrix from this source.
    pub fn valid_dims(&self) -> Option<[usize; 2]> {
        let [rows, depth] = self.source_dims()?;
        let fits = match self {
            Self::Floats(_) => true,
            Self::Blocks(integers, scales) => {
                let lowest = |byte: &u8| byte.cast_signed() == i8::MIN;
                let is_eights = integers.dtype() == DType::I8;
                scales.dtype() == DType::F16
                    && depth.is_multiple_of(BLOCK)
                    && scales.dims() == [rows, depth / BLOCK]
                    // Each must have its negative, because kernels change signs.
                    && !(is_eights && integers.bytes().iter().any(lowest))
            }
        };
        self.kind()?;
        (fits && rows > 0 && depth > 0).then_some([rows, depth])
    }
}

impl MatrixFormat {
    /// Whether products with it take rows of bytes.
    pub fn is_blocks(self) -> bool {
        matches!(self, Self::Eights | Self::Fours)
    }

    /// Bytes of sixteen rows without scales.
    pub fn integer_bytes(self, depth: usize) -> usize {
        match self {
            Self::Floats => LANES * depth * 4,
            Self::Halves | Self::Brains => LANES * depth * 2,
            Self::Eights => LANES * depth,
            Self::Fours => LANES * depth / 2,
        }
    }

    /// Bytes of sixteen rows.
    fn tile_bytes(self, depth: usize) -> usize {
        let scales = match self.is_blocks() {
            true => depth / BLOCK * LANES * 2,
            false => 0,
        };
        (self.integer_bytes(depth) + scales).next_multiple_of(64)
    }
}

impl Matrix {
    /// Packs a matrix; the caller should have checked it by [`MatrixSource::valid_dims`].
    pub fn pack_source(given: &MatrixSource) -> Option<Self> {
        let ([rows, depth], kind) = (given.valid_dims()?, given.kind()?);
        let each = kind.tile_bytes(depth);
        let tiles = rows.div_ceil(LANES);
        let mut bytes = AlignedFloats::zeros(tiles * each / 4);
        let packed: &mut [u8] = bytemuck::cast_slice_mut(&mut bytes);
        for (tile, to) in packed.chunks_exact_mut(each).enumerate() {
            let first = tile * LANES;
            for lane in 0..LANES.min(rows - first) {
                given.pack_row(kind, first + lane, lane, depth, to);
            }
        }
        Some(Self {
            kind,
            rows,
            depth,
            bytes,
        })
    }

    /// Tiles of sixteen rows.
    pub fn tile_count(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// The bytes of a tile.
    pub fn tile(&self, tile: usize) -> &[u8] {
        let each = self.kind.tile_bytes(self.depth);
        &bytemuck::cast_slice(&self.bytes)[tile * each..(tile + 1) * each]
    }

    /// A row as floats.
    pub fn unpack_row(&self, row: usize, to: &mut [f32]) {
        let (tile, lane, depth) = (self.tile(row / LANES), row % LANES, self.depth);
        let half = |at: usize| u16::from_le_bytes([tile[at], tile[at + 1]]);
        let scales = self.kind.integer_bytes(depth);
        let scale = |at: usize| F16(half(scales + (at / BLOCK * LANES + lane) * 2)).to_f32();
        for (at, to) in to.iter_mut().enumerate().take(depth) {
            let place = at * LANES + lane;
            *to = match self.kind {
                MatrixFormat::Floats => {
                    let bytes = &tile[place * 4..place * 4 + 4];
                    f32::from_le_bytes(bytes.try_into().expect("four bytes"))
                }
                MatrixFormat::Halves => F16(half(place * 2)).to_f32(),
                MatrixFormat::Brains => f32::from_bits(u32::from(half(place * 2)) << 16),
                MatrixFormat::Eights => {
                    let kept = i16::from(tile[eight_place(at, lane)]);
                    f32::from(kept - i16::from(ABOVE_EIGHTS)) * scale(at)
                }
                MatrixFormat::Fours => {
                    let (place, shift) = four_place(at, lane);
                    let kept = i16::from((tile[place] >> shift) & 15);
                    f32::from(kept - i16::from(ABOVE_FOURS)) * scale(at)
                }
            };
        }
    }
}

/// Where the integer of 8 bits of a row lies in its tile.
fn eight_place(at: usize, lane: usize) -> usize {
    (at / GROUP * LANES + lane) * GROUP + at % GROUP
}

/// Returns the place of a 4-bit number, and its shift in the byte.
fn four_place(at: usize, lane: usize) -> (usize, u32) {
    let (block, within) = (at / BLOCK, at % BLOCK);
    let half = BLOCK / 2;
    let shift = if within < half { 0 } else { 4 };
    let byte = eight_place(within % half, lane);
    (block * half * LANES + byte, shift)
}

impl MatrixSource {
    /// Puts a row to its place in a tile of zeros.
    fn pack_row(&self, kind: MatrixFormat, row: usize, lane: usize, depth: usize, to: &mut [u8]) {
        match self {
            Self::Floats(tensor) => {
                let size = if kind == MatrixFormat::Floats { 4 } else { 2 };
                let bytes = &tensor.bytes()[row * depth * size..][..depth * size];
                for (at, number) in bytes.chunks_exact(size).enumerate() {
                    to[(at * LANES + lane) * size..][..size].copy_from_slice(number);
                }
            }
            Self::Blocks(integers, scales) => {
                let blocks = depth / BLOCK;
                let from = &scales.bytes()[row * blocks * 2..][..blocks * 2];
                let behind = &mut to[kind.integer_bytes(depth)..];
                for (block, scale) in from.chunks_exact(2).enumerate() {
                    behind[(block * LANES + lane) * 2..][..2].copy_from_slice(scale);
                }
                if kind == MatrixFormat::Eights {
                    pack_eights(&integers.bytes()[row * depth..][..depth], lane, to);
                } else {
                    pack_fours(&integers.bytes()[row * depth / 2..][..depth / 2], lane, to);
                }
            }
        }
    }
}

fn pack_eights(row: &[u8], lane: usize, to: &mut [u8]) {
    for (group, four) in row.chunks_exact(GROUP).enumerate() {
        let to = &mut to[eight_place(group * GROUP, lane)..][..GROUP];
        for (to, byte) in to.iter_mut().zip(four) {
            *to = byte ^ ABOVE_EIGHTS;
        }
    }
}

/// Neighbours share a byte where they come from, the first in its lower half.
fn pack_fours(row: &[u8], lane: usize, to: &mut [u8]) {
    for at in 0..row.len() * 2 {
        let four = ((row[at / 2] >> (4 * (at % 2))) & 15) ^ ABOVE_FOURS;
        let (place, shift) = four_place(at, lane);
        to[place] |= four << shift;
    }
}
