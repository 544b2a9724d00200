//! Types of fewer than 8 bits: integers of 4 and 2, and the float of 4. Several lie in a byte, the
//! first in its low bits.

use souk_memory::{DType, Shape, Tensor};

use super::call::KernelError;

/// Sizes that a float of 4 bits can have, by its lower three bits.
const SIZES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The sign of a float of 4 bits.
const SIGN: u8 = 8;

/// Whether several elements of a type lie in a byte.
pub(super) fn is_narrow(dtype: DType) -> bool {
    dtype.bits() < 8
}

/// Each element's bits.
pub(super) fn unpacked(tensor: &Tensor) -> Vec<u8> {
    let bits = tensor.dtype().bits();
    let (lanes, mask) = (8 / bits, (1u8 << bits) - 1);
    let bytes = tensor.bytes();
    let element = |at: usize| (bytes[at / lanes] >> (bits * (at % lanes))) & mask;
    (0..tensor.shape().count()).map(element).collect()
}

/// A tensor of elements whose bits are given.
pub(super) fn packed(
    dtype: DType,
    dims: Vec<usize>,
    elements: &[u8],
) -> Result<Tensor, KernelError> {
    let bits = dtype.bits();
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

/// An integer's bits as the number they stand for.
pub(super) fn decoded(dtype: DType, element: u8) -> i128 {
    let above = 8 - dtype.bits();
    match dtype {
        DType::I2 | DType::I4 => i128::from((element << above).cast_signed() >> above),
        _ => i128::from(element),
    }
}

/// A float of 4 bits as a number.
pub(super) fn decoded_float(element: u8) -> f64 {
    let size = SIZES[usize::from(element % SIGN)];
    if element < SIGN { size } else { -size }
}

/// The nearest float of 4 bits, of two as near the one whose last bit is 0; the largest for what
/// is larger, and negative zero for no number, which it does not have.
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
            let elements = unpacked(&tensor);
            let found: Vec<i128> = elements.iter().map(|&it| decoded(dtype, it)).collect();
            assert_eq!(found, expected, "{dtype}");
            assert_eq!(packed(dtype, vec![count], &elements).unwrap(), tensor);
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
