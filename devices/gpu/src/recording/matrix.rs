//! A weight matrix that kernels read in its stored form, with the scales of its blocks if it has
//! them. A GPU program creates it for weights that need not be widened in memory.

use super::stream::Array;

/// A weight matrix on the device: rows of 32-bit or 16-bit floats, or of integers with one scale
/// for each block of a row.
#[derive(Clone)]
pub(crate) struct Matrix {
    pub values: Array,
    pub scales: Option<Scales>,
}

/// One float of 32 bits for each block of a row.
#[derive(Clone)]
pub(crate) struct Scales {
    pub array: Array,
    /// Elements that share a scale.
    pub block: usize,
}

impl Matrix {
    /// Rows, and the elements of one.
    pub fn rows_and_depth(&self) -> [usize; 2] {
        let dims = &self.values.dims;
        [dims[0], dims[1]]
    }

    /// The elements that share a scale, and the scales of a row.
    pub fn block_dims(&self) -> [usize; 2] {
        let scales = self.scales.as_ref();
        scales.map_or([1, 0], |it| [it.block, it.array.dims[1]])
    }

    /// Returns the arrays to bind to a kernel.
    pub fn arrays(&self) -> Vec<&Array> {
        let scales = self.scales.iter().map(|it| &it.array);
        std::iter::once(&self.values).chain(scales).collect()
    }
}
