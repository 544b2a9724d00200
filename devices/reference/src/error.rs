//! Why a kernel failed.

use souk_memory::{DType, ShapeError, TensorError};
use souk_vocabulary::processor::RunError;
use thiserror::Error;

/// Why a kernel failed on its inputs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KernelError {
    /// An input is not there.
    #[error("its input {0} is missing")]
    Missing(usize),
    /// An attribute is not there or not as it must be.
    #[error("its attribute {0} is missing or malformed")]
    Attribute(&'static str),
    /// An input has values that cannot be.
    #[error("its input {0} is out of range")]
    Range(usize),
    /// An input is no list of tensors.
    #[error("its input {0} is no list of tensors")]
    NoList(usize),
    /// Shapes that do not go together.
    #[error("its shapes do not fit: {0:?} and {1:?}")]
    Shapes(Vec<usize>, Vec<usize>),
    /// An axis that is not there.
    #[error("axis {axis} of {rank} dimensions")]
    Axis {
        /// The axis that is named.
        axis: i64,
        /// Dimensions there are.
        rank: usize,
    },
    /// An element type it has no values for.
    #[error("it cannot compute with {0}")]
    DType(DType),
    /// A result whose shape is refused.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A result that is no tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A division of integers by zero.
    #[error("an integer is divided by zero")]
    DivisionByZero,
    /// Tokens that are not drawn.
    #[error("{0}")]
    Sample(String),
    /// An expert that is not there.
    #[error("its input 2 names expert {index}, and there are {experts}")]
    Expert {
        /// The expert that is named.
        index: i64,
        /// Experts there are.
        experts: usize,
    },
    /// A result larger than any device would hold.
    #[error("its result would have {0} elements")]
    TooLarge(u128),
    /// A node within it failed.
    #[error("{0}")]
    Inner(Box<RunError>),
}
