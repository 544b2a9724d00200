//! The WGSL that widens floats of 8 and 4 bits to 32-bit floats and rounds them back, as a node
//! that casts or quantises asks. It covers four layouts of 8-bit floats, powers of two of 8 bits,
//! and the float of 4 bits.

use souk_memory::DType;
use souk_reference::call::Call;

/// How an 8-bit float is laid out.
struct Layout {
    fraction_bits: u32,
    bias: u32,
    /// Exponent and fraction of the largest value.
    largest: u32,
    kind: SpecialValues,
}

/// How a format encodes NaN and infinity.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SpecialValues {
    /// As in wider floats.
    Ieee,
    /// The largest pattern is NaN; there is no infinity.
    Finite,
    /// Negative zero is NaN; there is no infinity.
    UnsignedZero,
}

fn float_layout(dtype: DType) -> Option<Layout> {
    let (fraction_bits, bias, largest, kind) = match dtype {
        DType::F8E4M3Fn => (3, 7, 0x7e, SpecialValues::Finite),
        DType::F8E4M3FnUz => (3, 8, 0x7f, SpecialValues::UnsignedZero),
        DType::F8E5M2 => (2, 15, 0x7b, SpecialValues::Ieee),
        DType::F8E5M2FnUz => (2, 16, 0x7f, SpecialValues::UnsignedZero),
        _ => return None,
    };
    Some(Layout {
        fraction_bits,
        bias,
        largest,
        kind,
    })
}

/// The floats of 4 bits, whose sizes are 0, 0.5, 1, 1.5, 2, 3, 4 and 6. Rounds to the nearest, of
/// two equally near to the even one, and NaN to negative zero.
const EIGHTHS: &str = r"
fn widened(h: u32) -> f32 {
  let rest = h & 7u;
  var v = f32(rest) * 0.5;
  if (rest > 4u) { v = f32(rest) - 2.0; }
  if (rest == 7u) { v = 6.0; }
  return bitcast<f32>(bitcast<u32>(v) | ((h & 8u) << 28u));
}
fn narrowed(v: f32) -> u32 {
  if (is_nan(v)) { return 8u; }
  let a = abs(v);
  let size = u32(a > 0.25) + u32(a >= 0.75) + u32(a > 1.25) + u32(a >= 1.75) + u32(a > 2.5)
    + u32(a >= 3.5) + u32(a > 5.0);
  return ((bitcast<u32>(v) >> 28u) & 8u) | size;
}
";

/// The powers of two of 8 bits: an exponent alone, of which the largest is NaN. A float with the
/// bits `bits` between two of them becomes the larger if `{up}`. ONNX leaves negative values and
/// values that are too large undefined.
const POWERS_OF_TWO: &str = r"
fn widened(h: u32) -> f32 {
  if (h == 0xffu) { return not_a_number(); }
  return bitcast<f32>(select(h << 23u, 0x400000u, h == 0u));
}
fn narrowed(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  let exponent = (bits >> 23u) & 0xffu;
  if (exponent == 0xffu) { return exponent; }
  return min(exponent + select(0u, 1u, {up}), {largest}u);
}
";

/// How floats are rounded to those of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounding {
    /// Whether values that are too large become the largest finite one.
    pub saturates: bool,
    /// The direction in which values between two powers of two are rounded.
    pub direction: Direction,
}

/// The neighbour to which a value between two powers of two is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
    Nearest,
}

impl Default for Rounding {
    fn default() -> Self {
        Self {
            saturates: true,
            direction: Direction::Up,
        }
    }
}

impl Rounding {
    /// Returns the rounding that a node that casts asks for.
    pub fn from_call(call: &Call<'_>) -> Self {
        Self {
            saturates: call.int_attribute("saturate", 1) != 0,
            direction: match call.text_attribute("round_mode", "up") {
                "down" => Direction::Down,
                "nearest" => Direction::Nearest,
                _ => Direction::Up,
            },
        }
    }

    fn powers_of_two(self) -> String {
        // Round a value in the middle up, but a value below the least power to the least.
        let up = match self.direction {
            Direction::Up => "(bits & 0x7fffffu) != 0u",
            Direction::Down => "false",
            Direction::Nearest => {
                "(bits & 0x400000u) != 0u && (exponent > 0u || (bits & 0x3fffffu) != 0u)"
            }
        };
        let largest = if self.saturates { "0xfe" } else { "0xff" };
        POWERS_OF_TWO
            .replace("{up}", up)
            .replace("{largest}", largest)
    }
}

/// Whether a type is the power of two of 8 bits.
pub(crate) fn is_power_of_two(dtype: DType) -> bool {
    dtype == DType::F8E8M0
}

/// Whether a type is the float of 4 bits.
pub(crate) fn is_eighth_float(dtype: DType) -> bool {
    dtype == DType::F4E2M1
}

/// Whether a type is an integer of 8 bits.
pub(crate) fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8)
}

/// Whether a type is a float of 8 bits that the device knows.
pub(crate) fn is_f8(dtype: DType) -> bool {
    float_layout(dtype).is_some()
}

/// Returns the functions `widened` and `narrowed` of an 8-bit float; an empty string for another
/// type.
pub(crate) fn packing_functions(dtype: DType, rounding: Rounding) -> String {
    if is_eighth_float(dtype) {
        return EIGHTHS.to_owned();
    }
    if is_power_of_two(dtype) {
        return rounding.powers_of_two();
    }
    float_layout(dtype).map_or(String::new(), |layout| {
        float_functions(&layout, rounding.saturates)
    })
}

fn float_functions(layout: &Layout, saturates: bool) -> String {
    let Layout {
        fraction_bits,
        bias,
        largest,
        kind,
    } = layout;
    // The patterns that are not finite, and the patterns for NaN and for overflow.
    let (odd, none, beyond) = match kind {
        SpecialValues::Ieee => ("rest >= 0x7cu", "sign | 0x7eu", "sign | 0x7cu"),
        SpecialValues::Finite => ("rest == 0x7fu", "sign | 0x7fu", "sign | 0x7fu"),
        SpecialValues::UnsignedZero => ("h == 0x80u", "0x80u", "0x80u"),
    };
    let odd_bits = match kind {
        SpecialValues::Ieee => "0x7f800000u | ((rest & 3u) << 21u)",
        SpecialValues::Finite | SpecialValues::UnsignedZero => "0x7fc00000u",
    };
    let beyond = match saturates {
        true => format!("sign | {largest}u"),
        false => beyond.to_owned(),
    };
    let zero = match kind {
        SpecialValues::UnsignedZero => "if (r == 0u) { return 0u; }",
        SpecialValues::Ieee | SpecialValues::Finite => "",
    };
    let shift = 23 - fraction_bits;
    let moved = (127 - bias) << 23;
    let normal = (128 - bias) << 23;
    let half = (1u32 << (shift - 1)) - 1;
    // Write a power of two in full: the smallest value, and how many of them make 1.
    let per_one = 1u64 << (bias - 1 + fraction_bits);
    let least = 1.0 / per_one as f64;
    format!(
        r"
fn widened(h: u32) -> f32 {{
  let sign = (h & 0x80u) << 24u;
  let rest = h & 0x7fu;
  if ({odd}) {{ return bitcast<f32>(sign | {odd_bits}); }}
  if (rest < {first}u) {{ return bitcast<f32>(sign | bitcast<u32>(f32(rest) * {least:.24})); }}
  return bitcast<f32>(sign | ((rest << {shift}u) + {moved}u));
}}
fn narrowed(v: f32) -> u32 {{
  let bits = bitcast<u32>(v);
  let sign = (bits >> 24u) & 0x80u;
  let rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) {{ return {none}; }}
  var r = 0u;
  if (rest < {normal}u) {{
    r = u32(round(bitcast<f32>(rest) * {per_one}.0));
  }} else {{
    r = (rest - {moved}u + {half}u + ((rest >> {shift}u) & 1u)) >> {shift}u;
  }}
  if (r > {largest}u) {{ return {beyond}; }}
  {zero}
  return sign | r;
}}
",
        first = 1 << fraction_bits,
    )
}
