//! The WGSL functions that the expressions of element-wise operators use in addition to those of
//! WGSL itself, such as `expm1` and the error function. Element-wise kernels and the tails of
//! products include them.

use super::doubles::POWERS;
use super::prelude;

/// Functions that the expressions use in addition to those of WGSL.
pub(crate) const FUNCTIONS: &str = r"
fn log1p(x: f32) -> f32 {
  if (abs(x) < 0.3) {
    let r = x / (2.0 + x);
    let q = r * r;
    return 2.0 * r * (1.0 + q * (0.33333334 + q * (0.2 + q * 0.14285715)));
  }
  let v = 1.0 + x;
  if (is_inf(v)) { return v; }
  return log(v) * (x / (v - 1.0));
}
fn expm1(x: f32) -> f32 {
  if (abs(x) < 0.05) { return x * (1.0 + x * (0.5 + x * (0.16666667 + x * 0.041666668))); }
  return exp(x) - 1.0;
}
fn tanh_(x: f32) -> f32 {
  let q = x * x;
  if (abs(x) < 0.1) { return x * (1.0 + q * (-0.33333334 + q * (0.13333334 - q * 0.053968254))); }
  let v = exp(-2.0 * abs(x));
  let r = (1.0 - v) / (1.0 + v);
  return select(r, -r, x < 0.0);
}
fn erf_(x: f32) -> f32 {
  let v = abs(x);
  let q = x * x;
  if (v < 0.5) {
    return x * (1.1283792 + q * (-0.37612638 + q * (0.11283792 + q * (-0.026866171
      + q * (0.0052239776 - q * 0.00085483274)))));
  }
  let k = 1.0 / (1.0 + 0.3275911 * v);
  let r = 1.0 - k * (0.2548296 + k * (-0.28449672 + k * (1.4214138
    + k * (-1.4531521 + k * 1.0614054)))) * exp(-q);
  return select(r, -r, x < 0.0);
}
fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp(-x)); }
fn softplus(x: f32) -> f32 { return larger(x, 0.0) + log1p(exp(-abs(x))); }
fn power(x: f32, y: f32) -> f32 {
  if (y == 0.0 || x == 1.0) { return 1.0; }
  if (y == 1.0) { return x; }
  if (y == 2.0) { return x * x; }
  if (y == 0.5) { return sqrt(x); }
  if (is_nan(x) || is_nan(y)) { return x + y; }
  let odd = floor(y) == y && fract(abs(y) * 0.5) != 0.0;
  if (x == 0.0) {
    let r = select(infinity(), 0.0, y > 0.0);
    return select(r, x * r, odd && y > 0.0);
  }
  let r = pow(abs(x), y);
  if (x > 0.0) { return r; }
  if (floor(y) != y) { return not_a_number(); }
  return select(r, -r, odd);
}
fn sinh_(x: f32) -> f32 {
  let q = x * x;
  if (abs(x) < 0.3) { return x * (1.0 + q * (0.16666667 + q * (0.008333334 + q * 0.0001984127))); }
  return (exp(x) - exp(-x)) * 0.5;
}
fn asinh_(x: f32) -> f32 {
  let v = abs(x);
  let r = log1p(v + v * v / (1.0 + sqrt(1.0 + v * v)));
  return select(r, -r, x < 0.0);
}
";

/// Rests of floats, which WGSL does not compute exactly: here the dividend is brought down bit by
/// bit.
const RESTS: &str = r"
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
const INTEGERS: &str = r"
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

/// Returns the functions that expressions use, in the types of these arrays.
pub(crate) fn expression_functions(arrays: &str) -> String {
    let (has_floats, has_integers) = (arrays.contains("f64"), arrays.contains("64>"));
    let prelude = prelude(arrays);
    let floats = match has_floats {
        true => String::new(),
        false => format!("{FUNCTIONS}{RESTS}"),
    };
    match has_integers {
        true if has_floats => format!("{prelude}{}{POWERS}", long_functions()),
        true => format!("{prelude}{floats}{}", long_functions()),
        false => format!("{prelude}{floats}{INTEGERS}"),
    }
}

/// Returns the functions for 64-bit integers.
fn long_functions() -> String {
    INTEGERS.replace("32", "64")
}
