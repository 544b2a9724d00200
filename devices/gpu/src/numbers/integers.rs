//! States which integer types the device computes with and how they lie in its words, and gives the
//! WGSL that widens and narrows the packed ones.
//!
//! Integers of 32 bits take one word each, those of 64 two where the device has such numbers.
//! Narrower ones are packed and computed in 32 bits, so that a value outside their range wraps when
//! it is packed, as in ONNX.

use souk_memory::DType;

/// Returns the bits of an integer type, if several values lie in a word.
pub(crate) fn packed_bits(dtype: DType) -> Option<usize> {
    use DType::{I2, I4, I8, I16, U2, U4, U8, U16};
    matches!(dtype, I2 | I4 | I8 | I16 | U2 | U4 | U8 | U16).then(|| dtype.bit_width())
}

/// Whether the device computes with integers of this type.
pub(crate) fn is_whole(dtype: DType) -> bool {
    let bits = packed_bits(dtype);
    bits.is_some_and(|bits| bits >= 8) || matches!(dtype, DType::I32 | DType::U32)
}

/// The least and the greatest value of an integer type of 16 bits or fewer.
pub(crate) fn value_range(dtype: DType) -> [f64; 2] {
    match dtype {
        DType::I2 => [-2.0, 1.0],
        DType::I4 => [-8.0, 7.0],
        DType::I8 => [-128.0, 127.0],
        DType::I16 => [-32_768.0, 32_767.0],
        DType::U2 => [0.0, 3.0],
        DType::U4 => [0.0, 15.0],
        DType::U16 => [0.0, 65_535.0],
        _ => [0.0, 255.0],
    }
}

/// The functions `widened` and `narrowed` of a packed type.
pub(crate) fn packing_functions(dtype: DType, bits: usize) -> String {
    let (above, mask) = (32 - bits, (1u64 << bits) - 1);
    let is_signed = matches!(dtype, DType::I2 | DType::I4 | DType::I8 | DType::I16);
    let widened = match is_signed {
        true => format!("bitcast<i32>(h << {above}u) >> {above}u"),
        false => "i32(h)".to_owned(),
    };
    format!(
        r"
fn widened(h: u32) -> i32 {{ return {widened}; }}
fn narrowed(v: i32) -> u32 {{ return bitcast<u32>(v) & {mask}u; }}
"
    )
}
