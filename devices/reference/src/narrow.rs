//! Converts elements of fewer than 8 bits: integers of 4 and 2 bits, and the 4-bit float. ONNX
//! packs several such elements into a byte, the first in its low bits.

use souk_memory::{DType, Shape, Tensor};

use super::error::KernelError;

/// The magnitudes of a 4-bit float, by its lower three bits.
const SIZES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The sign bit of a 4-bit float.
const SIGN: u8 = 8;

/// Returns whether a byte holds several elements of a type.
pub(super) fn is_narrow(dtype: DType) -> bool {
    dtype.bit_width() < 8
}

/// Returns the bits of each element.
pub(super) fn unpack_elements(tensor: &Tensor) -> Vec<u8> {
    let bits = tensor.dtype().bit_width();
    let (lanes, mask) = (8 / bits, (1u8 << bits) - 1);
    let bytes = tensor.bytes();
    let element = |at: usize| (bytes[at / lanes] >> (bits * (at % lanes))) & mask;
    (0..tensor.shape().element_count()).map(element).collect()
}

/// Packs elements into a tensor, whose last byte can have unused bits.
pub(super) fn pack_elements(
    dtype: DType,
    dims: Vec<usize>,
    elements: &[u8],
) -> Result<Tensor, KernelError> {
    let bits = dtype.bit_width();
    let (lanes, mask) = (8 / bits, (1u8 << bits) - 1);
    let byte = |elements: &[u8]| {
        let placed = elements.iter().enumerate();
        placed.fold(0, |byte, (lane, element)| {
            byte | ((element & mask) << (bits * lane))
        })
    };
    let bytes: Vec<u8> = elements.chunks(lanes).map(byte).collect();
    Ok(Tensor::new(dtype, Shape::new(dims)?, bytes.into())?)
}

/// Decodes an integer.
pub(super) fn decode_integer(dtype: DType, element: u8) -> i128 {
    let above = 8 - dtype.bit_width();
    match dtype {
        DType::I2 | DType::I4 => i128::from((element << above).cast_signed() >> above),
        _ => i128::from(element),
    }
}

/// Decodes a 4-bit float; the upper half of the byte must be zero.
pub(super) fn decoded_float(element: u8) -> f64 {
    let size = SIZES[usize::from(element % SIGN)];
    if element < SIGN { size } else { -size }
}

/// Encodes the nearest 4-bit float, ties to even. Larger values become the largest, and NaN, which
/// the type lacks, becomes negative zero.
pub(super) fn encoded_float(value: f64) -> u8 {
    if value.is_nan() {
        return SIGN;
    }
    let sign = if value.is_sign_negative() { SIGN } else { 0 };
    let size = value.abs();
    let steps = SIZES.windows(2).zip(0u8..);
    let passed = steps.filter(|(pair, below)| {
        let middle = (pair[0] + pair[1]) / 2.0;
        size > middle || (size == middle && below % 2 == 1)
    });
    sign | passed.count() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_where_onnx_packs_them() {
        for (dtype, bytes, expected) in [
            (DType::U4, vec![0x21, 0x0f], vec![1, 2, 15]),
            (DType::I4, vec![0x9f, 0x08], vec![-1, -7, -8]),
            (DType::U2, vec![0b11_10_01_00, 0b10], vec![0, 1, 2, 3, 2]),
            (DType::I2, vec![0b11_10_01_00, 0b11], vec![0, 1, -2, -1, -1]),
        ] {
            let count = expected.len();
            let shape = Shape::new(vec![count]).unwrap();
            let tensor = Tensor::new(dtype, shape, bytes.into()).unwrap();
            let elements = unpack_elements(&tensor);
            let found: Vec<i128> = elements
                .iter()
                .map(|&it| decode_integer(dtype, it))
                .collect();
            assert_eq!(found, expected, "{dtype}");
            assert_eq!(
                pack_elements(dtype, vec![count], &elements).unwrap(),
                tensor
            );
        }
    }

    #[test]
    fn floats_of_four_bits_are_the_nearest() {
        for element in 0..16 {
            assert_eq!(encoded_float(decoded_float(element)), element);
        }
        // What ml_dtypes makes of the same.
        for (value, expected) in [
            (0.48, 1),
            (0.25, 0),
            (1.05, 2),
            (-3.5, 14),
            (-8.0, 15),
            (9.0, 7),
            (f64::INFINITY, 7),
            (f64::NAN, 8),
            (0.75, 2),
            (1.25, 2),
            (1.75, 4),
            (2.5, 4),
            (5.0, 6),
            (-0.1, 8),
        ] {
            assert_eq!(encoded_float(value), expected, "{value}");
        }
    }
}
