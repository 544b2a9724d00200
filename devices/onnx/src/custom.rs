//! Reads nodes of the domain `ai.souk`, which are a buyer's own operators: the kernel, that is the
//! code of the operator, comes with the graph.
//!
//! The kernel is the first input, which must be an initializer of bytes, so it is content like any
//! weight: identified by its hash, and sent once. The node's attributes must state its outputs'
//! types and sizes, so that the planner can plan a graph without running it. docs/kernels.md has
//! the whole contract.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use thiserror::Error;

use crate::NodeProto;

/// The domain of these operators.
pub const DOMAIN: &str = "ai.souk";

/// The language of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Custom {
    /// A WebAssembly module, operator `Wasm`.
    Wasm,
    /// A compute shader in WGSL, operator `Wgsl`.
    Wgsl,
}

/// A size of an output, as its node states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A number.
    Fixed(u64),
    /// The size of an axis of one of the tensors that the kernel reads, both counted from 0.
    Of {
        /// Index of the tensor; the kernel itself does not count.
        tensor: usize,
        /// Index of the axis.
        axis: usize,
    },
}

/// Reasons why a node has no kernel that souk can run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CustomError {
    /// The kernel is not an initializer of bytes.
    #[error("its first input must be the kernel: an initializer of uint8")]
    Source,
    /// The node's output types are missing or unknown.
    #[error("its attribute output_types must have an ONNX element type for each of its outputs")]
    Types,
    /// The node has not as many shapes as outputs.
    #[error("its attribute output_shapes has {found} shapes for {expected} outputs")]
    Shapes {
        /// Number of shapes.
        found: usize,
        /// Number of outputs.
        expected: usize,
    },
    /// A text does not denote a size.
    #[error("{text:?} in its attribute output_shapes is not a size such as 16 or i0.1")]
    Size {
        /// What stands in place of a size.
        text: String,
    },
    /// A size refers to an axis that does not exist.
    #[error(
        "its attribute output_shapes names axis {axis} of tensor {tensor}, which does not exist"
    )]
    Axis {
        /// Index of the tensor.
        tensor: usize,
        /// Index of the axis.
        axis: usize,
    },
}

impl Custom {
    /// Returns the language of a node's kernel, if it has one.
    #[must_use]
    pub fn from_node(node: &NodeProto) -> Option<Self> {
        match (node.operator_domain(), node.op_type()) {
            (DOMAIN, "Wasm") => Some(Self::Wasm),
            (DOMAIN, "Wgsl") => Some(Self::Wgsl),
            _ => None,
        }
    }

    /// Returns the language's name in a provider's limits.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Wgsl => "wgsl",
        }
    }
}

/// Returns the types of a node's outputs, one for each.
///
/// # Errors
/// [`CustomError::Types`] if the attribute does not state them.
pub fn output_types(node: &NodeProto) -> Result<Vec<DType>, CustomError> {
    let codes = node.ints("output_types").unwrap_or_default();
    let dtype = |code: &i64| DType::from_onnx_code(i32::try_from(*code).ok()?).ok();
    let dtypes: Option<Vec<DType>> = codes.iter().map(dtype).collect();
    dtypes
        .filter(|dtypes| dtypes.len() == node.output.len())
        .ok_or(CustomError::Types)
}

/// Returns the shapes of a node's outputs, one for each, if the node states them.
///
/// # Errors
/// [`CustomError::Shapes`] or [`CustomError::Size`].
pub fn output_shapes(node: &NodeProto) -> Result<Option<Vec<Vec<Size>>>, CustomError> {
    let Some(attribute) = node.attribute("output_shapes") else {
        return Ok(None);
    };
    let (found, expected) = (attribute.strings.len(), node.output.len());
    if found != expected {
        return Err(CustomError::Shapes { found, expected });
    }
    let shapes = attribute.strings.iter().map(|text| {
        let text = String::from_utf8_lossy(text);
        let sizes = text.split(',').map(str::trim).filter(|it| !it.is_empty());
        sizes.map(parse_size).collect()
    });
    shapes.collect::<Result<_, _>>().map(Some)
}

fn parse_size(text: &str) -> Result<Size, CustomError> {
    let read = || match text.strip_prefix('i') {
        None => text.parse().ok().map(Size::Fixed),
        Some(place) => {
            let (tensor, axis) = place.split_once('.')?;
            let (tensor, axis) = (tensor.parse().ok()?, axis.parse().ok()?);
            Some(Size::Of { tensor, axis })
        }
    };
    let text = || text.to_owned();
    read().ok_or_else(|| CustomError::Size { text: text() })
}

/// Returns the shapes of a node's outputs for input tensors of these shapes, if the node states
/// them. `given` must not include the kernel.
///
/// # Errors
/// [`CustomError`] if the stated shapes do not fit the node or its inputs.
pub fn output_dims(
    node: &NodeProto,
    given: &[&[usize]],
) -> Result<Option<Vec<Vec<usize>>>, CustomError> {
    let Some(shapes) = output_shapes(node)? else {
        return Ok(None);
    };
    let known = |size: Size| match size {
        Size::Fixed(size) => Ok(usize::try_from(size).unwrap_or(usize::MAX)),
        Size::Of { tensor, axis } => {
            let found = given.get(tensor).and_then(|dims| dims.get(axis));
            found.copied().ok_or(CustomError::Axis { tensor, axis })
        }
    };
    let dims = shapes
        .into_iter()
        .map(|sizes| sizes.into_iter().map(known).collect());
    dims.collect::<Result<_, _>>().map(Some)
}

/// Returns the kernel of a node: its first input, from among the weights.
///
/// # Errors
/// [`CustomError::Source`] if there is no such weight of bytes.
pub fn source<'a>(
    node: &NodeProto,
    weights: &'a BTreeMap<String, Tensor>,
) -> Result<&'a Tensor, CustomError> {
    let weight = node.input_name(0).and_then(|name| weights.get(name));
    weight
        .filter(|weight| weight.dtype() == DType::U8)
        .ok_or(CustomError::Source)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::AttributeProto;

    fn node(shapes: &[&'static str]) -> NodeProto {
        let strings = shapes.iter().map(|it| Bytes::from_static(it.as_bytes()));
        NodeProto {
            op_type: Some("Wasm".to_owned()),
            domain: Some(DOMAIN.to_owned()),
            output: shapes.iter().map(ToString::to_string).collect(),
            attribute: vec![AttributeProto {
                name: Some("output_shapes".to_owned()),
                strings: strings.collect(),
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        }
    }

    #[test]
    fn sizes_are_numbers_or_those_of_inputs() {
        let given: [&[usize]; 2] = [&[2, 3], &[7]];
        let dims = output_dims(&node(&["i0.1, 4", "", "i1.0"]), &given).unwrap();
        assert_eq!(dims, Some(vec![vec![3, 4], vec![], vec![7]]));
    }

    #[test]
    fn what_is_no_size_is_refused_by_its_text() {
        for text in ["-1", "i", "i0", "i0.x", "x.0", "1.5"] {
            let refused = output_dims(&node(&[text]), &[&[1]]).unwrap_err();
            assert!(refused.to_string().contains(text), "{refused}");
        }
        let (tensor, axis) = (0, 1);
        assert_eq!(
            output_dims(&node(&["i0.1"]), &[&[1]]),
            Err(CustomError::Axis { tensor, axis })
        );
    }
}
