//! A list of floats that begins at a cache line, in which the engines keep buffers, caches and
//! packed weights. A vector that lies in two lines is two loads, which slows down products whose
//! weights come from the second cache.

use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

/// Floats to a cache line of 64 bytes, which no vector of this crate is wider than.
const FLOATS: usize = 16;

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([f32; FLOATS]);

/// Floats that begin at a cache line.
#[derive(Debug)]
pub(crate) struct AlignedFloats {
    lines: Vec<CacheLine>,
    floats: usize,
}

impl AlignedFloats {
    pub fn zeros(floats: usize) -> Self {
        Self {
            lines: bytemuck::zeroed_vec(floats.div_ceil(FLOATS)),
            floats,
        }
    }
}

impl Deref for AlignedFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.floats]
    }
}

impl DerefMut for AlignedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.floats]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_begin_with_a_cache_line_and_are_as_many_as_asked_for() {
        for floats in [0, 1, 15, 16, 17, 1000] {
            let mut lines = AlignedFloats::zeros(floats);
            assert_eq!((lines.len(), lines.as_ptr() as usize % 64), (floats, 0));
            lines.fill(1.0);
            assert!(lines.iter().all(|&float| float == 1.0));
        }
    }
}
