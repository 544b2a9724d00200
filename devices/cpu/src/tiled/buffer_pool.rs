//! Keeps the buffers that one run leaves so that later runs can use them again. The parts of a
//! program share one pool, because they run one after another.

use std::cmp::Reverse;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use super::aligned_floats::AlignedFloats;

/// Upper bound on the concurrent runs whose buffers are kept.
const RUNS_MAX: usize = 2;

/// Upper bound on the length of a spare buffer relative to the request; without it, the memory of a
/// run would grow with the differences of its parts.
const LENGTH_FACTOR_MAX: usize = 2;

/// Buffers that no run uses.
#[derive(Default)]
pub(crate) struct SpareBuffers(Mutex<BufferPoolState>);

#[derive(Default)]
struct BufferPoolState {
    buffers: Vec<AlignedFloats>,
    /// Floats of the buffers that runs use now, and the most that they used at once.
    used: usize,
    used_max: usize,
    /// The most floats that one part of a program asked for.
    asked_max: usize,
}

/// Buffers of a run; when this is dropped, they are spare again.
pub(crate) struct RunBuffers<'a> {
    spares: &'a SpareBuffers,
    buffers: Vec<AlignedFloats>,
}

impl SpareBuffers {
    /// Returns buffers of at least these lengths: spare ones with the contents of earlier runs, or
    /// new ones filled with zeros. The caller must not rely on the contents.
    pub fn take_buffers(&self, lengths: &[usize]) -> RunBuffers<'_> {
        let mut spares = self.lock();
        let mut longest_first: Vec<usize> = (0..lengths.len()).collect();
        longest_first.sort_by_key(|&at| Reverse(lengths[at]));
        let mut taken: Vec<Option<AlignedFloats>> = lengths.iter().map(|_| None).collect();
        for at in longest_first {
            taken[at] = spares.take_fitting(lengths[at]);
        }
        let missing = || {
            taken
                .iter()
                .zip(lengths)
                .filter(|(taken, _)| taken.is_none())
        };
        spares.used += missing().map(|(_, &floats)| floats).sum::<usize>();
        spares.used_max = spares.used_max.max(spares.used);
        spares.asked_max = spares.asked_max.max(lengths.iter().sum());
        // Trim before new buffers are allocated, so that spares never add to the peak.
        spares.trim_spares();
        drop(spares);
        let taken = taken.into_iter().zip(lengths);
        let buffers = taken.map(|(spare, &floats)| match spare {
            Some(spare) => spare,
            None => AlignedFloats::zeros(floats),
        });
        RunBuffers {
            spares: self,
            buffers: buffers.collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BufferPoolState> {
        self.0.lock().unwrap_or_else(|held| held.into_inner())
    }
}

impl BufferPoolState {
    /// Removes the shortest spare that is long enough for this many floats.
    fn take_fitting(&mut self, floats: usize) -> Option<AlignedFloats> {
        let lengths = floats..=floats.saturating_mul(LENGTH_FACTOR_MAX);
        let spares = self.buffers.iter().enumerate();
        let fitting = spares.filter(|(_, spare)| lengths.contains(&spare.len()));
        let (at, _) = fitting.min_by_key(|(_, spare)| spare.len())?;
        let spare = self.buffers.swap_remove(at);
        self.used += spare.len();
        Some(spare)
    }

    /// Frees the spares that, with the buffers in use, are more than runs at once ever used.
    fn trim_spares(&mut self) {
        let most = self.used_max.min(RUNS_MAX * self.asked_max);
        let room = most.saturating_sub(self.used);
        let mut kept = 0;
        self.buffers.retain(|spare| {
            kept += spare.len();
            kept <= room
        });
    }
}

impl Deref for RunBuffers<'_> {
    type Target = [AlignedFloats];

    fn deref(&self) -> &[AlignedFloats] {
        &self.buffers
    }
}

impl DerefMut for RunBuffers<'_> {
    fn deref_mut(&mut self) -> &mut [AlignedFloats] {
        &mut self.buffers
    }
}

impl Drop for RunBuffers<'_> {
    fn drop(&mut self) {
        let mut spares = self.spares.lock();
        spares.used -= self.buffers.iter().map(|it| it.len()).sum::<usize>();
        spares.buffers.append(&mut self.buffers);
        spares.trim_spares();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare_floats(spares: &SpareBuffers) -> usize {
        let spares = spares.lock();
        spares.buffers.iter().map(|spare| spare.len()).sum()
    }

    #[test]
    fn parts_one_after_another_share_what_the_largest_needs() {
        let spares = SpareBuffers::default();
        for _ in 0..3 {
            for lengths in [[64, 1024], [900, 80], [32, 2000]] {
                let mut taken = spares.take_buffers(&lengths);
                assert!(
                    taken
                        .iter()
                        .zip(lengths)
                        .all(|(it, least)| it.len() >= least)
                );
                taken[0][0] = 1.0;
                let held = spare_floats(&spares) + taken.iter().map(|it| it.len()).sum::<usize>();
                assert!(held <= 2 * 2032, "{held}");
            }
        }
        assert!(spare_floats(&spares) <= 2 * 2032);
    }

    #[test]
    fn a_buffer_is_taken_again_and_none_twice() {
        let spares = SpareBuffers::default();
        let (one, two) = (spares.take_buffers(&[100]), spares.take_buffers(&[100]));
        assert_ne!(one[0].as_ptr(), two[0].as_ptr());
        let place = two[0].as_ptr();
        drop(two);
        assert_eq!(spares.take_buffers(&[90])[0].as_ptr(), place);
        assert!(
            spares.take_buffers(&[10])[0].len() < 100,
            "far too long for it"
        );
        drop(one);
        let all: Vec<RunBuffers<'_>> = (0..8).map(|_| spares.take_buffers(&[100])).collect();
        drop(all);
        assert!(spare_floats(&spares) <= RUNS_MAX * 100, "the rest is freed");
    }
}
