//! Tests that tiles and places of depthwise convolutions have the bits of plain loops, with all
//! vector instructions of this machine, and how tiles share what is read next.

use super::*;

#[test]
fn tiles_bring_nearer_all_of_what_is_read_next_and_not_more_than_finds_room() {
    let next: Vec<f32> = (0..1000).map(|at| at as f32).collect();
    for tiles in [1, 3, 7, 2000] {
        let parts: Vec<&[f32]> = prefetch_parts(&next, tiles).collect();
        assert!(parts.len() <= tiles);
        assert_eq!(parts.concat(), next, "{tiles} tiles");
    }
    let large = vec![0.0; AHEAD_FLOATS_MAX + 100];
    assert_eq!(
        prefetch_parts(&large, 5).flatten().count(),
        AHEAD_FLOATS_MAX
    );
    assert_eq!(prefetch_parts(&[], 4).count(), 0);
}

/// Numbers between minus four and four that differ, and among them those that only some
/// instructions treat as they should: NaNs, infinities, zeros, numbers below the least normal one.
pub(crate) fn odd_floats(count: usize, seed: u32) -> Vec<f32> {
    const ODD: [u32; 8] = [
        0x7fc0_0123, // NaN
        0xff80_0001, // a NaN that signals
        0x7f80_0000, // infinity
        0xff80_0000, // less than all
        0x8000_0000, // minus zero
        0x0000_0001, // the least
        0x807f_ffff, // the greatest of those below the normal ones, negative
        0x7f7f_ffff, // the greatest
    ];
    let number = |at: u32| {
        let word = (at.wrapping_add(seed)).wrapping_mul(2_654_435_761);
        match word >> 27 {
            0 => f32::from_bits(ODD[(word >> 24) as usize % ODD.len()]),
            1 => 0.0,
            2 => f32::from_bits((word >> 9) & 0x007f_ffff),
            _ => (word >> 8) as f32 / (1 << 21) as f32 - 4.0,
        }
    };
    (0..count as u32).map(number).collect()
}

/// Asserts that floats have the same bits; each NaN is like the other.
pub(crate) fn assert_same_bits(found: &[f32], expected: &[f32], told: &str) {
    assert_eq!(found.len(), expected.len(), "{told}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let is_same = found.to_bits() == expected.to_bits();
        let are_none = found.is_nan() && expected.is_nan();
        assert!(is_same || are_none, "{told}, {at}: {found} and {expected}");
    }
}

/// Bounds that change nothing, and bounds that change many.
const BOUNDS: [[f32; 2]; 2] = [[f32::NEG_INFINITY, f32::INFINITY], [0.0, 2.5]];
/// Stays where no result goes.
const BESIDE: f32 = 77.0;

#[test]
#[expect(unsafe_code, reason = "the kernels take pointers")]
fn depthwise_places_of_any_length_have_the_bits_of_one_float_after_the_other() {
    const TAPS: usize = 3;
    for (isa, channels) in Isa::all_supported()
        .into_iter()
        .flat_map(|isa| (0..71).map(move |channels| (isa, channels)))
    {
        // All begin one float behind a multiple of a vector, or thereabouts.
        let [image, weights, scale, bias, add] =
            [1, 2, 3, 4, 5].map(|seed| odd_floats(1 + TAPS * channels, 97 * seed));
        let [image, weights, scale, bias, add] =
            [&image, &weights, &scale, &bias, &add].map(|it| &it[1..]);
        let reads: Vec<*const f32> = (0..TAPS)
            .map(|tap| image[tap * channels..].as_ptr())
            .collect();
        for ([low, high], is_added) in BOUNDS.into_iter().zip([false, true]) {
            let mut made = vec![BESIDE; channels + 2];
            let place = Depthwise {
                reads: &reads,
                weights,
                scale: &scale[..channels],
                bias: &bias[..channels],
                write: made[1..].as_mut_ptr(),
                add: is_added.then_some(add.as_ptr()),
                low,
                high,
            };
            // SAFETY: every pointer is to a float for each channel.
            unsafe { compute_depthwise(isa, &place) };
            let of = |channel: usize| {
                let mut sum = 0.0f32;
                for at in (0..TAPS).map(|tap| tap * channels + channel) {
                    sum = image[at].mul_add(weights[at], sum);
                }
                sum = sum.mul_add(scale[channel], bias[channel]);
                let sum = if is_added { sum + add[channel] } else { sum };
                clamp_or_nan(sum, low, high)
            };
            let expected: Vec<f32> = (0..channels).map(of).collect();
            assert_same_bits(
                &made[1..=channels],
                &expected,
                &format!("{isa:?} {channels}"),
            );
            assert_eq!([made[0], made[channels + 1]], [BESIDE; 2], "{isa:?}");
        }
    }
}

#[test]
#[expect(unsafe_code, reason = "the kernels take pointers")]
fn tiles_of_any_size_have_the_bits_of_one_float_after_the_other() {
    const DEPTH: usize = 5;
    for isa in Isa::all_supported() {
        for vectors in 1..=isa.tile_vectors_max() {
            let width = vectors * isa.vector_width();
            let weights = odd_floats(1 + 2 * DEPTH * width, 11);
            let [scale, bias] = [12, 13].map(|seed| odd_floats(1 + width, 31 * seed));
            let [weights, scale, bias] = [&weights, &scale, &bias].map(|it| &it[1..]);
            for (rows, columns) in (1..=isa.tile_rows(vectors))
                .flat_map(|rows| (width - isa.vector_width() + 1..=width).map(move |it| (rows, it)))
            {
                let image = odd_floats(1 + 2 * rows * DEPTH, 14);
                let adds = odd_floats(1 + rows * columns, 15);
                let reads: Vec<_> = (0..2 * rows)
                    .map(|at| image[at * DEPTH..].as_ptr())
                    .collect();
                let added: Vec<_> = (0..rows)
                    .map(|row| adds[1 + row * columns..].as_ptr())
                    .collect();
                for ([low, high], is_added) in BOUNDS.into_iter().zip([false, true]) {
                    let mut made = vec![BESIDE; rows * (columns + 1)];
                    let writes: Vec<_> = made
                        .chunks_mut(columns + 1)
                        .map(<[f32]>::as_mut_ptr)
                        .collect();
                    let tile = Tile {
                        reads: &reads,
                        channel: 1,
                        depth: DEPTH,
                        weights: weights.as_ptr(),
                        scale: scale.as_ptr(),
                        bias: bias.as_ptr(),
                        writes: &writes,
                        adds: is_added.then_some(&added),
                        ahead: &image,
                        columns,
                        low,
                        high,
                    };
                    // SAFETY: there are as many floats behind each pointer as the tile's sizes say.
                    unsafe { compute_tile(isa, vectors, &tile) };
                    let of = |row: usize, column: usize| {
                        let mut sum = 0.0f32;
                        for (tap, channel) in
                            (0..2).flat_map(|tap| (0..DEPTH).map(move |it| (tap, it)))
                        {
                            let value = image[(tap * rows + row) * DEPTH + 1 + channel];
                            sum = value
                                .mul_add(weights[(tap * DEPTH + channel) * width + column], sum);
                        }
                        sum = sum.mul_add(scale[column], bias[column]);
                        let add = adds[1 + row * columns + column];
                        clamp_or_nan(if is_added { sum + add } else { sum }, low, high)
                    };
                    for (row, made) in made.chunks(columns + 1).enumerate() {
                        let expected: Vec<f32> =
                            (0..columns).map(|column| of(row, column)).collect();
                        assert_same_bits(
                            &made[..columns],
                            &expected,
                            &format!("{isa:?} {rows} {columns}"),
                        );
                        assert!(made[columns].to_bits() == BESIDE.to_bits(), "{isa:?}");
                    }
                }
            }
        }
    }
}
