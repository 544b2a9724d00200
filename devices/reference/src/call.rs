//! Reads a kernel's arguments from its call: an ONNX node with the values of its inputs.
//!
//! An argument is an input, by its index, or an attribute, by its name. A method for an input fails
//! if the tensor's type does not convert; a method for an attribute returns the default if the node
//! lacks the attribute, or has one of another type.

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
    /// Returns an input.
    ///
    /// # Errors
    /// [`KernelError::Missing`] if the input is absent.
    pub fn input(&self, index: usize) -> Result<&Tensor, KernelError> {
        self.optional_input(index)
            .ok_or(KernelError::Missing(index))
    }

    /// Returns an input, or `None` if it is absent.
    pub fn optional_input(&self, index: usize) -> Option<&Tensor> {
        self.inputs.get(index)?.as_ref()
    }

    /// Returns the elements of an input as 64-bit floats.
    ///
    /// # Errors
    /// Fails if the input is absent or is not numeric.
    pub fn input_floats(&self, index: usize) -> Result<Vec<f64>, KernelError> {
        value::to_floats(self.input(index)?)
    }

    /// Returns the elements of an input as 64-bit integers; it cuts off the fractions of floats.
    ///
    /// # Errors
    /// Fails if the input is absent or not numeric, or if an element exceeds 64 bits.
    pub fn input_ints(&self, index: usize) -> Result<Vec<i64>, KernelError> {
        value::to_indices(self.input(index)?)
    }

    /// Returns the elements of an input as 64-bit integers, or `None` if the input is absent.
    ///
    /// # Errors
    /// Fails if the input is present and not numeric, or if an element exceeds 64 bits.
    pub fn optional_input_ints(&self, index: usize) -> Result<Option<Vec<i64>>, KernelError> {
        self.optional_input(index)
            .map(value::to_indices)
            .transpose()
    }

    /// Returns the first element of an input as a float, or `None` if the input is absent.
    ///
    /// # Errors
    /// Fails if the input is present and is not numeric; [`KernelError::Range`] if it has no
    /// element.
    pub fn optional_scalar_float(&self, index: usize) -> Result<Option<f64>, KernelError> {
        let Some(tensor) = self.optional_input(index) else {
            return Ok(None);
        };
        value::to_floats(tensor)?
            .first()
            .copied()
            .map(Some)
            .ok_or(KernelError::Range(index))
    }

    /// Returns the first element of an input as an integer, or `None` if the input is absent.
    ///
    /// # Errors
    /// Fails if the input is present and not numeric; [`KernelError::Range`] if it has no
    /// element.
    pub fn optional_scalar_int(&self, index: usize) -> Result<Option<i64>, KernelError> {
        let Some(values) = self.optional_input_ints(index)? else {
            return Ok(None);
        };
        values
            .first()
            .copied()
            .map(Some)
            .ok_or(KernelError::Range(index))
    }

    /// Returns an integer attribute, or its default.
    pub fn int_attribute(&self, name: &str, default: i64) -> i64 {
        self.node.int(name).unwrap_or(default)
    }

    /// Returns whether an integer attribute is present and not zero.
    pub fn is_flag_set(&self, name: &str) -> bool {
        self.int_attribute(name, 0) != 0
    }

    /// Returns a float attribute, or its default.
    pub fn float_attribute(&self, name: &str, default: f64) -> f64 {
        self.node.float(name).map_or(default, f64::from)
    }

    /// Returns a string attribute, or its default.
    pub fn text_attribute<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.node.string(name).unwrap_or(default)
    }

    /// Returns the integers of an input or else of an attribute, because old versions of some
    /// operators have the attribute, and new ones the input. Returns `None` if the node has
    /// neither, or the attribute is empty.
    ///
    /// # Errors
    /// Fails if the input is present and not numeric, or if an element exceeds 64 bits.
    pub fn int_list_argument(
        &self,
        name: &str,
        input: usize,
    ) -> Result<Option<Vec<i64>>, KernelError> {
        match self.optional_input_ints(input)? {
            Some(list) => Ok(Some(list)),
            None => Ok(self
                .node
                .ints(name)
                .filter(|it| !it.is_empty())
                .map(<[i64]>::to_vec)),
        }
    }

    /// Returns the integers of an input or else of an attribute, as [`Self::int_list_argument`]
    /// does.
    ///
    /// # Errors
    /// Also fails with [`KernelError::Missing`] if the node has neither.
    pub fn required_int_list(&self, name: &str, input: usize) -> Result<Vec<i64>, KernelError> {
        let list = self.int_list_argument(name, input)?;
        list.ok_or(KernelError::Missing(input))
    }

    /// Returns the number of outputs that the node names.
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
