//! A view of rows of floats in memory that threads share. The tasks of the image and sequence
//! engines read and write values through it. The caller must ensure that no thread writes a row
//! that another uses.

use super::worker_pool::Memory;

/// Rows of floats, each as far from the next.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    data: *mut f32,
    /// Floats from a row to the next.
    stride: usize,
    /// Floats of a row.
    width: usize,
}

impl Span {
    /// Creates rows, the first of which begins this many floats after the start of a memory.
    pub fn new(memory: Memory, first: usize, stride: usize, width: usize) -> Self {
        Self {
            data: memory.as_mut_ptr().wrapping_add(first),
            stride,
            width,
        }
    }

    /// Floats from a row to the next.
    pub fn stride(self) -> usize {
        self.stride
    }

    /// Floats of a row.
    pub fn width(self) -> usize {
        self.width
    }

    /// Where a column of a row is.
    pub fn ptr_at(self, row: usize, column: usize) -> *mut f32 {
        self.data.wrapping_add(row * self.stride + column)
    }

    /// Returns a row.
    ///
    /// # Safety
    /// The memory must have the row, and no thread must write it meanwhile.
    #[expect(unsafe_code, reason = "values are places in buffers shared by threads")]
    pub unsafe fn row<'a>(self, row: usize) -> &'a [f32] {
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts(self.ptr_at(row, 0), self.width) }
    }

    /// Returns a row for writing.
    ///
    /// # Safety
    /// The memory must have the row, and no other thread must read or write it meanwhile.
    #[expect(unsafe_code, reason = "values are places in buffers shared by threads")]
    pub unsafe fn row_mut<'a>(self, row: usize) -> &'a mut [f32] {
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.ptr_at(row, 0), self.width) }
    }
}
