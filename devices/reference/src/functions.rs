//! Provides functions of one float that Rust's standard library lacks, such as `erf`, and converts
//! floats of 8 bits. The other kernels call them.

use souk_memory::DType;

/// Computes the error function, to 64-bit precision.
pub(super) fn erf(x: f64) -> f64 {
    const TWO_OVER_SQRT_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI;
    let size = x.abs();
    if x.is_nan() {
        return x;
    }
    if size < 2.5 {
        // The Taylor series; its terms stay below e^6.25, so few digits cancel.
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-17 * sum.abs() {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return TWO_OVER_SQRT_PI * sum;
    }
    if size > 6.0 {
        return x.signum();
    }
    // The continued fraction of the complement, from far enough out.
    let fraction = (1..=60)
        .rev()
        .fold(size, |below, k| size + f64::from(k) / 2.0 / below);
    x.signum() * (1.0 - (-size * size).exp() / fraction / std::f64::consts::PI.sqrt())
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Returns the larger of two numbers; NaN if either is NaN.
pub(super) fn max_or_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Returns the smaller of two numbers; NaN if either is NaN.
pub(super) fn min_or_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

/// Rounds to the nearest integer, ties to even.
pub(super) fn round_half_even(x: f64) -> f64 {
    x.round_ties_even()
}

/// Returns the sign, 0 for 0 and NaN for NaN.
pub(super) fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() {
        x
    } else {
        x.signum()
    }
}

/// The rounding of a number between two powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PowerRounding {
    Up,
    Down,
    /// To the nearer power, halfway up.
    Nearest,
}

/// Decodes an 8-bit power of two, the type of block scales.
pub(super) fn decode_power(byte: u8) -> f64 {
    match byte {
        u8::MAX => f64::NAN,
        byte => 2f64.powi(i32::from(byte) - 127),
    }
}

/// Encodes a number as an 8-bit power of two: drops its sign, and encodes infinity and NaN as NaN.
/// A number that rounds beyond the largest becomes the largest if `saturate`, otherwise NaN.
pub(super) fn encode_power(value: f64, rounding: PowerRounding, saturate: bool) -> u8 {
    let bits = (value as f32).to_bits();
    let (exponent, fraction) = (bits >> 23 & 0xff, bits & 0x7f_ffff);
    if exponent == 0xff {
        return u8::MAX;
    }
    let half = 0x40_0000;
    let rounds_up = match rounding {
        PowerRounding::Up => fraction > 0,
        PowerRounding::Down => false,
        PowerRounding::Nearest => fraction > half || fraction == half && exponent > 0,
    };
    let largest = if saturate { 0xfe } else { 0xff };
    (exponent + u32::from(rounds_up)).min(largest) as u8
}

/// The layout of an 8-bit float.
struct Layout {
    fraction_bits: u32,
    bias: i32,
    /// The largest finite value.
    max: f64,
    /// Whether the type has infinities.
    infinite: bool,
    /// Whether its only NaN has the bits of negative zero.
    unsigned_zero: bool,
}

/// Returns whether `dtype` is a signed float of 8 bits.
pub(super) fn is_small_float(dtype: DType) -> bool {
    float_layout(dtype).is_some()
}

fn float_layout(dtype: DType) -> Option<Layout> {
    let (fraction_bits, bias, max, infinite, unsigned_zero) = match dtype {
        DType::F8E4M3Fn => (3, 7, 448.0, false, false),
        DType::F8E4M3FnUz => (3, 8, 240.0, false, true),
        DType::F8E5M2 => (2, 15, 57344.0, true, false),
        DType::F8E5M2FnUz => (2, 16, 57344.0, false, true),
        _ => return None,
    };
    Some(Layout {
        fraction_bits,
        bias,
        max,
        infinite,
        unsigned_zero,
    })
}

/// Decodes an 8-bit float; `dtype` must be the type of one.
pub(super) fn decode_small(dtype: DType, byte: u8) -> f64 {
    let layout = float_layout(dtype).expect("asked only of 8-bit floats");
    let sign = if byte & 0x80 != 0 { -1.0 } else { 1.0 };
    let magnitude = i32::from(byte & 0x7f);
    let exponent = magnitude >> layout.fraction_bits;
    let fraction = magnitude & ((1 << layout.fraction_bits) - 1);
    if layout.unsigned_zero && byte == 0x80 {
        return f64::NAN;
    }
    if layout.infinite && exponent == 31 {
        return if fraction == 0 {
            sign * f64::INFINITY
        } else {
            f64::NAN
        };
    }
    if !layout.infinite && !layout.unsigned_zero && magnitude == 0x7f {
        return f64::NAN;
    }
    let unit = 2f64.powi(-(layout.fraction_bits as i32));
    let fraction = f64::from(fraction) * unit;
    sign * if exponent == 0 {
        fraction * 2f64.powi(1 - layout.bias)
    } else {
        (1.0 + fraction) * 2f64.powi(exponent - layout.bias)
    }
}

/// Encodes the nearest 8-bit float, ties to even; `dtype` must be the type of one. A number beyond
/// the largest becomes the largest if `saturate`, otherwise infinity, or NaN if the type has no
/// infinity.
pub(super) fn encode_small(dtype: DType, value: f64, saturate: bool) -> u8 {
    let layout = float_layout(dtype).expect("asked only of 8-bit floats");
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let (nan, over) = match (layout.unsigned_zero, layout.infinite) {
        (true, _) => (0x80, 0x80),
        (_, true) => (sign | 0x7e, sign | 0x7c),
        _ => (sign | 0x7f, sign | 0x7f),
    };
    if value.is_nan() {
        return nan;
    }
    let size = value.abs();
    // The largest value is encoded by the same steps as any other.
    let largest = || sign | encode_magnitude(&layout, layout.max);
    if size.is_infinite() {
        return if saturate { largest() } else { over };
    }
    let rounded = encode_magnitude(&layout, size);
    let limit = encode_magnitude(&layout, layout.max);
    if rounded > limit {
        return if saturate { largest() } else { over };
    }
    if rounded == 0 && layout.unsigned_zero {
        0
    } else {
        sign | rounded
    }
}

/// Returns exponent and fraction bits of the nearest representable magnitude; sizes beyond the
/// largest return more than its bits.
fn encode_magnitude(layout: &Layout, size: f64) -> u8 {
    let exponent = if size == 0.0 {
        i32::MIN
    } else {
        size.log2().floor() as i32
    };
    let exponent = exponent.max(1 - layout.bias);
    let unit = 2f64.powi(exponent - layout.fraction_bits as i32);
    let steps = (size / unit).round_ties_even();
    let base = f64::from((exponent + layout.bias - 1) << layout.fraction_bits);
    (base + steps) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_has_its_published_values() {
        let published = [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.4, 0.999_311_486_103_354_9),
            (2.6, 0.999_763_965_583_471),
            (4.0, 0.999_999_984_582_742_1),
        ];
        for (x, expected) in published {
            assert!((erf(x) - expected).abs() < 1e-14, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!(erf(f64::INFINITY), 1.0);
        assert!(erf(f64::NAN).is_nan());
    }

    #[test]
    fn every_small_float_survives() {
        for dtype in [
            DType::F8E4M3Fn,
            DType::F8E4M3FnUz,
            DType::F8E5M2,
            DType::F8E5M2FnUz,
        ] {
            for byte in 0..=255u8 {
                let value = decode_small(dtype, byte);
                let back = encode_small(dtype, value, false);
                let same = back == byte || (value.is_nan() && decode_small(dtype, back).is_nan());
                assert!(same, "{dtype} {byte:#x} {value} {back:#x}");
            }
        }
    }

    #[test]
    fn too_large_saturates_or_does_not() {
        assert_eq!(
            decode_small(DType::F8E4M3Fn, encode_small(DType::F8E4M3Fn, 1e9, true)),
            448.0
        );
        assert!(decode_small(DType::F8E4M3Fn, encode_small(DType::F8E4M3Fn, 1e9, false)).is_nan());
        for dtype in [DType::F8E4M3FnUz, DType::F8E5M2FnUz] {
            let largest = decode_small(dtype, 0x7f);
            let beside = encode_small(dtype, largest * 1.01, false);
            assert_eq!(beside, 0x7f, "{dtype}: it rounds to the largest");
            for over in [largest * 1.2, -largest * 2.0, 1e300, f64::INFINITY] {
                assert_eq!(encode_small(dtype, over, false), 0x80, "{dtype} {over}");
                let sign = if over < 0.0 { 0x80 } else { 0 };
                assert_eq!(encode_small(dtype, over, true), sign | 0x7f, "{dtype}");
            }
        }
        let infinite = encode_small(DType::F8E5M2, -1e9, false);
        assert_eq!(decode_small(DType::F8E5M2, infinite), f64::NEG_INFINITY);
    }
}
