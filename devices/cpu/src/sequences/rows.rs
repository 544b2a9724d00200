//! Passes over the features of one row, each built for every width of vectors.

use crate::tiled::vectors::pass;

/// Values summed side by side: a few vectors of the widest, so that none waits for the one before.
const SUMS: usize = 64;
/// Below this an exponential is less than the least normal float.
const EXPONENT_MIN: f32 = -87.3;
/// Where the error function is one to the last bit.
const ERF_ONE: f32 = 3.92;

pass! {
    /// A mean of zero and a variance of one, then a factor and a summand for each feature.
    fn normalise(to: &mut [f32], from: &[f32], by: (&[f32], &[f32]), epsilon: f32) {
        let count = from.len() as f32;
        let mean = folded(from, 0.0, |sum, value| sum + value, |a, b| a + b) / count;
        let squares = |sum: f32, value: f32| {
            let off = value - mean;
            off * off + sum
        };
        let variance = folded(from, 0.0, squares, |a, b| a + b) / count;
        let factor = 1.0 / (variance + epsilon).sqrt();
        let parameters = by.0.iter().zip(by.1);
        for ((to, from), (scale, shift)) in to.iter_mut().zip(from).zip(parameters) {
            *to = (from - mean) * factor * scale + shift;
        }
    }
}

pass! {
    /// Exponentials of what each value is less than the largest; `total` is what they come to.
    fn exponentials(row: &mut [f32], total: &mut f32) {
        let larger = |held: f32, value: f32| if value > held { value } else { held };
        let largest = folded(row, f32::NEG_INFINITY, larger, larger);
        for value in row.iter_mut() {
            *value = exponential(*value - largest);
        }
        *total = folded(row, 0.0, |sum, value| sum + value, |a, b| a + b);
    }
}

pass! {
    /// Every value times a factor.
    fn times(row: &mut [f32], factor: f32) {
        for value in row {
            *value *= factor;
        }
    }
}

pass! {
    /// Each value times the share of a normal distribution below it.
    fn gelu(row: &mut [f32]) {
        for value in row {
            let x = *value;
            *value = 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
        }
    }
}

pass! {
    /// The sum of two.
    fn add(to: &mut [f32], left: &[f32], right: &[f32]) {
        for ((to, left), right) in to.iter_mut().zip(left).zip(right) {
            *to = left + right;
        }
    }
}

pass! {
    /// Negative values become zero; what is no number stays.
    fn relu(row: &mut [f32]) {
        for value in row {
            *value = if *value < 0.0 { 0.0 } else { *value };
        }
    }
}

/// All values drawn together, many side by side.
#[inline(always)]
fn folded(
    values: &[f32],
    start: f32,
    draw: impl Fn(f32, f32) -> f32,
    join: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut held = [start; SUMS];
    let mut whole = values.chunks_exact(SUMS);
    for chunk in &mut whole {
        for (held, value) in held.iter_mut().zip(chunk) {
            *held = draw(*held, *value);
        }
    }
    for (held, value) in held.iter_mut().zip(whole.remainder()) {
        *held = draw(*held, *value);
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

/// The exponential of a value that is not above zero: a power of two, and a polynomial of the rest
/// of the exponent (Cephes' `expf`).
#[inline(always)]
fn exponential(value: f32) -> f32 {
    // Added and taken away, it leaves the nearest integer, whose bits are the lowest of the sum.
    const ROUND: f32 = 12_582_912.0;
    let shifted = value * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let rest = value - power * 0.693_359_4 + power * 2.121_944_4e-4;
    let mut sum = 1.987_569_1e-4_f32;
    for factor in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        sum = sum * rest + factor;
    }
    sum = sum * rest * rest + rest + 1.0;
    let exponent = (shifted.to_bits() << 23).wrapping_add(0x3f80_0000);
    let made = sum * f32::from_bits(exponent);
    if value < EXPONENT_MIN { 0.0 } else { made }
}

/// The error function by a quotient of polynomials, as Eigen has it.
#[inline(always)]
fn erf(value: f32) -> f32 {
    let square = value * value;
    let mut above = -2.726_142_3e-10_f32;
    for factor in [
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ] {
        above = above * square + factor;
    }
    let mut below = -1.456_607_2e-5_f32;
    for factor in [
        -2.133_740_6e-4,
        -1.682_827e-3,
        -7.373_329e-3,
        -1.426_473_9e-2,
    ] {
        below = below * square + factor;
    }
    let made = value * above / below;
    let made = if value >= ERF_ONE { 1.0 } else { made };
    if value <= -ERF_ONE { -1.0 } else { made }
}
