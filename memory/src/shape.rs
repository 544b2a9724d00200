//! The shape of a tensor, whose element count is checked at construction.
//!
//! A file or a peer can state any shape in a few bytes. The element count of a [`Shape`] always
//! fits, so no later multiplication can overflow and no allocation can follow an absurd claim.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::DType;

/// The most dimensions of a tensor, which is NumPy's own limit.
pub const RANK_MAX: usize = 64;

/// The sizes of the dimensions, outermost first; a scalar has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<usize>", into = "Vec<usize>")]
pub struct Shape {
    dims: Vec<usize>,
    count: usize,
}

/// Why dimensions are not a shape.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// There are more dimensions than [`RANK_MAX`].
    #[error("a shape has at most {RANK_MAX} dimensions, not {rank}")]
    Rank {
        /// The number of dimensions.
        rank: usize,
    },
    /// The element count does not fit in the address space.
    #[error("the shape {dims:?} has more elements than can be addressed")]
    Count {
        /// The sizes of the dimensions.
        dims: Vec<usize>,
    },
    /// A size is negative.
    #[error("dimension {axis} of a shape is {size}: sizes are zero or more")]
    Negative {
        /// The index of the dimension.
        axis: usize,
        /// The negative size.
        size: i64,
    },
}

impl Shape {
    /// Creates a shape of these sizes.
    ///
    /// # Errors
    /// [`ShapeError::Rank`] or [`ShapeError::Count`]. The checked product ignores zeros, so a zero
    /// does not hide what the other sizes claim.
    pub fn new(dims: impl Into<Vec<usize>>) -> Result<Self, ShapeError> {
        let dims = dims.into();
        if dims.len() > RANK_MAX {
            return Err(ShapeError::Rank { rank: dims.len() });
        }
        let mut nonzero = dims.iter().filter(|&&size| size != 0);
        let product = nonzero.try_fold(1usize, |count, &size| count.checked_mul(size));
        match product {
            // An element can take 16 bytes, and Rust addresses isize::MAX of them.
            Some(product) if product <= isize::MAX as usize / 16 => {
                let count = if dims.contains(&0) { 0 } else { product };
                Ok(Self { dims, count })
            }
            _ => Err(ShapeError::Count { dims }),
        }
    }

    /// Creates a shape of sizes in ONNX's type.
    ///
    /// # Errors
    /// As for [`Shape::new`], and [`ShapeError::Negative`].
    pub fn from_i64(dims: &[i64]) -> Result<Self, ShapeError> {
        let sizes: Result<Vec<_>, _> = dims
            .iter()
            .enumerate()
            .map(|(axis, &size)| {
                usize::try_from(size).map_err(|_| ShapeError::Negative { axis, size })
            })
            .collect();
        Self::new(sizes?)
    }

    /// Returns the shape of a scalar: no dimensions, one element.
    #[must_use]
    pub fn scalar() -> Self {
        Self {
            dims: Vec::new(),
            count: 1,
        }
    }

    /// Returns the sizes, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Returns the number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn element_count(&self) -> usize {
        self.count
    }

    /// Returns the bytes of a tensor of this shape and `dtype`.
    #[must_use]
    pub fn byte_length(&self, dtype: DType) -> usize {
        dtype
            .byte_length(self.count)
            .expect("a shape's count leaves room for 16 bytes an element")
    }
}

impl TryFrom<Vec<usize>> for Shape {
    type Error = ShapeError;

    fn try_from(dims: Vec<usize>) -> Result<Self, ShapeError> {
        Self::new(dims)
    }
}

impl From<Shape> for Vec<usize> {
    fn from(shape: Shape) -> Self {
        shape.dims
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.dims.iter().map(ToString::to_string).collect();
        write!(formatter, "[{}]", sizes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zip_bomb_shapes_are_refused() {
        let bomb = vec![1usize << 40, 1 << 40];
        assert_eq!(
            Shape::new(bomb.clone()),
            Err(ShapeError::Count { dims: bomb })
        );
        let hidden = vec![1usize << 40, 1 << 40, 0];
        assert!(matches!(Shape::new(hidden), Err(ShapeError::Count { .. })));
        assert_eq!(Shape::new(vec![1; 65]), Err(ShapeError::Rank { rank: 65 }));
        assert_eq!(
            Shape::from_i64(&[2, -1]),
            Err(ShapeError::Negative { axis: 1, size: -1 })
        );
    }

    #[test]
    fn scalars_have_one_element_and_empties_none() {
        assert_eq!(Shape::scalar().element_count(), 1);
        assert_eq!(Shape::new([3, 0]).unwrap().element_count(), 0);
        assert_eq!(Shape::new([2, 3]).unwrap().to_string(), "[2, 3]");
    }
}
