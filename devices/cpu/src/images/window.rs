//! Computes one place of a pool's result: the largest value or the sum of a window, for every
//! channel. The pooling steps of the image engine call it.

use souk_host::isa::Isa;

#[cfg(target_arch = "aarch64")]
use crate::tiled::vectors::neon::Neon;
#[cfg(target_arch = "x86_64")]
use crate::tiled::vectors::x86::{Half, Wide};
use crate::tiled::vectors::{Plain, Vector};

/// Vectors of channels in registers at once.
const VECTORS: usize = 4;

/// One place of a pool's result.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    /// Pointers to the pixels of the window, without padding.
    pub reads: &'a [*const f32],
    /// Where the results go.
    pub write: *mut f32,
    pub channels: usize,
}

/// The reduction over a window.
#[derive(Clone, Copy)]
pub(super) enum WindowReduction {
    Largest,
    /// Their sum times a factor.
    Sum(f32),
}

impl Window<'_> {
    /// Computes the place; an empty window gives zero.
    ///
    /// # Safety
    /// This processor must have the instructions of `isa`. Every read and the write must reach over
    /// the channels. No other thread may touch the memory that the call writes.
    #[expect(unsafe_code, reason = "the caller vouches for the pointers")]
    pub unsafe fn compute_place(&self, isa: Isa, of: WindowReduction) {
        // SAFETY: `isa` was found; the rest is the caller's contract handed on.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => window_512(self, of),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => window_256(self, of),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => window_of::<Neon>(self, of),
                Isa::Plain => window_of::<Plain>(self, of),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
#[expect(unsafe_code, reason = "built for wider vectors; the caller has them")]
unsafe fn window_512(window: &Window<'_>, of: WindowReduction) {
    // SAFETY: the caller's contract, handed on.
    unsafe { window_of::<Wide>(window, of) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[expect(unsafe_code, reason = "built for wider vectors; the caller has them")]
unsafe fn window_256(window: &Window<'_>, of: WindowReduction) {
    // SAFETY: the caller's contract, handed on.
    unsafe { window_of::<Half>(window, of) }
}

#[inline(always)]
#[expect(unsafe_code, reason = "pointers keep the inner loop free of checks")]
unsafe fn window_of<V: Vector>(window: &Window<'_>, of: WindowReduction) {
    let Window {
        reads,
        write,
        channels,
    } = *window;
    // SAFETY: whole loads end within the channels, and the last load covers only the channels that
    // are left.
    unsafe {
        let mut channel = 0;
        while channel + VECTORS * V::WIDTH <= channels {
            let load = |from: *const f32, vector: usize| V::load(from.add(vector * V::WIDTH));
            let held: [V; VECTORS] = combine_reads(reads, channel, of, load);
            for (vector, held) in held.into_iter().enumerate() {
                held.store(write.add(channel + vector * V::WIDTH));
            }
            channel += VECTORS * V::WIDTH;
        }
        while channel < channels {
            let count = (channels - channel).min(V::WIDTH);
            if count == V::WIDTH {
                let [held] = combine_reads(reads, channel, of, |from, _| V::load(from));
                held.store(write.add(channel));
            } else {
                let [held] = combine_reads(reads, channel, of, |from, _| V::load_part(from, count));
                held.store_part(write.add(channel), count);
            }
            channel += count;
        }
    }
}

/// Computes a few vectors of results.
///
/// # Safety
/// As for [`Vector`]; every read must have these vectors behind it from `channel` on.
#[inline(always)]
#[expect(unsafe_code, reason = "vector instructions and pointers")]
unsafe fn combine_reads<V: Vector, const COUNT: usize>(
    reads: &[*const f32],
    channel: usize,
    of: WindowReduction,
    load: impl Fn(*const f32, usize) -> V,
) -> [V; COUNT] {
    // SAFETY: the caller's contract, handed on.
    unsafe {
        let zero = V::splat(0.0);
        let Some((first, others)) = reads.split_first() else {
            return [zero; COUNT];
        };
        let mut held: [V; COUNT] = std::array::from_fn(|at| load(first.add(channel), at));
        match of {
            WindowReduction::Largest => {
                for read in others {
                    for (at, held) in held.iter_mut().enumerate() {
                        *held = held.max_or_nan(load(read.add(channel), at));
                    }
                }
            }
            WindowReduction::Sum(factor) => {
                for read in others {
                    for (at, held) in held.iter_mut().enumerate() {
                        *held = held.plus(load(read.add(channel), at));
                    }
                }
                let factor = V::splat(factor);
                held = held.map(|held| held.times_plus(factor, zero));
            }
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiled::tile::tests::{assert_same_bits, odd_floats};

    #[test]
    #[expect(unsafe_code, reason = "the kernels take pointers")]
    fn windows_of_any_length_have_the_bits_of_one_float_after_the_other() {
        const READS: usize = 5;
        for (isa, channels) in Isa::all_supported()
            .into_iter()
            .flat_map(|isa| (0..71).map(move |channels| (isa, channels)))
        {
            let image = odd_floats(1 + READS * channels, 3);
            let image = &image[1..];
            let reads: Vec<_> = (0..READS)
                .map(|at| image[at * channels..].as_ptr())
                .collect();
            let values = |channel: usize| (0..READS).map(move |at| image[at * channels + channel]);
            let larger = |held: f32, value: f32| {
                if held >= value || held.is_nan() {
                    held
                } else {
                    value
                }
            };
            let largest = |channel: usize| values(channel).reduce(larger).unwrap();
            let mean = |channel: usize| values(channel).reduce(|a, b| a + b).unwrap() * 0.2 + 0.0;
            let mut made = vec![0.0; channels + 2];
            let window = Window {
                reads: &reads,
                write: made[1..].as_mut_ptr(),
                channels,
            };
            // SAFETY: every pointer is to a float for each channel.
            unsafe { window.compute_place(isa, WindowReduction::Largest) };
            let expected: Vec<f32> = (0..channels).map(largest).collect();
            assert_same_bits(
                &made[1..=channels],
                &expected,
                &format!("{isa:?} {channels}"),
            );
            // SAFETY: as above.
            unsafe { window.compute_place(isa, WindowReduction::Sum(0.2)) };
            let expected: Vec<f32> = (0..channels).map(mean).collect();
            assert_same_bits(
                &made[1..=channels],
                &expected,
                &format!("{isa:?} {channels}"),
            );
            assert_eq!([made[0], made[channels + 1]], [0.0; 2], "{isa:?}");
        }
    }
}
