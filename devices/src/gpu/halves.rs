//! 16-bit floats on a device that computes in 32: they lie two to a word, are widened where a
//! kernel reads them, and what a node makes of them is rounded once and packed.
//!
//! All of it is arithmetic of integers, so every adapter has it and every one gives the same bits.
//! Products and convolutions read packed operands as they are.

use souk_memory::DType;

use super::error::GpuError;
use super::shaders::{BY_THREAD, PRELUDE, bindings};
use super::stream::{Array, Groups, Stream};

/// The bits of a float from those of a half, and back: the nearest, of two as near the even one.
const F16: &str = r"
fn widened(h: u32) -> f32 {
  let sign = (h & 0x8000u) << 16u;
  let rest = h & 0x7fffu;
  if (rest >= 0x7c00u) { return bitcast<f32>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13u)); }
  if (rest < 0x400u) {
    return bitcast<f32>(sign | bitcast<u32>(f32(rest) * 0.000000059604644775390625));
  }
  return bitcast<f32>(sign | ((rest << 13u) + 0x38000000u));
}
fn narrowed(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  let sign = (bits >> 16u) & 0x8000u;
  let rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) { return sign | 0x7e00u; }
  if (rest >= 0x477ff000u) { return sign | 0x7c00u; }
  if (rest < 0x38800000u) { return sign | u32(round(bitcast<f32>(rest) * 16777216.0)); }
  return sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13u) & 1u)) >> 13u);
}
";

/// The same for the upper halves of floats.
const BF16: &str = r"
fn widened(h: u32) -> f32 { return bitcast<f32>(h << 16u); }
fn narrowed(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return ((bits >> 16u) & 0x8000u) | 0x7fc0u; }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
";

/// Whether values of a type lie two to a word.
pub(super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16)
}

/// The functions `widened` and `narrowed` of a type of 16 bits; nothing for another.
pub(super) fn functions(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => F16,
        DType::Bf16 => BF16,
        _ => "",
    }
}

/// How WGSL reads element `at` of `array`, whose words are [`words`] of the type.
pub(super) fn read(dtype: DType, array: &str, at: &str) -> String {
    match is_half(dtype) {
        true => format!("widened(({array}[({at}) / 2u] >> (16u * (({at}) & 1u))) & 0xffffu)"),
        false => format!("{array}[{at}]"),
    }
}

/// How WGSL names the words that floats of a type lie in.
pub(super) fn words(dtype: DType) -> &'static str {
    if is_half(dtype) { "u32" } else { "f32" }
}

/// A packed array as 32-bit floats; another is given back as it is.
pub(super) fn widen(stream: &mut Stream<'_>, array: Array) -> Result<Array, GpuError> {
    if !is_half(array.dtype) {
        return Ok(array);
    }
    let wide = stream.array(DType::F32, &array.dims)?;
    let arrays = bindings(&[("x", "u32"), ("y", "f32")], 1);
    let (functions, read) = (functions(array.dtype), read(array.dtype, "x", "i"));
    let source = format!("{PRELUDE}{functions}{arrays}{BY_THREAD}  y[i] = {read};\n}}");
    let count = size(array.count())?;
    let groups = Groups::Threads(array.count());
    stream.dispatch(&source, &[count], &[&array, &wide], groups)?;
    Ok(wide)
}

/// 32-bit floats rounded to a type of 16 bits, a thread for two of them; what is of that type
/// already is given back as it is.
pub(super) fn narrow(
    stream: &mut Stream<'_>,
    array: Array,
    dtype: DType,
) -> Result<Array, GpuError> {
    if !is_half(dtype) || array.dtype != DType::F32 {
        return Ok(array);
    }
    let packed = stream.array(dtype, &array.dims)?;
    let arrays = bindings(&[("x", "f32"), ("y", "u32")], 1);
    let functions = functions(dtype);
    let source = format!(
        r"{PRELUDE}{functions}{arrays}{BY_THREAD}
  var word = narrowed(x[2u * i]);
  if (2u * i + 1u < p[1]) {{ word |= narrowed(x[2u * i + 1u]) << 16u; }}
  y[i] = word;
}}"
    );
    let pairs = array.count().div_ceil(2);
    let sizes = [size(pairs)?, size(array.count())?];
    stream.dispatch(&source, &sizes, &[&array, &packed], Groups::Threads(pairs))?;
    Ok(packed)
}

fn size(count: usize) -> Result<u32, GpuError> {
    use crate::cpu::reference::call::KernelError;
    let size = u32::try_from(count).map_err(|_| KernelError::TooLarge(count as u128))?;
    Ok(size)
}
