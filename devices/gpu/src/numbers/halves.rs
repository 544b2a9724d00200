//! The WGSL that widens 16-bit floats to 32-bit floats and rounds them back, for kernels that
//! compute in 32 bits. Two such floats lie in one word.

use souk_memory::DType;

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

/// The functions of bf16, the upper halves of floats.
const BF16: &str = r"
fn widened(h: u32) -> f32 { return bitcast<f32>(h << 16u); }
fn narrowed(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return ((bits >> 16u) & 0x8000u) | 0x7fc0u; }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
";

/// Returns whether a type has 16 bits, so that two values lie in a word.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16)
}

/// Returns the functions `widened` and `narrowed` of a 16-bit type; an empty string for another.
pub(crate) fn packing_functions(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => F16,
        DType::Bf16 => BF16,
        _ => "",
    }
}
