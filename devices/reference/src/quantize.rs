//! Computes the operators that quantise floats to narrow integers or 8-bit floats, and those that
//! convert them back.

use souk_memory::{DType, Tensor};

use super::call::{Call, KernelError, Results, resolve_axis};
use super::functions::{encode_small, is_small_float, round_half_even};
use super::generate::stated_type;
use super::shape::split_at_axis;
use super::value::{from_bytes, from_floats, from_ints, to_floats};

/// Converts a rounded float to an integer, clamped to the type.
pub(super) fn clamp_to_type(dtype: DType, value: f64) -> i128 {
    let bits = dtype.bit_width() as u32;
    let (low, high) = if dtype.name().starts_with('i') {
        (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
    } else {
        (0, (1i128 << bits) - 1)
    };
    (value as i128).clamp(low, high)
}

/// Returns the index of each element's scale: one for all, one per slice of an axis, or one per
/// block. There must be as many scales as slices or blocks.
fn scale_places(
    call: &Call<'_>,
    input: &Tensor,
    scale: &Tensor,
) -> Result<Vec<usize>, KernelError> {
    let elements = input.shape().element_count();
    if scale.shape().element_count() == 1 {
        return Ok(vec![0; elements]);
    }
    let axis = resolve_axis(call.int_attribute("axis", 1), input.dims().len())?;
    let (_, size, inner) = split_at_axis(input.dims(), axis);
    let block = call.int_attribute("block_size", 0).max(0) as usize;
    if block == 0 {
        if scale.shape().element_count() != size {
            return Err(KernelError::Shapes(scale.dims().to_vec(), vec![size]));
        }
        return Ok((0..elements).map(|place| place / inner % size).collect());
    }
    let blocks = *scale.dims().get(axis).ok_or(KernelError::Range(1))?;
    if blocks != size.div_ceil(block) {
        return Err(KernelError::Shapes(
            scale.dims().to_vec(),
            input.dims().to_vec(),
        ));
    }
    let of = |place: usize| {
        let (outer, rest) = (place / (size * inner), place % (size * inner));
        (outer * blocks + rest / inner / block) * inner + rest % inner
    };
    Ok((0..elements).map(of).collect())
}

pub(super) fn quantize(call: &Call<'_>) -> Results {
    let (input, scale) = (call.input(0)?, call.input(1)?);
    let stated = match call.int_attribute("output_dtype", 0) {
        0 => None,
        _ => stated_type(call, "output_dtype")?,
    };
    let zero = call.optional_input(2);
    let dtype = stated.or(zero.map(Tensor::dtype)).unwrap_or(DType::U8);
    let places = scale_places(call, input, scale)?;
    let scales = to_floats(scale)?;
    let zeros = zero.map(to_floats).transpose()?;
    let zero_of = |place: usize| {
        zeros
            .as_ref()
            .map_or(0.0, |zeros| zeros[place % zeros.len()])
    };
    // Division in 32 bits, as the operator defines it.
    let scaled = to_floats(input)?.into_iter().zip(places);
    let scaled = scaled.map(|(value, at)| (f64::from((value / scales[at]) as f32), at));
    if dtype == DType::F4E2M1 {
        let values = scaled.map(|(value, at)| value + zero_of(at));
        return Ok(vec![from_floats(dtype, input.dims(), values.collect())?]);
    }
    if is_small_float(dtype) {
        let saturate = call.int_attribute("saturate", 1) != 0;
        let bytes = scaled.map(|(value, at)| encode_small(dtype, value + zero_of(at), saturate));
        return Ok(vec![from_bytes(dtype, input.dims(), bytes.collect())?]);
    }
    let values =
        scaled.map(|(value, at)| clamp_to_type(dtype, round_half_even(value) + zero_of(at)));
    Ok(vec![from_ints(dtype, input.dims(), values.collect())?])
}

pub(super) fn dequantize(call: &Call<'_>) -> Results {
    let (input, scale) = (call.input(0)?, call.input(1)?);
    let stated = match call.int_attribute("output_dtype", 0) {
        0 => None,
        _ => stated_type(call, "output_dtype")?,
    };
    let dtype = stated.unwrap_or(scale.dtype());
    let places = scale_places(call, input, scale)?;
    let scales = to_floats(scale)?;
    let zeros = call.optional_input(2).map(to_floats).transpose()?;
    let zero_of = |place: usize| {
        zeros
            .as_ref()
            .map_or(0.0, |zeros| zeros[place % zeros.len()])
    };
    let values = to_floats(input)?.into_iter().zip(places);
    let values = values
        .map(|(value, at)| (value - zero_of(at)) * scales[at])
        .collect();
    Ok(vec![from_floats(dtype, input.dims(), values)?])
}

/// Computes scale and zero point for the input's range, extended to include zero.
pub(super) fn dynamic_quantize(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let values = to_floats(input)?;
    let low = values.iter().copied().fold(0.0, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    let scale = f64::from(((high - low) / 255.0) as f32);
    let scale = if scale == 0.0 { 1.0 } else { scale };
    let zero = round_half_even(-low / scale).clamp(0.0, 255.0);
    let quantise = |value: f64| {
        clamp_to_type(
            DType::U8,
            round_half_even(f64::from((value / scale) as f32)) + zero,
        )
    };
    Ok(vec![
        from_ints(
            DType::U8,
            input.dims(),
            values.into_iter().map(quantise).collect(),
        )?,
        from_floats(DType::F32, &[], vec![scale])?,
        from_ints(DType::U8, &[], vec![zero as i128])?,
    ])
}
