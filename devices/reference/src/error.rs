//! Defines [`KernelError`], the error of a reference kernel that could not compute its outputs, for
//! example because of an unsuitable shape or a division by zero.

use souk_memory::{DType, ShapeError, TensorError};
use souk_vocabulary::processor::RunError;
use thiserror::Error;

/// Reasons why a kernel failed on its inputs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KernelError {
    /// The node lacks an input.
    #[error("its input {0} is missing")]
    Missing(usize),
    /// The node lacks an attribute, or the attribute is malformed.
    #[error("its attribute {0} is missing or malformed")]
    Attribute(&'static str),
    /// An input has invalid values.
    #[error("its input {0} is out of range")]
    Range(usize),
    /// An input has too many or too few dimensions.
    #[error("its input {0} has the wrong rank")]
    Rank(usize),
    /// An input is not a list of tensors.
    #[error("its input {0} is not a list of tensors")]
    NoList(usize),
    /// Two shapes are incompatible.
    #[error("its shapes do not fit: {0:?} and {1:?}")]
    Shapes(Vec<usize>, Vec<usize>),
    /// The axis does not exist.
    #[error("axis {axis} of {rank} dimensions")]
    Axis {
        /// Axis of the node.
        axis: i64,
        /// Number of dimensions.
        rank: usize,
    },
    /// The kernel does not support an element type.
    #[error("it cannot compute with {0}")]
    DType(DType),
    /// The result's shape is invalid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The result is not a valid tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A division of integers by zero.
    #[error("an integer is divided by zero")]
    DivisionByZero,
    /// No token could be drawn.
    #[error("{0}")]
    Sample(String),
    /// The expert does not exist.
    #[error("its input 2 names expert {index}, but there are {experts}")]
    Expert {
        /// Index of the expert.
        index: i64,
        /// Number of experts.
        experts: usize,
    },
    /// The result is larger than any device's memory.
    #[error("its result would have {0} elements")]
    TooLarge(u128),
    /// A node of a nested graph failed.
    #[error("{0}")]
    Inner(Box<RunError>),
}
