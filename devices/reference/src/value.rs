//! Converts tensors to plain numbers and back: 64-bit floats, 128-bit integers, or bytes.

use bytes::Bytes;
use souk_memory::{Bf16, DType, F16, Shape, Tensor};

use super::error::KernelError;
use super::functions::PowerRounding;
use super::narrow;

/// Returns the elements as floats; integers and booleans become the nearest float.
pub(super) fn to_floats(tensor: &Tensor) -> Result<Vec<f64>, KernelError> {
    match tensor.dtype() {
        dtype if dtype.is_float() && dtype.bit_width() >= 16 => Ok(tensor.to_f64s()?),
        dtype if super::functions::is_small_float(dtype) => {
            let decode = |&byte: &u8| super::functions::decode_small(dtype, byte);
            Ok(tensor.bytes().iter().map(decode).collect())
        }
        DType::F4E2M1 => {
            let elements = narrow::unpack_elements(tensor).into_iter();
            Ok(elements.map(narrow::decoded_float).collect())
        }
        DType::F8E8M0 => {
            let bytes = tensor.bytes().iter();
            Ok(bytes
                .map(|&byte| super::functions::decode_power(byte))
                .collect())
        }
        _ => Ok(to_ints(tensor)?
            .into_iter()
            .map(|value| value as f64)
            .collect()),
    }
}

/// Returns the elements as integers; truncates floats.
pub(super) fn to_ints(tensor: &Tensor) -> Result<Vec<i128>, KernelError> {
    fn wide<T: souk_memory::Element + Into<i128>>(tensor: &Tensor) -> Vec<i128> {
        let values = tensor.elements::<T>().expect("the type was matched");
        values.iter().map(|&value| value.into()).collect()
    }
    match tensor.dtype() {
        DType::I64 => Ok(wide::<i64>(tensor)),
        DType::I32 => Ok(wide::<i32>(tensor)),
        DType::I16 => Ok(wide::<i16>(tensor)),
        DType::I8 => Ok(wide::<i8>(tensor)),
        DType::U64 => Ok(wide::<u64>(tensor)),
        DType::U32 => Ok(wide::<u32>(tensor)),
        DType::U16 => Ok(wide::<u16>(tensor)),
        DType::U8 => Ok(wide::<u8>(tensor)),
        DType::Bool => Ok(tensor
            .bytes()
            .iter()
            .map(|&byte| i128::from(byte))
            .collect()),
        dtype if dtype.is_float() => Ok(to_floats(tensor)?
            .into_iter()
            .map(|it| it as i128)
            .collect()),
        dtype if narrow::is_narrow(dtype) => {
            let elements = narrow::unpack_elements(tensor).into_iter();
            Ok(elements
                .map(|it| narrow::decode_integer(dtype, it))
                .collect())
        }
        dtype => Err(KernelError::DType(dtype)),
    }
}

/// Returns the elements as integers for sizes, axes and indices.
pub(super) fn to_indices(tensor: &Tensor) -> Result<Vec<i64>, KernelError> {
    let narrow = |value: i128| i64::try_from(value).map_err(|_| KernelError::Range(0));
    to_ints(tensor)?.into_iter().map(narrow).collect()
}

/// Returns the elements as booleans: true unless zero.
pub(super) fn to_truths(tensor: &Tensor) -> Result<Vec<bool>, KernelError> {
    if tensor.dtype().is_float() {
        return Ok(to_floats(tensor)?
            .into_iter()
            .map(|value| value != 0.0)
            .collect());
    }
    Ok(to_ints(tensor)?
        .into_iter()
        .map(|value| value != 0)
        .collect())
}

/// Creates a tensor from floats, rounded to `dtype`, or truncated if it is an integer type.
pub(super) fn from_floats(
    dtype: DType,
    dims: &[usize],
    values: Vec<f64>,
) -> Result<Tensor, KernelError> {
    let dims = dims.to_vec();
    match dtype {
        DType::F64 => Ok(Tensor::from_vec(dims, values)?),
        DType::F32 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| it as f32),
        )?),
        DType::F16 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| F16::from_f32(round_to_odd(it))),
        )?),
        DType::Bf16 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| Bf16::from_f32(round_to_odd(it))),
        )?),
        DType::Bool => from_truths(&dims, convert_values(values, |it| it != 0.0)),
        DType::F4E2M1 => {
            narrow::pack_elements(dtype, dims, &convert_values(values, narrow::encoded_float))
        }
        DType::F8E8M0 => {
            let encode = |value| super::functions::encode_power(value, PowerRounding::Up, true);
            from_bytes(dtype, &dims, convert_values(values, encode))
        }
        dtype if super::functions::is_small_float(dtype) => {
            let encode = |value| super::functions::encode_small(dtype, value, true);
            from_bytes(dtype, &dims, convert_values(values, encode))
        }
        _ => from_ints(dtype, &dims, convert_values(values, |it| it as i128)),
    }
}

/// Creates a tensor from integers, wrapped to `dtype`, or rounded to its nearest floats.
pub(super) fn from_ints(
    dtype: DType,
    dims: &[usize],
    values: Vec<i128>,
) -> Result<Tensor, KernelError> {
    let dims = dims.to_vec();
    match dtype {
        DType::I64 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| it as i64),
        )?),
        DType::I32 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| it as i32),
        )?),
        DType::I16 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| it as i16),
        )?),
        DType::I8 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| it as i8),
        )?),
        DType::U64 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| it as u64),
        )?),
        DType::U32 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| it as u32),
        )?),
        DType::U16 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| it as u16),
        )?),
        DType::U8 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| it as u8),
        )?),
        DType::Bool => from_truths(&dims, convert_values(values, |it| it != 0)),
        DType::F32 => Ok(Tensor::from_vec(
            dims,
            convert_values(values, |it| it as f32),
        )?),
        DType::F16 => {
            let halves = convert_values(values, |it| F16::from_f32(odd_of_int(it)));
            Ok(Tensor::from_vec(dims, halves)?)
        }
        DType::Bf16 => {
            let halves = convert_values(values, |it| Bf16::from_f32(odd_of_int(it)));
            Ok(Tensor::from_vec(dims, halves)?)
        }
        dtype if dtype.is_float() => {
            from_floats(dtype, &dims, convert_values(values, |it| it as f64))
        }
        dtype if narrow::is_narrow(dtype) => {
            narrow::pack_elements(dtype, dims, &convert_values(values, |it| it as u8))
        }
        dtype => Err(KernelError::DType(dtype)),
    }
}

/// Creates a tensor of 64-bit integers.
pub(super) fn from_indices(dims: &[usize], values: Vec<i64>) -> Result<Tensor, KernelError> {
    Ok(Tensor::from_vec(dims.to_vec(), values)?)
}

/// Creates a boolean tensor.
pub(super) fn from_truths(dims: &[usize], values: Vec<bool>) -> Result<Tensor, KernelError> {
    Ok(Tensor::from_bools(dims.to_vec(), &values)?)
}

/// Creates a tensor from the bytes of its elements.
pub(super) fn from_bytes(
    dtype: DType,
    dims: &[usize],
    bytes: Vec<u8>,
) -> Result<Tensor, KernelError> {
    Ok(Tensor::new(
        dtype,
        Shape::new(dims.to_vec())?,
        Bytes::from(bytes),
    )?)
}

/// Returns the bytes of an element of a type that is not packed.
pub(super) fn element_bytes(tensor: &Tensor) -> Result<usize, KernelError> {
    tensor
        .dtype()
        .byte_width()
        .ok_or(KernelError::DType(tensor.dtype()))
}

fn convert_values<S, T>(values: Vec<S>, convert: impl FnMut(S) -> T) -> Vec<T> {
    values.into_iter().map(convert).collect()
}

/// Converts an integer to a 32-bit float, rounded to odd.
fn odd_of_int(value: i128) -> f32 {
    let near = value as f32;
    let (bits, whole) = (near.to_bits(), near as i128);
    if whole == value || bits & 1 == 1 {
        return near;
    }
    let too_large = whole.unsigned_abs() > value.unsigned_abs();
    f32::from_bits(if too_large { bits - 1 } else { bits + 1 })
}

/// Converts to a 32-bit float, rounded to odd, so that a second rounding to fewer bits has the same
/// result as rounding `value` itself.
fn round_to_odd(value: f64) -> f32 {
    let near = value as f32;
    let bits = near.to_bits();
    if !near.is_finite() || f64::from(near) == value || bits & 1 == 1 {
        return near;
    }
    let too_large = f64::from(near).abs() > value.abs();
    f32::from_bits(if too_large { bits - 1 } else { bits + 1 })
}
