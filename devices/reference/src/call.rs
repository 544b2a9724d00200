//! The arguments of a kernel, and its results.

use souk_memory::Tensor;
use souk_onnx::NodeProto;

pub use super::error::KernelError;
use super::{Scope, value};

/// The outputs of a kernel in order.
pub type Results = Result<Vec<Tensor>, KernelError>;

/// A node with its inputs, ready to run.
pub struct Call<'a> {
    /// The node to run.
    pub node: &'a NodeProto,
    /// Inputs in order; absent ones are `None`.
    pub inputs: Vec<Option<Tensor>>,
    /// All values in scope, for nested graphs.
    pub scope: &'a Scope,
    /// Version of the standard operator set.
    pub opset: i64,
}

impl Call<'_> {
    /// Returns an input, or an error if it is absent.
    pub fn input(&self, index: usize) -> Result<&Tensor, KernelError> {
        self.optional_input(index)
            .ok_or(KernelError::Missing(index))
    }

    /// Returns an input that can be absent.
    pub fn optional_input(&self, index: usize) -> Option<&Tensor> {
        self.inputs.get(index)?.as_ref()
    }

    /// Returns an input as 64-bit floats.
    pub fn floats(&self, index: usize) -> Result<Vec<f64>, KernelError> {
        value::to_floats(self.input(index)?)
    }

    /// Returns an input as integers.
    pub fn ints(&self, index: usize) -> Result<Vec<i64>, KernelError> {
        value::to_indices(self.input(index)?)
    }

    /// Returns an input as integers, if present.
    pub fn optional_ints(&self, index: usize) -> Result<Option<Vec<i64>>, KernelError> {
        self.optional_input(index)
            .map(value::to_indices)
            .transpose()
    }

    /// Returns an input's first element as a float, if present.
    pub fn optional_scalar(&self, index: usize) -> Result<Option<f64>, KernelError> {
        let Some(tensor) = self.optional_input(index) else {
            return Ok(None);
        };
        value::to_floats(tensor)?
            .first()
            .copied()
            .map(Some)
            .ok_or(KernelError::Range(index))
    }

    /// Returns an input's first element as an integer, if present.
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

    /// Returns an integer attribute, or its default.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.node.int(name).unwrap_or(default)
    }

    /// Returns whether an integer attribute is present and not zero.
    pub fn flag(&self, name: &str) -> bool {
        self.int(name, 0) != 0
    }

    /// Returns a float attribute, or its default.
    pub fn float(&self, name: &str, default: f64) -> f64 {
        self.node.float(name).map_or(default, f64::from)
    }

    /// Returns a string attribute, or its default.
    pub fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.node.string(name).unwrap_or(default)
    }

    /// Returns a list of integers: an attribute in old versions, an input in new ones.
    pub fn int_list(&self, name: &str, input: usize) -> Result<Option<Vec<i64>>, KernelError> {
        match self.optional_ints(input)? {
            Some(list) => Ok(Some(list)),
            None => Ok(self
                .node
                .ints(name)
                .filter(|it| !it.is_empty())
                .map(<[i64]>::to_vec)),
        }
    }

    /// Returns the number of outputs.
    pub fn output_count(&self) -> usize {
        self.node.output.len()
    }
}

/// Converts an axis counted from either end to one counted from the front; the axis must exist.
pub fn resolve_axis(axis: i64, rank: usize) -> Result<usize, KernelError> {
    let refused = KernelError::Axis { axis, rank };
    let rank = i64::try_from(rank).map_err(|_| refused.clone())?;
    if axis < -rank || axis >= rank {
        return Err(refused);
    }
    Ok((if axis < 0 { axis + rank } else { axis }) as usize)
}

/// Converts axes to ones counted from the front.
pub fn resolve_axes(list: &[i64], rank: usize) -> Result<Vec<usize>, KernelError> {
    list.iter().map(|&it| resolve_axis(it, rank)).collect()
}
