//! Integers: those of 32 bits a word each, of 64 two where the device has such; narrower ones
//! packed and computed with in 32, so that what leaves their range wraps when it is packed, as
//! ONNX's do.

use souk_memory::DType;

use super::elementwise::Map;

/// Rests of floats, which WGSL does not compute exactly: here the dividend is brought down bit by
/// bit.
pub(super) const RESTS: &str = r"
fn rest_of(x: f32, y: f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  if (a >= 0x7f800000u || b > 0x7f800000u || b == 0u) { return not_a_number(); }
  if (a < b) { return x; }
  var place = max(a >> 23u, 1u);
  var rest = a & 0x7fffffu;
  if (a >= 0x800000u) { rest = rest | 0x800000u; }
  let last = max(b >> 23u, 1u);
  var by = b & 0x7fffffu;
  if (b >= 0x800000u) { by = by | 0x800000u; }
  for (; place > last; place--) {
    rest = (rest % by) << 1u;
  }
  rest = rest % by;
  if (rest == 0u) { return bitcast<f32>(sign); }
  while (place > 1u && rest < 0x800000u) { rest = rest << 1u; place--; }
  if (rest < 0x800000u) { return bitcast<f32>(sign | rest); }
  return bitcast<f32>(sign | ((place << 23u) + (rest - 0x800000u)));
}
fn float_modulo(a: f32, b: f32) -> f32 {
  let r = rest_of(a, b);
  return select(r, r + b, r != 0.0 && (r < 0.0) != (b < 0.0));
}
";

/// Functions of integers of 32 bits that WGSL lacks.
pub(super) const FUNCTIONS: &str = r"
fn modulo(a: i32, b: i32) -> i32 {
  let r = a % b;
  return select(r, r + b, r != 0 && (r < 0) != (b < 0));
}
fn whole_power(base: u32, exponent: u32) -> u32 {
  var r = u32(1);
  var b = base;
  for (var e = exponent; e > 0; e = e >> 1u) {
    if ((e & 1) != 0) { r = r * b; }
    b = b * b;
  }
  return r;
}
fn signed_power(base: i32, exponent: i32) -> i32 {
  if (exponent >= 0) { return bitcast<i32>(whole_power(bitcast<u32>(base), u32(exponent))); }
  if (base == 0) { return -1; }
  if (base == 1 || base == -1) { return select(base, 1, (exponent & 1) == 0); }
  return 0;
}
";

/// Bits of an integer type of which several lie in a word.
pub(super) fn packed_bits(dtype: DType) -> Option<usize> {
    use DType::{I2, I4, I8, I16, U2, U4, U8, U16};
    matches!(dtype, I2 | I4 | I8 | I16 | U2 | U4 | U8 | U16).then(|| dtype.bits())
}

/// Whether the device computes with integers of this type.
pub(super) fn is_whole(dtype: DType) -> bool {
    let bits = packed_bits(dtype);
    bits.is_some_and(|bits| bits >= 8) || matches!(dtype, DType::I32 | DType::U32)
}

/// The functions `widened` and `narrowed` of a packed type.
pub(super) fn functions(dtype: DType, bits: usize) -> String {
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

/// What an operator does with one or two integers of 32 bits: with signed ones if `is_signed`.
pub(super) fn of(operator: &str, is_signed: bool) -> Option<Map> {
    let expression = match (operator, is_signed) {
        ("Add" | "Sum", _) => "a + b",
        ("Sub", _) => "a - b",
        ("Mul", _) => "a * b",
        ("Div", _) => "a / b",
        ("Mod", true) => "modulo(a, b)",
        ("Mod", false) => "a % b",
        ("Max", _) => "max(a, b)",
        ("Min", _) => "min(a, b)",
        ("BitwiseAnd", _) => "a & b",
        ("BitwiseOr", _) => "a | b",
        ("BitwiseXor", _) => "a ^ b",
        ("BitwiseNot", _) => "~a",
        ("Abs", true) => "abs(a)",
        ("Neg", true) => "-a",
        ("Sign", true) => "sign(a)",
        ("Sign", false) => "min(a, 1)",
        ("Relu", true) => "max(a, 0)",
        ("Abs" | "Relu", false) => "a",
        ("Equal", _) => return Some(test("u32(a == b)", is_signed)),
        ("Greater", _) => return Some(test("u32(a > b)", is_signed)),
        ("GreaterOrEqual", _) => return Some(test("u32(a >= b)", is_signed)),
        ("Less", _) => return Some(test("u32(a < b)", is_signed)),
        ("LessOrEqual", _) => return Some(test("u32(a <= b)", is_signed)),
        _ => return None,
    };
    Some(plain(expression, is_signed))
}

/// An expression of integers that makes an integer.
pub(super) fn plain(expression: &'static str, is_signed: bool) -> Map {
    Map {
        expression,
        inputs: word(is_signed),
        output: word(is_signed),
        numbers: &[],
    }
}

/// The same of integers of 64 bits.
pub(super) fn long_functions() -> String {
    FUNCTIONS.replace("32", "64")
}

/// `BitShift`: of what is moved by as many places as there are bits, or by fewer than none, nothing
/// is left but, to the right, the sign.
pub(super) fn shift(to_left: bool, dtype: DType) -> &'static str {
    match (to_left, dtype) {
        (true, DType::I32) => "select(a << u32(b), 0, b < 0 || b >= 32)",
        (true, DType::I64) => "select(a << u32(b), 0, b < 0 || b >= 64)",
        (true, DType::U64) => "select(a << u32(b), 0, b >= 64)",
        (true, _) => "select(a << b, 0u, b >= 32u)",
        (false, DType::I32) => "select(a >> u32(b), a >> 31u, b < 0 || b >= 32)",
        (false, DType::I64) => "select(a >> u32(b), a >> 63u, b < 0 || b >= 64)",
        (false, DType::U64) => "select(a >> u32(b), 0, b >= 64)",
        (false, _) => "select(a >> b, 0u, b >= 32u)",
    }
}

/// `Pow` of integers by integers of so many bits: what is not whole is cut off, what leaves their
/// range wraps.
pub(super) fn power(base_is_signed: bool, exponent_is_signed: bool, bits: usize) -> String {
    let expression = match (base_is_signed, exponent_is_signed) {
        (true, true) => "signed_power(a, b)",
        (true, false) => "bitcast<i32>(whole_power(bitcast<u32>(a), b))",
        (false, true) => {
            "select(select(u32(), whole_power(a, u32(b)), b >= 0 || a == 1), \
                          ~u32(), b < 0 && a == 0)"
        }
        (false, false) => "whole_power(a, b)",
    };
    expression.replace("32", &bits.to_string())
}

/// An expression of 32-bit integers as one of those of 64.
pub(super) fn long(map: Map, dtype: DType) -> Map {
    let output = if map.output == map.inputs {
        dtype
    } else {
        map.output
    };
    Map {
        inputs: dtype,
        output,
        ..map
    }
}

/// `Mod` of floats: the rest has the divisor's sign, or with `fmod` the dividend's.
pub(super) fn rest(is_fmod: bool) -> Map {
    Map {
        expression: if is_fmod {
            "rest_of(a, b)"
        } else {
            "float_modulo(a, b)"
        },
        inputs: DType::F32,
        output: DType::F32,
        numbers: &[],
    }
}

fn test(expression: &'static str, is_signed: bool) -> Map {
    Map {
        expression,
        inputs: word(is_signed),
        output: DType::Bool,
        numbers: &[],
    }
}

/// What integers are computed with as.
fn word(is_signed: bool) -> DType {
    if is_signed { DType::I32 } else { DType::U32 }
}
