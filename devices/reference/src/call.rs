//! What a kernel is called with, and what can go wrong in it.

use souk_memory::{DType, ShapeError, Tensor, TensorError};
use souk_onnx::NodeProto;
use souk_vocabulary::processor::RunError;
use thiserror::Error;

use super::{Scope, value};

/// One node about to run.
pub struct Call<'a> {
    /// The node.
    pub node: &'a NodeProto,
    /// Inputs in order; absent ones are `None`.
    pub inputs: Vec<Option<Tensor>>,
    /// All values in scope, for the graphs within a node.
    pub scope: &'a Scope,
    /// Version of the standard operator set.
    pub opset: i64,
}

/// What a kernel gives: its outputs in order.
pub type Results = Result<Vec<Tensor>, KernelError>;

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
    /// A result larger than any device would hold.
    #[error("its result would have {0} elements")]
    TooLarge(u128),
    /// A node within it failed.
    #[error("{0}")]
    Inner(Box<RunError>),
}

impl Call<'_> {
    /// An input that must be there.
    pub fn input(&self, index: usize) -> Result<&Tensor, KernelError> {
        self.optional(index).ok_or(KernelError::Missing(index))
    }

    /// An input that may be absent.
    pub fn optional(&self, index: usize) -> Option<&Tensor> {
        self.inputs.get(index)?.as_ref()
    }

    /// An input as 64-bit floats.
    pub fn floats(&self, index: usize) -> Result<Vec<f64>, KernelError> {
        value::floats(self.input(index)?)
    }

    /// An input as integers.
    pub fn ints(&self, index: usize) -> Result<Vec<i64>, KernelError> {
        value::indices(self.input(index)?)
    }

    /// An input as integers, if it is there.
    pub fn optional_ints(&self, index: usize) -> Result<Option<Vec<i64>>, KernelError> {
        self.optional(index).map(value::indices).transpose()
    }

    /// An input's only element as a float, if it is there.
    pub fn scalar(&self, index: usize) -> Result<Option<f64>, KernelError> {
        let Some(tensor) = self.optional(index) else {
            return Ok(None);
        };
        value::floats(tensor)?
            .first()
            .copied()
            .map(Some)
            .ok_or(KernelError::Range(index))
    }

    /// An input's only element as an integer, if it is there.
    pub fn scalar_int(&self, index: usize) -> Result<Option<i64>, KernelError> {
        let Some(values) = self.optional_ints(index)? else {
            return Ok(None);
        };
        values
            .first()
            .copied()
            .map(Some)
            .ok_or(KernelError::Range(index))
    }

    /// An integer attribute, or its default.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.node.int(name).unwrap_or(default)
    }

    /// Whether an integer attribute is not zero; absent it is.
    pub fn flag(&self, name: &str) -> bool {
        self.int(name, 0) != 0
    }

    /// A float attribute, or its default.
    pub fn float(&self, name: &str, default: f64) -> f64 {
        self.node.float(name).map_or(default, f64::from)
    }

    /// A text attribute, or its default.
    pub fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.node.string(name).unwrap_or(default)
    }

    /// A list of integers: an attribute in old versions, an input in new ones.
    pub fn list(&self, name: &str, input: usize) -> Result<Option<Vec<i64>>, KernelError> {
        match self.optional_ints(input)? {
            Some(list) => Ok(Some(list)),
            None => Ok(self
                .node
                .ints(name)
                .filter(|it| !it.is_empty())
                .map(<[i64]>::to_vec)),
        }
    }

    /// How many outputs are wanted.
    pub fn output_count(&self) -> usize {
        self.node.output.len()
    }
}

/// An axis counted from the front, given one counted from either end.
pub fn axis(axis: i64, rank: usize) -> Result<usize, KernelError> {
    let refused = KernelError::Axis { axis, rank };
    let rank = i64::try_from(rank).map_err(|_| refused.clone())?;
    if axis < -rank || axis >= rank {
        return Err(refused);
    }
    Ok((if axis < 0 { axis + rank } else { axis }) as usize)
}

/// Axes counted from the front.
pub fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, KernelError> {
    list.iter().map(|&it| axis(it, rank)).collect()
}
