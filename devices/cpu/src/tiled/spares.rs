//! Buffers kept from one run for another.

use std::sync::Mutex;

use super::aligned::AlignedFloats;

/// Sets of buffers kept, for as many runs at once.
const SETS_MAX: usize = 2;

/// Sets of buffers that no run uses.
#[derive(Default)]
pub(crate) struct SpareBuffers(Mutex<Vec<Vec<AlignedFloats>>>);

impl SpareBuffers {
    /// Buffers of these lengths: an earlier run's, or new ones, which are zero.
    pub fn take(&self, lengths: &[usize]) -> Vec<AlignedFloats> {
        let spare = self.0.lock().unwrap_or_else(|held| held.into_inner()).pop();
        let fits = |spare: &Vec<AlignedFloats>| {
            let floats = spare.iter().map(|floats| floats.len());
            floats.eq(lengths.iter().copied())
        };
        let fresh = || {
            let floats = lengths.iter();
            floats.map(|&floats| AlignedFloats::zeros(floats)).collect()
        };
        spare.filter(fits).unwrap_or_else(fresh)
    }

    /// Keeps them for another run, if there is room.
    pub fn keep(&self, buffers: Vec<AlignedFloats>) {
        let mut sets = self.0.lock().unwrap_or_else(|held| held.into_inner());
        if sets.len() < SETS_MAX {
            sets.push(buffers);
        }
    }
}
