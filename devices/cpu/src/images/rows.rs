//! The image engine's functions of the channels of one pixel, such as scaling, sums and bounds.
//! Each is compiled for every vector width, and the tasks of a run call it with the width of this
//! processor.

use crate::tiled::tile::clamp_or_nan;
use crate::tiled::vectors::pass;

pass! {
    /// A factor and a summand for each channel, then bounds.
    fn scale_channels(to: &mut [f32], from: &[f32], by: (&[f32], &[f32]), low: f32, high: f32) {
        let parameters = by.0.iter().zip(by.1);
        for ((to, from), (factor, shift)) in to.iter_mut().zip(from).zip(parameters) {
            *to = clamp_or_nan(from * factor + shift, low, high);
        }
    }
}

pass! {
    /// The sum of two, then bounds.
    fn add(to: &mut [f32], left: &[f32], right: &[f32], low: f32, high: f32) {
        for ((to, left), right) in to.iter_mut().zip(left).zip(right) {
            *to = clamp_or_nan(left + right, low, high);
        }
    }
}

pass! {
    /// Adds a row to another, then bounds the result.
    fn add_to(to: &mut [f32], from: &[f32], low: f32, high: f32) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = clamp_or_nan(*to + from, low, high);
        }
    }
}

pass! {
    /// Bounds alone.
    fn clamp_channels(to: &mut [f32], from: &[f32], low: f32, high: f32) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = clamp_or_nan(*from, low, high);
        }
    }
}

pass! {
    /// Sums in 64 bits: a plane can be large.
    fn sum_up(to: &mut [f64], from: &[f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += f64::from(*from);
        }
    }
}

pass! {
    /// Channels dealt out among `groups`: the first of each, then the second of each, and so on.
    fn shuffle_channels(to: &mut [f32], from: &[f32], groups: usize) {
        match groups {
            2 => deal_among::<2>(to, from),
            3 => deal_among::<3>(to, from),
            4 => deal_among::<4>(to, from),
            8 => deal_among::<8>(to, from),
            _ => {
                let each = from.len() / groups;
                for (group, from) in from.chunks_exact(each).enumerate() {
                    for (to, from) in to[group..].iter_mut().step_by(groups).zip(from) {
                        *to = *from;
                    }
                }
            }
        }
    }
}

pass! {
    /// Divides each value by a power of the sum of the squares around it; `squares` is scratch of
    /// as many floats, and `parameters` are the factor of the squares, the power and the bias.
    fn normalise_window(to: &mut [f32], from: &[f32], size: usize, parameters: (f32, f32, f32)) {
        let (alpha, beta, bias) = parameters;
        let (before, after) = ((size - 1) / 2, size / 2);
        let count = from.len();
        for (at, to) in to.iter_mut().enumerate() {
            let (start, end) = (at.saturating_sub(before), (at + after + 1).min(count));
            let squares: f32 = from[start..end].iter().map(|it| it * it).sum();
            *to = bias + alpha * squares;
        }
        // Three quarters, of which nearly every model's power is, need no logarithm.
        if beta == 0.75 {
            for (to, from) in to.iter_mut().zip(from) {
                let root = to.sqrt();
                *to = from / (root * root.sqrt());
            }
        } else {
            for (to, from) in to.iter_mut().zip(from) {
                *to = from / to.powf(beta);
            }
        }
    }
}

/// As `deal`, for a number of groups the compiler knows.
#[inline(always)]
fn deal_among<const GROUPS: usize>(to: &mut [f32], from: &[f32]) {
    let each = from.len() / GROUPS;
    let groups: [&[f32]; GROUPS] =
        std::array::from_fn(|group| &from[group * each..(group + 1) * each]);
    for (at, to) in to.chunks_exact_mut(GROUPS).enumerate().take(each) {
        for (to, group) in to.iter_mut().zip(&groups) {
            *to = group[at];
        }
    }
}
