//! Arithmetic on the values of one row (the exponential, the hyperbolic tangent, sums and other
//! folds), from which the engines compute softmax, norms and activations. The passes over rows are
//! compiled for every vector width.

use super::vectors::pass;

/// Values summed side by side: a few vectors of the widest, so that none waits for the one before.
const SUMS: usize = 64;
/// Below this an exponential is less than the least normal float.
const EXPONENT_MIN: f32 = -87.3;

pass! {
    /// Replaces each value by the exponential of its difference from the largest; adds them to
    /// `total`.
    fn exponentiate_row(row: &mut [f32], total: &mut f32) {
        let larger = |held: f32, value: f32| if value > held { value } else { held };
        let largest = fold_lanes(row, f32::NEG_INFINITY, larger, larger);
        for value in row.iter_mut() {
            *value = exponential(*value - largest);
        }
        *total = fold_lanes(row, 0.0, |sum, value| sum + value, |a, b| a + b);
    }
}

pass! {
    /// Multiplies every value by a factor.
    fn multiply_row(row: &mut [f32], factor: f32) {
        for value in row {
            *value *= factor;
        }
    }
}

/// Folds all values into one, many side by side: `fold` adds a value to a partial result, `join`
/// combines two partial results.
#[inline(always)]
pub(crate) fn fold_lanes(
    values: &[f32],
    start: f32,
    fold: impl Fn(f32, f32) -> f32,
    join: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut held = [start; SUMS];
    let mut whole = values.chunks_exact(SUMS);
    for chunk in &mut whole {
        for (held, value) in held.iter_mut().zip(chunk) {
            *held = fold(*held, *value);
        }
    }
    for (held, value) in held.iter_mut().zip(whole.remainder()) {
        *held = fold(*held, *value);
    }
    let mut width = SUMS;
    while width > 1 {
        width /= 2;
        for sum in 0..width {
            held[sum] = join(held[sum], held[sum + width]);
        }
    }
    held[0]
}

/// The further factors of the polynomial that [`exponential`] is.
pub(crate) const EXPONENTIAL_FACTORS: [f32; 5] = [
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    0.5,
];

/// Returns the exponential of a value, which must not be above zero. It multiplies a power of two
/// with a polynomial of the rest of the exponent (Cephes' `expf`).
#[inline(always)]
pub(crate) fn exponential(value: f32) -> f32 {
    // Added and taken away, it leaves the nearest integer, whose bits are the lowest of the sum.
    const ROUND: f32 = 12_582_912.0;
    let shifted = value * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let rest = value - power * 0.693_359_4 + power * 2.121_944_4e-4;
    let mut sum = 1.987_569_1e-4_f32;
    for factor in EXPONENTIAL_FACTORS {
        sum = sum * rest + factor;
    }
    sum = sum * rest * rest + rest + 1.0;
    let exponent = (shifted.to_bits() << 23).wrapping_add(0x3f80_0000);
    let result = sum * f32::from_bits(exponent);
    if value < EXPONENT_MIN { 0.0 } else { result }
}

/// Further than this the hyperbolic tangent is one as far as a float can tell.
const TANGENT_MAX: f32 = 7.905_311;
/// The odd and the even polynomial whose ratio it is, the highest powers first (Eigen's).
const TANGENT_ABOVE: [f32; 7] = [
    -2.760_768_4e-16,
    2.000_188e-13,
    -8.604_672e-11,
    5.122_297_3e-8,
    1.485_722_35e-5,
    6.372_619_5e-4,
    4.893_524_6e-3,
];
const TANGENT_BELOW: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_7e-3, 4.893_525e-3];

/// Returns the hyperbolic tangent: a quotient of two polynomials.
#[inline(always)]
pub(crate) fn hyperbolic_tangent(value: f32) -> f32 {
    let value = value.clamp(-TANGENT_MAX, TANGENT_MAX);
    let square = value * value;
    let (mut above, mut below) = (0.0, 0.0);
    for factor in TANGENT_ABOVE {
        above = above * square + factor;
    }
    for factor in TANGENT_BELOW {
        below = below * square + factor;
    }
    value * above / below
}
