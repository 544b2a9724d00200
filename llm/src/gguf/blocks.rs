//! Converts weights of 2 to 6 bits (ggml's K-quants and similar block types) to blocks of 8 bits
//! when a GGUF file is read.
//!
//! Decoders compute with blocks of 32 integers of 8 bits and a scale of 16. The file's 2 to 6 bits,
//! with scales for as few as 16 numbers, become floats first, exactly as ggml defines them, and
//! then such blocks. So a number can be off by at most half its block's scale, which is a 254th of
//! the block's largest number, or by the rounding of f16.

use std::num::NonZeroUsize;
use std::thread;

use souk_memory::F16;

use crate::weights::BLOCK;

/// Numbers of a super-block, which is the largest block.
const NUMBERS_MAX: usize = 256;
/// Numbers that share a scale in the smallest parts.
const PART: usize = 16;
/// The largest integer; its negative is the smallest, so that the range is symmetric.
const LARGEST: f32 = 127.0;
/// Added to a float below 2^22, it leaves the nearest integer in the lowest bits.
const ROUNDING: f32 = 12_582_912.0;
/// Bytes that justify a thread: about a millisecond's work.
const THREAD_BYTES: usize = 1 << 20;

/// The value of each code of `iq4_nl` and `iq4_xs`.
const CURVE: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// A block type that is converted to 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    Q4_1,
    Q5_0,
    Q5_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
}

impl BlockKind {
    /// Returns the type with this number, if it is one of these.
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            20 => Self::Iq4Nl,
            23 => Self::Iq4Xs,
            _ => return None,
        })
    }

    /// Returns the numbers in a block, and its bytes.
    pub fn block_layout(self) -> (usize, usize) {
        match self {
            Self::Q4_1 => (BLOCK, 20),
            Self::Q5_0 => (BLOCK, 22),
            Self::Q5_1 => (BLOCK, 24),
            Self::Iq4Nl => (BLOCK, 18),
            Self::Q2K => (NUMBERS_MAX, 84),
            Self::Q3K => (NUMBERS_MAX, 110),
            Self::Q4K => (NUMBERS_MAX, 144),
            Self::Q5K => (NUMBERS_MAX, 176),
            Self::Q6K => (NUMBERS_MAX, 210),
            Self::Iq4Xs => (NUMBERS_MAX, 136),
        }
    }

    /// Returns the 8-bit integers and 16-bit scales nearest to the values of `bytes`, which must be
    /// whole blocks.
    pub fn to_q8_blocks(self, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = threads.min(bytes.len() / THREAD_BYTES).max(1);
        let (numbers, size) = self.block_layout();
        let blocks = bytes.len() / size;
        let mut integers = vec![0; blocks * numbers];
        let mut scales = vec![0; blocks * numbers / BLOCK * 2];
        let own = blocks.div_ceil(threads).max(1);
        thread::scope(|scope| {
            let parts = integers.chunks_mut(own * numbers);
            let parts = parts.zip(scales.chunks_mut(own * numbers / BLOCK * 2));
            for ((integers, scales), bytes) in parts.zip(bytes.chunks(own * size)) {
                let mut convert = move || self.convert_blocks(bytes, integers, scales);
                if threads == 1 {
                    convert();
                } else {
                    scope.spawn(convert);
                }
            }
        });
        (integers, scales)
    }

    fn convert_blocks(self, bytes: &[u8], integers: &mut [u8], scales: &mut [u8]) {
        let (numbers, size) = self.block_layout();
        let mut floats = [0.0; NUMBERS_MAX];
        let floats = &mut floats[..numbers];
        let blocks = bytes.chunks_exact(size);
        let integers = integers.chunks_exact_mut(numbers);
        let scales = scales.chunks_exact_mut(numbers / BLOCK * 2);
        for ((block, integers), scales) in blocks.zip(integers).zip(scales) {
            self.decode_block(block, floats);
            let integers = integers.chunks_exact_mut(BLOCK);
            let scales = scales.chunks_exact_mut(2);
            for ((floats, integers), to) in floats.chunks_exact(BLOCK).zip(integers).zip(scales) {
                to.copy_from_slice(&round_to_integers(floats, integers).0.to_le_bytes());
            }
        }
    }

    /// Writes the values of a block.
    fn decode_block(self, block: &[u8], to: &mut [f32]) {
        match self {
            Self::Q4_1 => q4_1(block, to),
            Self::Q5_0 => q5_0(block, to),
            Self::Q5_1 => q5_1(block, to),
            Self::Q2K => q2_k(block, to),
            Self::Q3K => q3_k(block, to),
            Self::Q4K => q4_k(block, to),
            Self::Q5K => q5_k(block, to),
            Self::Q6K => q6_k(block, to),
            Self::Iq4Nl => iq4_nl(block, to),
            Self::Iq4Xs => iq4_xs(block, to),
        }
    }
}

/// Rounds floats to integers and returns their shared scale: it takes the largest to 127, or is the
/// next number of f16 if the nearest would take it beyond.
///
/// If a value is no number, or f16 reaches no such scale, the scale is no number. Then the logits
/// are no numbers either, and generation refuses them instead of inventing values.
fn round_to_integers(floats: &[f32], integers: &mut [u8]) -> F16 {
    // Magnitudes compare as integers in the same order, and values that are no numbers compare
    // above all.
    let magnitudes = floats.iter().map(|it| it.abs().to_bits());
    let largest = f32::from_bits(magnitudes.fold(0, u32::max));
    let nearest = F16::from_f32(largest / LARGEST);
    let scale = match largest / nearest.to_f32() >= LARGEST + 0.5 {
        true => F16(nearest.0 + 1),
        false => nearest,
    };
    let step = scale.to_f32();
    if !step.is_finite() {
        integers.fill(0);
        return F16::from_f32(f32::NAN);
    }
    // A block of zeros has no step, and any step will give its integers.
    let step = if step == 0.0 { 1.0 } else { step };
    for (integer, float) in integers.iter_mut().zip(floats) {
        *integer = (float / step + ROUNDING).to_bits() as u8;
    }
    scale
}

fn read_f16(bytes: &[u8]) -> f32 {
    F16(u16::from_le_bytes([bytes[0], bytes[1]])).to_f32()
}

/// Decodes four bits of each number: the second half of a block is in the upper bits of the first.
fn decode_nibbles(codes: &[u8], to: &mut [f32], value: impl Fn(usize, u8) -> f32) {
    let (first, second) = to.split_at_mut(codes.len());
    for (at, ((first, second), code)) in first.iter_mut().zip(second).zip(codes).enumerate() {
        *first = value(at, code & 15);
        *second = value(at + codes.len(), code >> 4);
    }
}

fn q4_1(block: &[u8], to: &mut [f32]) {
    let (step, least) = (read_f16(block), read_f16(&block[2..]));
    decode_nibbles(&block[4..], to, |_, code| step * f32::from(code) + least);
}

/// Returns the fifth bit of the number at this index.
fn fifth_bit(bits: &[u8], at: usize) -> u8 {
    ((bits[at / 8] >> (at % 8)) & 1) << 4
}

fn q5_0(block: &[u8], to: &mut [f32]) {
    let (step, bits) = (read_f16(block), &block[2..6]);
    decode_nibbles(&block[6..], to, |at, code| {
        step * (f32::from(code | fifth_bit(bits, at)) - 16.0)
    });
}

fn q5_1(block: &[u8], to: &mut [f32]) {
    let (step, least, bits) = (read_f16(block), read_f16(&block[2..]), &block[4..8]);
    decode_nibbles(&block[8..], to, |at, code| {
        step * f32::from(code | fifth_bit(bits, at)) + least
    });
}

fn iq4_nl(block: &[u8], to: &mut [f32]) {
    let step = read_f16(block);
    let value = |_, code: u8| step * f32::from(CURVE[usize::from(code)]);
    decode_nibbles(&block[2..], to, value);
}

fn iq4_xs(block: &[u8], to: &mut [f32]) {
    let (step, codes) = (read_f16(block), &block[8..]);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (at, to) in to.chunks_exact_mut(BLOCK).enumerate() {
        let low = (block[4 + at / 2] >> (at % 2 * 4)) & 15;
        let high = ((high >> (at * 2)) & 3) << 4;
        let step = step * (f32::from(u16::from(low) | high) - 32.0);
        let value = |_, code: u8| step * f32::from(CURVE[usize::from(code)]);
        decode_nibbles(&codes[at * PART..][..PART], to, value);
    }
}

/// Returns the position of a part's codes in a super-block: its half, its index among the four
/// parts that share bytes, and the first of those bytes within the half.
fn code_position(part: usize) -> (usize, usize, usize) {
    (part / 8, part % 8 / 2, part % 2 * PART)
}

fn q2_k(block: &[u8], to: &mut [f32]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (step, least) = (read_f16(&block[80..]), read_f16(&block[82..]));
    for (part, to) in to.chunks_exact_mut(PART).enumerate() {
        let step = step * f32::from(scales[part] & 15);
        let least = least * f32::from(scales[part] >> 4);
        let (side, layer, first) = code_position(part);
        for (to, code) in to.iter_mut().zip(&codes[side * 32 + first..]) {
            *to = step * f32::from((code >> (layer * 2)) & 3) - least;
        }
    }
}

fn q3_k(block: &[u8], to: &mut [f32]) {
    let (bits, codes, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let step = read_f16(&block[108..]);
    for (part, to) in to.chunks_exact_mut(PART).enumerate() {
        let low = (scales[part % 8] >> (part / 8 * 4)) & 15;
        let high = (scales[8 + part % 4] >> (part / 4 * 2)) & 3;
        let step = step * (f32::from(low | (high << 4)) - 32.0);
        let (side, layer, first) = code_position(part);
        let codes = codes[side * 32 + first..].iter().zip(&bits[first..]);
        for (to, (code, bits)) in to.iter_mut().zip(codes) {
            let high = (bits >> (side * 4 + layer)) & 1;
            let code = ((code >> (layer * 2)) & 3) | (high << 2);
            *to = step * (f32::from(code) - 4.0);
        }
    }
}

/// Returns the scale and minimum of an eighth of a super-block: 6 bits each; those of the last four
/// are split.
fn scale_and_minimum(scales: &[u8], at: usize) -> (f32, f32) {
    let (scale, least) = match at.checked_sub(4) {
        None => (scales[at] & 63, scales[at + 4] & 63),
        Some(before) => (
            (scales[at + 4] & 15) | (scales[before] >> 6 << 4),
            (scales[at + 4] >> 4) | (scales[at] >> 6 << 4),
        ),
    };
    (f32::from(scale), f32::from(least))
}

fn q4_k(block: &[u8], to: &mut [f32]) {
    let (step, least) = (read_f16(block), read_f16(&block[2..]));
    let (scales, codes) = (&block[4..16], &block[16..]);
    for (at, to) in to.chunks_exact_mut(BLOCK).enumerate() {
        let own = scale_and_minimum(scales, at);
        let (step, least) = (step * own.0, least * own.1);
        for (to, code) in to.iter_mut().zip(&codes[at / 2 * 32..]) {
            *to = step * f32::from((code >> (at % 2 * 4)) & 15) - least;
        }
    }
}

fn q5_k(block: &[u8], to: &mut [f32]) {
    let (step, least) = (read_f16(block), read_f16(&block[2..]));
    let (scales, bits, codes) = (&block[4..16], &block[16..48], &block[48..]);
    for (at, to) in to.chunks_exact_mut(BLOCK).enumerate() {
        let own = scale_and_minimum(scales, at);
        let (step, least) = (step * own.0, least * own.1);
        let codes = codes[at / 2 * 32..].iter().zip(bits);
        for (to, (code, bits)) in to.iter_mut().zip(codes) {
            let code = ((code >> (at % 2 * 4)) & 15) | (((bits >> at) & 1) << 4);
            *to = step * f32::from(code) - least;
        }
    }
}

fn q6_k(block: &[u8], to: &mut [f32]) {
    let (codes, bits, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let step = read_f16(&block[208..]);
    for (part, to) in to.chunks_exact_mut(PART).enumerate() {
        let step = step * f32::from(scales[part].cast_signed());
        let (side, layer, first) = code_position(part);
        let codes = &codes[side * 64 + layer % 2 * 32 + first..];
        let codes = codes.iter().zip(&bits[side * 32 + first..]);
        for (to, (code, bits)) in to.iter_mut().zip(codes) {
            let high = (bits >> (layer * 2)) & 3;
            let code = ((code >> (layer / 2 * 4)) & 15) | (high << 4);
            *to = step * (f32::from(code) - 32.0);
        }
    }
}

#[cfg(test)]
mod tests;
