//! The sequence engine's functions of the features of one row, such as normalisation, activations
//! and sums. Each is compiled for every vector width, and the tasks of a run call it with the width
//! of this processor.

use crate::tiled::row_math::fold_lanes;
use crate::tiled::vectors::pass;

/// Where the error function is one to the last bit.
const ERF_ONE: f32 = 3.92;

pass! {
    /// A mean of zero and a variance of one, then a factor and a summand for each feature.
    fn normalise_row(to: &mut [f32], from: &[f32], by: (&[f32], &[f32]), epsilon: f32) {
        let count = from.len() as f32;
        let mean = fold_lanes(from, 0.0, |sum, value| sum + value, |a, b| a + b) / count;
        let squares = |sum: f32, value: f32| {
            let off = value - mean;
            off * off + sum
        };
        let variance = fold_lanes(from, 0.0, squares, |a, b| a + b) / count;
        let factor = 1.0 / (variance + epsilon).sqrt();
        let parameters = by.0.iter().zip(by.1);
        for ((to, from), (scale, shift)) in to.iter_mut().zip(from).zip(parameters) {
            *to = (from - mean) * factor * scale + shift;
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
    /// Sets negative values to zero; NaN stays NaN.
    fn relu(row: &mut [f32]) {
        for value in row {
            *value = if *value < 0.0 { 0.0 } else { *value };
        }
    }
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
