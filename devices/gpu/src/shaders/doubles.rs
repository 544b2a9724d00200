//! The WGSL functions of 64-bit floats and integers, for kernels that use 64-bit floats. WGSL's own
//! functions, such as `exp`, take floats of at most 32 bits, so these sum series. They have the
//! same names, so that an operator's expression means the same in both widths.

/// The first lines of every kernel with 64-bit floats.
pub(crate) const PRELUDE: &str = r"
@group(0) @binding(0) var<storage, read> p: array<u32>;
fn f(i: u32) -> f64 { return f64(bitcast<f32>(p[i])); }
fn number(i: u32) -> f64 { return bitcast<f64>(u64(p[i]) | (u64(p[i + 1u]) << 32u)); }
fn size_bits(a: f64) -> u64 { return bitcast<u64>(a) & 0x7ffffffffffffffflu; }
fn is_nan(a: f64) -> bool { return size_bits(a) > 0x7ff0000000000000lu; }
fn is_inf(a: f64) -> bool { return size_bits(a) == 0x7ff0000000000000lu; }
fn infinity() -> f64 { var bits = 0x7ff0000000000000lu; return bitcast<f64>(bits); }
fn not_a_number() -> f64 { var bits = 0x7ff8000000000000lu; return bitcast<f64>(bits); }
fn larger(a: f64, b: f64) -> f64 { return select(b, a, a > b || is_nan(a)); }
fn smaller(a: f64, b: f64) -> f64 { return select(b, a, a < b || is_nan(a)); }
fn two_to(k: i32) -> f64 { return bitcast<f64>(u64(u32(k + 1023)) << 52u); }
fn exp_less_one(r: f64, rest: f64) -> f64 {
  let x = r - rest;
  let q = x * x;
  let c = x - q * (0.16666666666666602 + q * (-0.0027777777777015593
    + q * (0.00006613756321437934 + q * (-0.0000016533902205465252
    + q * 0.000000041381367970572385))));
  return r - (rest - (x * c) / (2.0 - c));
}
fn exp(x: f64) -> f64 {
  if (is_nan(x)) { return x; }
  if (x > 709.782712893384) { return infinity(); }
  if (x < -745.2) { return 0.0; }
  let k = round(x * 1.4426950408889634);
  let y = 1.0 + exp_less_one(x - k * 0.6931471803691238, k * 0.00000000019082149292705877);
  let half = i32(k) / 2;
  return y * two_to(half) * two_to(i32(k) - half);
}
fn expm1(x: f64) -> f64 {
  if (abs(x) < 0.35) { return exp_less_one(x, 0.0); }
  return exp(x) - 1.0;
}
fn log_parts(v: f64) -> f64 {
  let s = v / (2.0 + v);
  let z = s * s;
  let w = z * z;
  let odd = w * (0.3999999999940942 + w * (0.22222198432149784 + w * 0.15313837699209373));
  let even = z * (0.6666666666666735 + w * (0.2857142874366239 + w * (0.1818357216161805
    + w * 0.14798198605116586)));
  return s * (0.5 * v * v + odd + even);
}
fn log(x: f64) -> f64 {
  if (is_nan(x) || x < 0.0) { return not_a_number(); }
  if (x == 0.0) { return -infinity(); }
  if (is_inf(x)) { return x; }
  var k = -1023;
  var bits = bitcast<u64>(x);
  if (x < 2.2250738585072014e-308) {
    bits = bitcast<u64>(x * 18014398509481984.0);
    k = -1077;
  }
  k += i32(u32(bits >> 52u));
  var m = bitcast<f64>((bits & 0xffffffffffffflu) | 0x3ff0000000000000lu);
  if (m > 1.4142135623730951) {
    m = m * 0.5;
    k += 1;
  }
  let v = m - 1.0;
  let n = f64(k);
  let rest = log_parts(v) + n * 0.00000000019082149292705877;
  return n * 0.6931471803691238 - ((0.5 * v * v - rest) - v);
}
fn log1p(x: f64) -> f64 {
  if (x > -0.29 && x < 0.41) { return x - (0.5 * x * x - log_parts(x)); }
  return log(1.0 + x);
}
fn tanh_(x: f64) -> f64 {
  let v = abs(x);
  let e = expm1(2.0 * v);
  let r = select(1.0 - 2.0 / (e + 2.0), e / (e + 2.0), v < 1.0);
  return select(r, -r, x < 0.0);
}
fn sinh_(x: f64) -> f64 {
  let v = abs(x);
  let e = expm1(v);
  let half = exp(0.5 * v);
  let r = select(0.5 * (e + e / (e + 1.0)), 0.5 * half * half, v > 700.0);
  return select(r, -r, x < 0.0);
}
fn asinh_(x: f64) -> f64 {
  let v = abs(x);
  var r = log(v) + 0.6931471805599453;
  if (v < 1e100) { r = log1p(v + v * v / (1.0 + sqrt(1.0 + v * v))); }
  return select(r, -r, x < 0.0);
}
fn erf_(x: f64) -> f64 {
  if (is_nan(x)) { return x; }
  let v = abs(x);
  if (v < 2.5) {
    var term = x;
    var sum = x;
    for (var n = 1u; n < 80u; n++) {
      term = -term * x * x / f64(n);
      sum += term / f64(2u * n + 1u);
    }
    return 1.1283791670955126 * sum;
  }
  if (v > 6.0) { return sign(x); }
  var below = v;
  for (var k = 60u; k > 0u; k--) { below = v + f64(k) * 0.5 / below; }
  let r = 1.0 - exp(-v * v) / below * 0.5641895835477563;
  return select(r, -r, x < 0.0);
}
fn atan(x: f64) -> f64 {
  if (is_nan(x)) { return x; }
  var v = abs(x);
  var high = 0.0lf;
  var low = 0.0lf;
  if (v >= 2.4375) {
    high = 1.5707963267948966;
    low = 0.00000000000000006123233995736766;
    v = -1.0 / v;
  } else if (v >= 1.1875) {
    high = 0.982793723247329;
    low = 0.000000000000000013903311031230998;
    v = (v - 1.5) / (1.0 + 1.5 * v);
  } else if (v >= 0.6875) {
    high = 0.7853981633974483;
    low = 0.00000000000000003061616997868383;
    v = (v - 1.0) / (v + 1.0);
  } else if (v >= 0.4375) {
    high = 0.4636476090008061;
    low = 0.00000000000000002269877745296169;
    v = (2.0 * v - 1.0) / (2.0 + v);
  }
  let z = v * v;
  let w = z * z;
  let even = z * (0.3333333333333293 + w * (0.14285714272503466 + w * (0.09090887133436507
    + w * (0.06661073137387531 + w * (0.049768779946159324 + w * 0.016285820115365782)))));
  let odd = w * (-0.19999999999876483 + w * (-0.11111110405462356 + w * (-0.0769187620504483
    + w * (-0.058335701337905735 + w * -0.036531572744216916))));
  let r = high - ((v * (even + odd) - low) - v);
  return select(r, -r, x < 0.0);
}
fn asin(x: f64) -> f64 { return atan(x / sqrt((1.0 - x) * (1.0 + x))); }
fn acos(x: f64) -> f64 {
  if (x == -1.0) { return 3.141592653589793; }
  return 2.0 * atan(sqrt((1.0 - x) / (1.0 + x)));
}
fn round(x: f64) -> f64 {
  let v = abs(x);
  if (!(v < 4503599627370496.0)) { return x; }
  let whole = floor(v);
  let rest = v - whole;
  let half = 0.5 * whole;
  let near = select(whole, whole + 1.0, rest > 0.5 || (rest == 0.5 && floor(half) != half));
  return select(near, -near, (bitcast<u64>(x) >> 63u) == 1);
}
fn sigmoid(x: f64) -> f64 { return 1.0 / (1.0 + exp(-x)); }
fn softplus(x: f64) -> f64 { return larger(x, 0.0) + log1p(exp(-abs(x))); }
fn power_of_size(v: f64, y: f64) -> f64 {
  if (floor(y) != y || abs(y) > 64.0) { return exp(y * log(v)); }
  var r = 1.0lf;
  var b = v;
  for (var e = u32(abs(y)); e > 0u; e = e >> 1u) {
    if ((e & 1u) != 0u) { r = r * b; }
    b = b * b;
  }
  return select(r, 1.0 / r, y < 0.0);
}
fn power(x: f64, y: f64) -> f64 {
  if (y == 0.0 || x == 1.0) { return 1.0; }
  if (y == 0.5 && x >= 0.0) { return sqrt(x); }
  if (is_nan(x) || is_nan(y)) { return x + y; }
  let v = abs(x);
  if (is_inf(y)) {
    if (v == 1.0) { return 1.0; }
    return select(0.0, infinity(), (v > 1.0) == (y > 0.0));
  }
  let halved = 0.5 * abs(y);
  let odd = floor(y) == y && floor(halved) != halved;
  if (x == 0.0) {
    let r = select(infinity(), 0.0, y > 0.0);
    return select(r, -r, odd && (bitcast<u64>(x) >> 63u) == 1);
  }
  let r = power_of_size(v, y);
  if (x > 0.0) { return r; }
  if (floor(y) != y && !is_inf(x)) { return not_a_number(); }
  return select(r, -r, odd);
}
fn odd(a: f64) -> f32 {
  let near = f32(a);
  let bits = bitcast<u32>(near);
  let back = f64(near);
  if (is_nan(a) || back == a || is_inf(back) || (bits & 1u) == 1u) { return near; }
  return bitcast<f32>(select(bits + 1u, bits - 1u, abs(back) > abs(a)));
}
fn rest_of(x: f64, y: f64) -> f64 {
  let sign_bit = bitcast<u64>(x) & 0x8000000000000000lu;
  let a = size_bits(x);
  let b = size_bits(y);
  if (a >= 0x7ff0000000000000lu || b > 0x7ff0000000000000lu || b == 0) {
    return not_a_number();
  }
  if (a < b) { return x; }
  var place = max(u32(a >> 52u), 1u);
  var rest = a & 0xffffffffffffflu;
  if (a >= 0x10000000000000lu) { rest = rest | 0x10000000000000lu; }
  let last = max(u32(b >> 52u), 1u);
  var by = b & 0xffffffffffffflu;
  if (b >= 0x10000000000000lu) { by = by | 0x10000000000000lu; }
  for (; place > last; place--) {
    rest = (rest % by) << 1u;
  }
  rest = rest % by;
  if (rest == 0) { return bitcast<f64>(sign_bit); }
  while (place > 1u && rest < 0x10000000000000lu) { rest = rest << 1u; place--; }
  if (rest < 0x10000000000000lu) { return bitcast<f64>(sign_bit | rest); }
  return bitcast<f64>(sign_bit | ((u64(place) << 52u) + (rest - 0x10000000000000lu)));
}
fn float_modulo(a: f64, b: f64) -> f64 {
  let r = rest_of(a, b);
  return select(r, r + b, r != 0.0 && (r < 0.0) != (b < 0.0));
}
";

/// Powers of integers by floats, in kernels that have both: exact where the exponent is whole and
/// the power fits; else a power within a few roundings of a whole number is that number.
pub(crate) const POWERS: &str = r"
fn near_whole(v: f64) -> f64 {
  let near = round(v);
  return select(v, near, abs(v - near) <= abs(near) * 0.0000000000001);
}
fn signed_float_power(base: i64, y: f64) -> i64 {
  let v = power(f64(base), y);
  if (floor(y) == y && y >= 0.0 && abs(v) < 4611686018427387904.0) {
    return bitcast<i64>(whole_power(bitcast<u64>(base), u64(y)));
  }
  return i64(near_whole(v));
}
fn unsigned_float_power(base: u64, y: f64) -> u64 {
  let v = power(f64(base), y);
  if (floor(y) == y && y >= 0.0 && abs(v) < 9223372036854775808.0) {
    return whole_power(base, u64(y));
  }
  return u64(near_whole(v));
}
";
