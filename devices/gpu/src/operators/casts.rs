//! Records the kernels of `Cast` and `CastLike`, and `Pow`, whose two operands can be of different
//! types.

mod doubles;

use souk_memory::DType;
use souk_reference::call::KernelError;

use crate::error::GpuError;
use crate::numbers::doubles::{fits_floats, is_double};
use crate::numbers::packed::{compute_dtype, per_word};
use crate::numbers::quarters::Rounding;
use crate::operators::elementwise::{integers, map};
use crate::recording::{Array, Step, narrow_by};
use doubles::{CastInput, as_f64, cast_input};

/// `Cast` and `CastLike`. If the device lacks a 64-bit type, the host casts it on its way here.
pub(crate) fn cast(step: &mut Step<'_, '_>, to: DType) -> Result<Vec<Array>, GpuError> {
    let from = match step.call.optional_input(0) {
        Some(tensor) => tensor.dtype(),
        None => step.stored_array(0)?.dtype,
    };
    let input = match cast_input(step, 0, to)? {
        CastInput::Cast(made) => return Ok(vec![made]),
        CastInput::Array(input) => input,
    };
    if to == DType::F64 && (fits_floats(from) || !step.stream.context.double_support().floats) {
        let floats = cast_wide(step, input, DType::F32)?;
        return Ok(vec![as_f64(floats)]);
    }
    if per_word(to) > 1 && compute_dtype(to) == DType::F32 {
        let floats = to_be_packed(step, input)?;
        let rounding = Rounding::from_call(&step.call);
        return Ok(vec![narrow_by(step.stream, floats, to, rounding)?]);
    }
    // Packing rounds values of a packed type.
    Ok(vec![cast_wide(step, input, compute_dtype(to))?])
}

/// Converts an array to 32-bit floats that are rounded once more. Rounds 64-bit values to odd, so
/// that the two roundings equal one.
fn to_be_packed(step: &mut Step<'_, '_>, input: Array) -> Result<Array, GpuError> {
    let wide = match input.dtype {
        dtype if is_double(dtype) && step.stream.context.double_support().floats => {
            cast_wide(step, input, DType::F64)?
        }
        _ => return cast_wide(step, input, DType::F32),
    };
    map(step, "odd(a)", &[(&wide, DType::F64)], DType::F32, [0.0; 3])
}

/// Casts an array to another type that is not packed.
pub(crate) fn cast_wide(
    step: &mut Step<'_, '_>,
    input: Array,
    to: DType,
) -> Result<Array, GpuError> {
    use DType::{Bool, F32, F64, I32, I64, U32, U64};
    let from = input.dtype;
    // Of integers of two widths the sign goes along only if neither type changes it.
    let expression = match (from, to) {
        (from, to) if from == to => return Ok(input),
        (F32 | F64, Bool) => "u32(a != 0.0)",
        (_, Bool) => "u32(a != 0)",
        (_, F32) => "f32(a)",
        (_, F64) => "f64(a)",
        (U64, I32) => "i32(u32(a))",
        (_, I32) => "i32(a)",
        (I64, U32) => "u32(u64(a))",
        (_, U32) => "u32(a)",
        (U32 | Bool, I64) => "i64(u64(a))",
        (_, I64) => "i64(a)",
        (I32, U64) => "u64(i64(a))",
        (F32 | F64, U64) => "select(u64(a), u64(i64(a)), a < 0.0)",
        (_, U64) => "u64(a)",
        _ => return Err(KernelError::DType(to).into()),
    };
    map(step, expression, &[(&input, from)], to, [0.0; 3])
}

/// Records `Pow`. The result has the type of the base.
pub(crate) fn power(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let base = step.native_array(0)?;
    match compute_dtype(base.dtype) {
        DType::F32 => {
            let exponent = doubles::numeric_input(step, 1, DType::F32)?;
            let inputs = [(&base, DType::F32), (&exponent, DType::F32)];
            let output = step.output_dtype();
            Ok(vec![map(step, "power(a, b)", &inputs, output, [0.0; 3])?])
        }
        DType::F64 => {
            let exponent = doubles::numeric_input(step, 1, DType::F64)?;
            let inputs = [(&base, DType::F64), (&exponent, DType::F64)];
            let made = map(step, "power(a, b)", &inputs, DType::F64, [0.0; 3])?;
            Ok(vec![made])
        }
        _ => power_of_whole(step, base),
    }
}

/// A power of integers, by integers or floats.
fn power_of_whole(step: &mut Step<'_, '_>, base: Array) -> Result<Vec<Array>, GpuError> {
    let (dtype, given) = (base.dtype, step.stored_array(1)?.dtype);
    let is_signed = |dtype: DType| matches!(dtype, DType::I32 | DType::I64);
    let long = |dtype| match is_signed(dtype) {
        true => DType::I64,
        false => DType::U64,
    };
    let raised = compute_dtype(given);
    if is_double(dtype) || is_double(raised) || raised.is_float() {
        let exponent = match raised.is_float() {
            true => DType::F64,
            false => long(raised),
        };
        let base = cast_wide(step, base, long(dtype))?;
        let by = doubles::numeric_input(step, 1, exponent)?;
        let expression = match (exponent, is_signed(dtype)) {
            (DType::F64, true) => "signed_float_power(a, b)".to_owned(),
            (DType::F64, false) => "unsigned_float_power(a, b)".to_owned(),
            (exponent, signed) => integers::power_expression(signed, is_signed(exponent), 64),
        };
        let inputs = [(&base, base.dtype), (&by, exponent)];
        let made = map(step, &expression, &inputs, base.dtype, [0.0; 3])?;
        return Ok(vec![cast_wide(step, made, dtype)?]);
    }
    let exponent = step.wide_array(1)?;
    let expression = integers::power_expression(is_signed(dtype), is_signed(exponent.dtype), 32);
    let inputs = [(&base, dtype), (&exponent, exponent.dtype)];
    Ok(vec![map(step, &expression, &inputs, dtype, [0.0; 3])?])
}
