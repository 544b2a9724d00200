//! Records the kernels of `QuantizeLinear`, `DequantizeLinear` and `DynamicQuantizeLinear`, which
//! convert floats to integers of 16 bits or fewer, or to floats of 8 or 4 bits, and back. There is
//! one scale for the whole tensor, for each slice along an axis, or for each block of such slices.
//! In the expressions of kernels, `a`, `b` and `c` are the inputs, and `s` and `t` the numbers that
//! [`map`] gets.

use souk_memory::DType;
use souk_reference::call::{KernelError, resolve_axis};

use crate::error::GpuError;
use crate::numbers::integers::{packed_bits, value_range};
use crate::numbers::packed::{compute_dtype, is_small_float};
use crate::numbers::quarters::Rounding;
use crate::operators::elementwise::map;
use crate::operators::gather::take_runs;
use crate::operators::reduce;
use crate::recording::{Array, Step, narrow_by};

/// Returns a scale or a zero point in a shape that broadcasts to `dims`. It has one value for the
/// whole input, for each slice along the axis, or for each block of such slices.
fn repeat_parameter(
    step: &mut Step<'_, '_>,
    array: Array,
    dims: &[usize],
) -> Result<Array, GpuError> {
    if array.count() == 1 {
        return Ok(array.with_dims(Vec::new()));
    }
    let axis = resolve_axis(step.call.int_attribute("axis", 1), dims.len())?;
    let block = step.call.int_attribute("block_size", 0).max(0) as usize;
    if block > 0 {
        return repeat_blocks(step, &array, dims, axis, block);
    }
    if array.dims != [dims[axis]] {
        return Err(KernelError::Shapes(array.dims, vec![dims[axis]]).into());
    }
    let mut shape = vec![1; dims.len() - axis];
    shape[0] = dims[axis];
    Ok(array.with_dims(shape))
}

/// Repeats the value of each block along `axis` for every element of the block; the last block can
/// be shorter.
fn repeat_blocks(
    step: &mut Step<'_, '_>,
    array: &Array,
    dims: &[usize],
    axis: usize,
    block: usize,
) -> Result<Array, GpuError> {
    let size = dims[axis];
    let mut expected_dims = dims.to_vec();
    expected_dims[axis] = size.div_ceil(block);
    if array.dims != expected_dims {
        return Err(KernelError::Shapes(array.dims.clone(), expected_dims).into());
    }
    let outer: usize = dims[..axis].iter().product();
    let run_length = dims[axis + 1..].iter().product();
    let blocks = expected_dims[axis];
    let offsets = |outer: usize| (0..size).map(move |at| (outer * blocks + at / block) as i32);
    let offsets: Vec<i32> = (0..outer).flat_map(offsets).collect();
    take_runs(step, array, &offsets, run_length, dims)
}

/// Returns the node's scale (input 1) and, if it has one, its zero point (input 2), each in a shape
/// that broadcasts to `dims`.
fn scale_and_zero(
    step: &mut Step<'_, '_>,
    dims: &[usize],
) -> Result<(Array, Option<Array>), GpuError> {
    let scale = step.wide_array(1)?;
    let scale = repeat_parameter(step, scale, dims)?;
    let zero = match step.optional_wide(2)? {
        Some(zero) => Some(repeat_parameter(step, zero, dims)?),
        None => None,
    };
    Ok((scale, zero))
}

/// Records `QuantizeLinear` to a type of 16 bits or fewer, by default U8. It rounds to the nearest
/// integer, ties to even; NaN becomes 0.
pub(crate) fn quantise(step: &mut Step<'_, '_>, to: Option<DType>) -> Result<Vec<Array>, GpuError> {
    let input = step.wide_array(0)?;
    let (scale, zero) = scale_and_zero(step, &input.dims)?;
    let to = to.unwrap_or(DType::U8);
    let mut inputs = vec![(&input, DType::F32), (&scale, DType::F32)];
    inputs.extend(zero.as_ref().map(|zero| (zero, zero.dtype)));
    let has_zero = zero.is_some();
    if is_small_float(to) {
        // Without a zero point, it adds 0 (`s`), so that negative zero becomes zero.
        let expression = if has_zero { "a / b + c" } else { "a / b + s" };
        let made = map(step, expression, &inputs, DType::F32, [0.0; 3])?;
        let rounding = Rounding::from_call(&step.call);
        return Ok(vec![narrow_by(step.stream, made, to, rounding)?]);
    }
    if packed_bits(to).is_none() {
        return Err(KernelError::DType(to).into());
    }
    let expression = match has_zero {
        true => "select(i32(clamp(round(a / b) + f32(c), s, t)), 0i, is_nan(a / b))",
        false => "select(i32(clamp(round(a / b), s, t)), 0i, is_nan(a / b))",
    };
    let [low, high] = value_range(to);
    let made = map(
        step,
        expression,
        &inputs,
        compute_dtype(to),
        [low, high, 0.0],
    )?;
    Ok(vec![made])
}

/// Records `DequantizeLinear`, from integers or small floats to 32-bit floats.
pub(crate) fn dequantise(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.wide_array(0)?;
    let (scale, zero) = scale_and_zero(step, &input.dims)?;
    let mut inputs = vec![(&input, input.dtype), (&scale, DType::F32)];
    inputs.extend(zero.as_ref().map(|zero| (zero, zero.dtype)));
    let expression = match zero.is_some() {
        true => "f32(a - c) * b",
        false => "f32(a) * b",
    };
    Ok(vec![map(step, expression, &inputs, DType::F32, [0.0; 3])?])
}

/// Records `DynamicQuantizeLinear`. Returns the input as unsigned bytes, and the scale and the zero
/// point that it chose: the smallest range that contains all values and zero.
pub(crate) fn quantise_dynamic(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.wide_array(0)?;
    let high = reduce::reduce_all(step, &input, ["0.0", "v", "larger(a, b)", "a"])?;
    let low = reduce::reduce_all(step, &input, ["0.0", "v", "smaller(a, b)", "a"])?;
    let ends = [(&high, DType::F32), (&low, DType::F32)];
    let scale = "select((a - b) / 255.0, 1.0, a == b)";
    let scale = map(step, scale, &ends, DType::F32, [0.0; 3])?;
    let ends = [(&low, DType::F32), (&scale, DType::F32)];
    let zero = "i32(clamp(round(-a / b), 0.0, 255.0))";
    let zero = map(step, zero, &ends, DType::I32, [0.0; 3])?;
    let inputs = [
        (&input, DType::F32),
        (&scale, DType::F32),
        (&zero, DType::I32),
    ];
    let made = "i32(clamp(round(a / b) + f32(c), 0.0, 255.0))";
    let made = map(step, made, &inputs, DType::I32, [0.0; 3])?;
    Ok(vec![made, scale, zero])
}
