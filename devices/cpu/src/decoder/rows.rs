//! The decoder's functions of a single row, such as norms, gates, rotations and quantisation. Each
//! is compiled for every vector width, and the tasks of a step call it with the width of this
//! processor.

use souk_host::isa::Isa;

use super::matrix::BLOCK;
use crate::tiled::row_math::{
    exponential, exponentiate_row, fold_lanes, hyperbolic_tangent, multiply_row,
};
use crate::tiled::vectors::pass;

/// Adding and then subtracting this constant rounds a float to the nearest whole number; the lowest
/// bits of the sum are those of that number.
const ROUND: f32 = 12_582_912.0;
/// The largest byte of a block.
const BYTE_MAX: f32 = 127.0;
/// Constants of the hyperbolic tangent's approximation of GELU: twice the root of two by pi, and
/// the factor of the cube.
const GAUSS_SLOPE: f32 = 1.595_769;
const GAUSS_BEND: f32 = 0.044_715;
/// Numbers compared side by side.
const LANES: usize = 16;

pass! {
    /// A root mean square of one, then a factor for each number.
    fn normalise_row(to: &mut [f32], from: &[f32], scale: &[f32], epsilon: f32) {
        let square = fold_lanes(from, 0.0, |sum, value| value * value + sum, |a, b| a + b);
        let factor = 1.0 / (square / from.len() as f32 + epsilon).sqrt();
        for ((to, from), scale) in to.iter_mut().zip(from).zip(scale) {
            *to = from * factor * scale;
        }
    }
}

pass! {
    /// Each number of `gate` times its share that a logistic curve leaves, times the other.
    fn gate_logistic(to: &mut [f32], gate: &[f32], up: &[f32]) {
        for ((to, gate), up) in to.iter_mut().zip(gate).zip(up) {
            let below = exponential(-gate.abs());
            let share = if *gate < 0.0 { below } else { 1.0 };
            *to = gate * (share / (1.0 + below)) * up;
        }
    }
}

pass! {
    /// Gates by GELU: its hyperbolic tangent is a logistic function of twice the argument.
    fn gate_gauss(to: &mut [f32], gate: &[f32], up: &[f32]) {
        for ((to, gate), up) in to.iter_mut().zip(gate).zip(up) {
            let twice = GAUSS_SLOPE * gate * (1.0 + GAUSS_BEND * gate * gate);
            let below = exponential(-twice.abs());
            let share = if twice < 0.0 { below } else { 1.0 };
            *to = gate * (share / (1.0 + below)) * up;
        }
    }
}

pass! {
    /// Every number times a factor.
    fn scale_row(to: &mut [f32], from: &[f32], factor: f32) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from * factor;
        }
    }
}

pass! {
    /// The hyperbolic tangent of every number times `inner`, times `outer`.
    fn scale_tanh(to: &mut [f32], from: &[f32], inner: f32, outer: f32) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = outer * hyperbolic_tangent(from * inner);
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
    /// Sums consecutive rows, each times its share.
    fn mix_rows(to: &mut [f32], rows: &[f32], shares: &[f32]) {
        to.fill(0.0);
        for (row, share) in rows.chunks_exact(to.len()).zip(shares) {
            for (to, value) in to.iter_mut().zip(row) {
                *to += value * share;
            }
        }
    }
}

pass! {
    /// Pairs half a head apart, turned by their angles.
    fn rotate_halves(to: &mut [f32], from: &[f32], cosines: &[f32], sines: &[f32]) {
        let (first, second) = from.split_at(cosines.len());
        let (to_first, to_second) = to.split_at_mut(cosines.len());
        let pairs = first.iter().zip(second).zip(cosines.iter().zip(sines));
        for ((to, other), ((x, y), (cosine, sine))) in
            to_first.iter_mut().zip(to_second).zip(pairs)
        {
            *to = cosine * x - sine * y;
            *other = sine * x + cosine * y;
        }
    }
}

pass! {
    /// Neighbours, turned by their angles.
    fn rotate_neighbours(to: &mut [f32], from: &[f32], cosines: &[f32], sines: &[f32]) {
        let pairs = from.chunks_exact(2).zip(cosines.iter().zip(sines));
        for (to, (pair, (cosine, sine))) in to.chunks_exact_mut(2).zip(pairs) {
            to[0] = cosine * pair[0] - sine * pair[1];
            to[1] = sine * pair[0] + cosine * pair[1];
        }
    }
}

pass! {
    /// A row as bytes, of which the largest of each block is 127: the bytes, then a scale for each
    /// block, then the sum of each one's bytes.
    fn quantise_row(to: &mut [f32], from: &[f32]) {
        let (bytes, behind) = to.split_at_mut(from.len() / 4);
        let (scales, sums) = behind.split_at_mut(from.len() / BLOCK);
        let bytes: &mut [i8] = bytemuck::cast_slice_mut(bytes);
        let sums: &mut [i32] = bytemuck::cast_slice_mut(sums);
        let blocks = from.chunks_exact(BLOCK).zip(bytes.chunks_exact_mut(BLOCK));
        for (((from, bytes), scale), total) in blocks.zip(scales).zip(sums) {
            let mut most = [0.0f32; LANES];
            for part in from.chunks_exact(LANES) {
                for (most, value) in most.iter_mut().zip(part) {
                    let size = value.abs();
                    *most = if size > *most { size } else { *most };
                }
            }
            let largest = most.iter().fold(0.0f32, |most, size| most.max(*size));
            *scale = largest / BYTE_MAX;
            let inverse = if largest > 0.0 { BYTE_MAX / largest } else { 0.0 };
            let mut sum = 0;
            for (byte, value) in bytes.iter_mut().zip(from) {
                *byte = (value * inverse + ROUND).to_bits() as i8;
                sum += i32::from(*byte);
            }
            *total = sum;
        }
    }
}

/// Writes the softmax of a row.
pub(super) fn softmax(isa: Isa, to: &mut [f32], from: &[f32]) {
    to.copy_from_slice(from);
    let mut total = 0.0;
    exponentiate_row(isa, to, &mut total);
    multiply_row(isa, to, 1.0 / total);
}

/// Returns the logistic function of a value.
pub(super) fn logistic(value: f32) -> f32 {
    let below = exponential(-value.abs());
    let share = if value < 0.0 { below } else { 1.0 };
    share / (1.0 + below)
}

/// Chooses the largest shares of a row. `to` gets them in its first half, the largest first (of
/// equal ones, the first in the row), and in its second half their positions in the row, as the
/// bits of floats.
pub(super) fn choose_largest(to: &mut [f32], from: &[f32]) {
    let (shares, places) = to.split_at_mut(to.len() / 2);
    for (rank, to) in shares.iter_mut().enumerate() {
        let (before, behind) = places.split_at_mut(rank);
        let mut largest: Option<(usize, f32)> = None;
        for (at, share) in from.iter().enumerate() {
            let is_larger = largest.is_none_or(|(_, known)| *share > known);
            if is_larger && !before.iter().any(|place| place.to_bits() as usize == at) {
                largest = Some((at, *share));
            }
        }
        if let Some((at, share)) = largest {
            *to = share;
            behind[0] = f32::from_bits(at as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_chosen_in_order_and_of_equal_ones_the_first() {
        let chosen = |from: &[f32], count: usize| {
            let mut to = vec![0.0; 2 * count];
            choose_largest(&mut to, from);
            let (shares, places) = to.split_at(count);
            let places: Vec<u32> = places.iter().map(|it| it.to_bits()).collect();
            (shares.to_vec(), places)
        };
        let found = chosen(&[0.1, 0.3, 0.2, 0.3, 0.1], 4);
        assert_eq!(found, (vec![0.3, 0.3, 0.2, 0.1], vec![1, 3, 2, 0]));
        // What is no number leaves the places ones that there are.
        let (_, places) = chosen(&[f32::NAN; 3], 2);
        assert_eq!(places, [0, 1]);
        let (_, places) = chosen(&[0.5, f32::NAN, 0.7], 3);
        assert_eq!(places.iter().sum::<u32>(), 3);
    }

    #[test]
    fn shares_are_those_of_their_exponentials_and_mix_rows() {
        let from: Vec<f32> = (0..37).map(|at| (at * 29 % 37) as f32 / 3.0).collect();
        let total: f64 = from.iter().map(|it| f64::from(*it).exp()).sum();
        for isa in Isa::all_supported() {
            let mut to = vec![0.0; from.len()];
            softmax(isa, &mut to, &from);
            for (made, from) in to.iter().zip(&from) {
                let exact = f64::from(*from).exp() / total;
                assert!((f64::from(*made) - exact).abs() <= 1e-6 * exact);
            }
            let mut mixed = [9.0; 3];
            mix_rows(
                isa,
                &mut mixed,
                &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0],
                &[0.5, 2.0],
            );
            assert_eq!(mixed, [20.5, 41.0, 61.5]);
        }
        for value in [-100.0f32, -3.0, 0.0, 3.0, 100.0] {
            let exact = 1.0 / (1.0 + f64::from(-value).exp());
            assert!((f64::from(logistic(value)) - exact).abs() <= 1e-6 * exact.max(1e-6));
        }
    }

    #[test]
    fn bytes_times_their_scale_are_within_half_a_step_of_what_they_stand_for() {
        let from: Vec<f32> = (0..64)
            .map(|at| ((at * 37 % 64) as f32 - 31.0) / 7.0)
            .collect();
        for isa in Isa::all_supported() {
            let mut to = vec![0.0; 64 / 4 + 4];
            quantise_row(isa, &mut to, &from);
            let bytes: &[i8] = bytemuck::cast_slice(&to[..16]);
            let sums: &[i32] = bytemuck::cast_slice(&to[18..]);
            for (block, part) in from.chunks(BLOCK).enumerate() {
                let own = &bytes[block * BLOCK..][..BLOCK];
                let scale = to[16 + block];
                assert_eq!(own.iter().map(|it| it.unsigned_abs()).max(), Some(127));
                let pairs = own.iter().zip(part);
                let apart = pairs.map(|(byte, it)| (f32::from(*byte) * scale - it).abs());
                assert!(apart.fold(0.0, f32::max) <= scale * 0.5001);
                let sum: i32 = own.iter().map(|byte| i32::from(*byte)).sum();
                assert_eq!(sums[block], sum);
            }
        }
    }

    #[test]
    fn a_row_of_zeros_is_bytes_of_zero() {
        let mut to = vec![9.0; 32 / 4 + 2];
        quantise_row(Isa::detect_widest(), &mut to, &[0.0; 32]);
        assert!(to.iter().all(|it| *it == 0.0));
    }

    #[test]
    fn a_gate_is_its_curve_from_end_to_end() {
        let gates = [-100.0f32, -20.0, -1.0, 0.0, 1.0, 20.0, 100.0];
        let near = |made: &[f32], of: fn(f64) -> f64| {
            for (made, gate) in made.iter().zip(gates) {
                let exact = 2.0 * of(f64::from(gate));
                assert!((f64::from(*made) - exact).abs() <= 1e-6 * exact.abs().max(1e-6));
            }
        };
        for isa in Isa::all_supported() {
            let mut made = [0.0; 7];
            gate_logistic(isa, &mut made, &gates, &[2.0; 7]);
            near(&made, |gate| gate / (1.0 + (-gate).exp()));
            gate_gauss(isa, &mut made, &gates, &[2.0; 7]);
            near(&made, |gate| {
                let slope = (2.0 / std::f64::consts::PI).sqrt();
                let bent = (slope * (gate + 0.044715 * gate.powi(3))).tanh();
                0.5 * gate * (1.0 + bent)
            });
        }
    }

    #[test]
    fn what_is_bent_is_the_hyperbolic_tangent() {
        let from: Vec<f32> = (-400..400).map(|at| at as f32 / 7.0).collect();
        for isa in Isa::all_supported() {
            let mut made = vec![0.0; from.len()];
            scale_tanh(isa, &mut made, &from, 0.5, 30.0);
            for (made, from) in made.iter().zip(&from) {
                let exact = 30.0 * (0.5 * f64::from(*from)).tanh();
                assert!((f64::from(*made) - exact).abs() <= 6e-7 * exact.abs());
                assert!(made.abs() <= 30.0);
            }
        }
    }
}
