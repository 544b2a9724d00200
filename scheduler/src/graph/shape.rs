//! Infers the types and extents of operators' outputs from those of their inputs.
//!
//! The rules work on graphs with real input shapes: an extent is a number or unknown, never an
//! expression. They also track small integer contents, because real models compute shapes in the
//! graph (`Shape`, `Gather`, `Concat`, `Reshape`). An operator without a rule yields unknown facts,
//! never an error; an error means that no device can run the node.

mod arithmetic;
mod attention;
mod bodies;
mod classical;
mod contents;
mod convolution;
mod custom;
mod elementwise;
mod gather;
mod generate;
mod layout;
mod matmul;
mod operation;
mod reduce;
mod resize;
mod routed_matmul;
mod sequence;
mod table;
mod work;

use souk_memory::DType;
use souk_onnx::custom::Custom;
use souk_onnx::{CLASSICAL_DOMAIN, DataType, NodeProto, raw_bytes};
use souk_onnx::{routing, sampling};
use thiserror::Error;

use super::Weight;
pub(crate) use bodies::{InferenceBudget, InnerWork, Scope, inner_work as bodies_work};
pub(crate) use operation::Operation;
pub(crate) use work::node_work;

/// Extents of a tensor; `None` for an unknown one.
pub type Dims = Vec<Option<u64>>;

/// The known facts of a value: element type, extents, and contents if they are few.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fact {
    /// Element type.
    pub elem: Option<DataType>,
    /// Extents; `None` if even the rank is unknown.
    pub dims: Option<Dims>,
    /// Contents of a small tensor of integers or booleans.
    pub ints: Option<Vec<i64>>,
    /// Contents of a small tensor of 32-bit floats.
    pub floats: Option<Vec<f32>>,
}

/// The reason why no device can run a node.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ShapeFault {
    /// Two shapes do not broadcast.
    #[error(
        "shapes {left} and {right} do not broadcast",
        left = format_dims(left),
        right = format_dims(right)
    )]
    Broadcast {
        /// Extents of one input.
        left: Dims,
        /// Extents of the other.
        right: Dims,
    },
    /// Two extents differ that the operator sums over.
    #[error(
        "inner extents of {left} and {right} differ",
        left = format_dims(left),
        right = format_dims(right)
    )]
    Inner {
        /// Extents of the left input.
        left: Dims,
        /// Extents of the right input.
        right: Dims,
    },
    /// An input has the wrong rank.
    #[error("input {input} must have {expected} dimensions, it has {found}")]
    Rank {
        /// Index of the input.
        input: usize,
        /// Required rank, or the least of it.
        expected: usize,
        /// Actual rank.
        found: usize,
    },
    /// The axis does not exist.
    #[error("axis {axis} of a value with {rank} dimensions")]
    Axis {
        /// The requested axis.
        axis: i64,
        /// Rank of the value.
        rank: usize,
    },
    /// A reshape would change the number of elements.
    #[error(
        "{from} cannot become {to:?}: the number of elements differs",
        from = format_dims(from)
    )]
    Count {
        /// Extents before the reshape.
        from: Dims,
        /// Requested extents.
        to: Vec<i64>,
    },
    /// The number of channels does not match the weights.
    #[error("{found} channels where the weights want {expected}")]
    Channels {
        /// Number of channels in the weights.
        expected: u64,
        /// Number of channels in the input.
        found: u64,
    },
    /// An extent of the output would be negative.
    #[error("extent {axis} of the output would be {extent}")]
    Negative {
        /// Axis of the output.
        axis: usize,
        /// The extent by the rule, below zero.
        extent: i64,
    },
    /// The node lacks a required input.
    #[error("input {input} is required")]
    Missing {
        /// Index of the input.
        input: usize,
    },
    /// The output has more elements than any memory can hold.
    #[error(
        "an output of shape {dims} has more elements than can be addressed",
        dims = format_dims(dims)
    )]
    TooLarge {
        /// Extents of the output.
        dims: Dims,
    },
}

/// Formats extents for people, for example `[2, ?, 8]`.
#[must_use]
pub fn format_dims(dims: &[Option<u64>]) -> String {
    let texts = dims
        .iter()
        .map(|dim| dim.map_or("?".to_owned(), |extent| extent.to_string()));
    format!("[{}]", texts.collect::<Vec<_>>().join(", "))
}

impl Fact {
    /// Maximum number of elements of a tensor whose contents a fact holds: shapes, axes and
    /// paddings are far smaller.
    pub const CONTENTS_MAX: usize = 64;

    /// Returns the fact of a tensor with unknown contents.
    #[must_use]
    pub fn new_tensor(elem: Option<DataType>, dims: Dims) -> Self {
        Self {
            elem,
            dims: Some(dims),
            ..Self::default()
        }
    }

    /// Returns the number of dimensions, if known.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.dims.as_ref().map(Vec::len)
    }

    /// Returns the number of elements, if known.
    #[must_use]
    pub fn element_count(&self) -> Option<u64> {
        let dims = self.dims.as_ref()?;
        dims.iter()
            .try_fold(1u64, |count, dim| count.checked_mul((*dim)?))
    }

    /// Returns the length of the values in bytes, if known.
    #[must_use]
    pub fn byte_length(&self) -> Option<u64> {
        let dtype = DType::from_onnx_code(self.elem? as i32).ok()?;
        let count = usize::try_from(self.element_count()?).ok()?;
        dtype.byte_length(count).map(|length| length as u64)
    }

    /// Returns whether the element type and all extents are known.
    pub(crate) fn is_whole(&self) -> bool {
        let dims = self.dims.as_ref();
        self.elem.is_some() && dims.is_some_and(|dims| dims.iter().all(Option::is_some))
    }

    /// Returns this fact with its gaps filled from the model's declaration.
    pub(crate) fn filled_by(mut self, stated: Self) -> Self {
        self.elem = self.elem.or(stated.elem);
        match (&mut self.dims, stated.dims) {
            (Some(dims), Some(stated)) if dims.len() == stated.len() => {
                for (dim, stated) in dims.iter_mut().zip(stated) {
                    *dim = dim.or(stated);
                }
            }
            (dims @ None, stated) => *dims = stated,
            _ => {}
        }
        self
    }
}

/// Returns the facts of a node's outputs, one for each output. `outer` holds the facts that the
/// node's bodies read from the graph around them.
pub(crate) fn infer_outputs(
    node: &NodeProto,
    opset: i64,
    inputs: &[Option<&Fact>],
    outer: &Scope,
) -> Result<Vec<Fact>, ShapeFault> {
    let operation = Operation::new(node, opset, inputs);
    let mut facts = if let Some(facts) = bodies::infer_bodies(node, opset, inputs, outer) {
        facts
    } else if node.operator_domain().is_empty() {
        table::infer_by_rule(&operation)?
    } else if node.operator_domain() == CLASSICAL_DOMAIN {
        classical::infer_classical(&operation)
    } else if Custom::from_node(node).is_some() {
        custom::infer_custom(&operation)
    } else if sampling::is_sample(node) {
        vec![infer_sampler(&operation)]
    } else if routing::is_routed(node) {
        routed_matmul::infer_routed(&operation)
    } else {
        Vec::new()
    };
    facts.resize(node.output.len(), Fact::default());
    for fact in &facts {
        check_size(fact)?;
    }
    if let [fact] = facts.as_mut_slice() {
        contents::attach_contents(&operation, fact);
    }
    Ok(facts)
}

/// Returns the fact of a sampler's output: a token for each row of logits.
fn infer_sampler(operation: &Operation<'_>) -> Fact {
    let rows = operation.input_dims(0).and_then(|dims| {
        let (_, rows) = dims.split_last()?;
        Some(rows.to_vec())
    });
    Fact {
        dims: rows,
        ..Fact::new_tensor(Some(DataType::Int64), Vec::new())
    }
}

/// Refuses extents whose product cannot be addressed, so that no later product wraps.
fn check_size(fact: &Fact) -> Result<(), ShapeFault> {
    let Some(dims) = &fact.dims else {
        return Ok(());
    };
    let known = dims.iter().flatten().filter(|extent| **extent > 0);
    let count = known.copied().try_fold(1u64, u64::checked_mul);
    match count {
        Some(count) if count <= i64::MAX as u64 / 16 => Ok(()),
        _ => Err(ShapeFault::TooLarge { dims: dims.clone() }),
    }
}

/// Returns the fact of a constant.
pub(crate) fn constant_fact(weight: &Weight) -> Fact {
    let dims = weight.proto.dims.iter().map(|&dim| u64::try_from(dim).ok());
    let mut fact = Fact::new_tensor(data_type(weight.proto.data_type()), dims.collect());
    let small = fact
        .element_count()
        .is_some_and(|count| count <= Fact::CONTENTS_MAX as u64);
    if let Some(bytes) = weight.bytes.as_deref().filter(|_| small) {
        match fact.elem {
            Some(DataType::Float) => fact.floats = Some(decode_floats(bytes)),
            elem => fact.ints = elem.and_then(|elem| decode_integers(bytes, elem)),
        }
    }
    fact
}

/// Returns the fact of a tensor attribute.
pub(crate) fn tensor_fact(tensor: &souk_onnx::TensorProto) -> Option<Fact> {
    let bytes = raw_bytes(tensor).ok()?;
    let byte_length = bytes.len() as u64;
    Some(constant_fact(&Weight {
        proto: tensor.clone(),
        id: None,
        bytes: Some(bytes),
        file: None,
        byte_length,
    }))
}

fn decode_floats(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn decode_integers(bytes: &[u8], elem: DataType) -> Option<Vec<i64>> {
    let ints = match elem {
        DataType::Int64 => {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().map(|word| i64::from_le_bytes(*word)).collect()
        }
        DataType::Int32 => {
            let (words, _) = bytes.as_chunks::<4>();
            words
                .iter()
                .map(|word| i64::from(i32::from_le_bytes(*word)))
                .collect()
        }
        DataType::Bool | DataType::Uint8 => bytes.iter().map(|&byte| i64::from(byte)).collect(),
        DataType::Int8 => bytes
            .iter()
            .map(|&byte| i64::from(byte.cast_signed()))
            .collect(),
        _ => return None,
    };
    Some(ints)
}

/// Returns the element type of an ONNX code; `None` for 0 and for codes outside the schema.
pub(crate) fn data_type(code: i32) -> Option<DataType> {
    let known = DataType::try_from(code).ok();
    known.filter(|&elem| elem != DataType::Undefined)
}

/// Returns the name of an element type for people.
pub(crate) fn data_type_name(code: i32) -> String {
    match DType::from_onnx_code(code) {
        Ok(dtype) => dtype.name().to_owned(),
        Err(_) if code == DataType::String as i32 => "string".to_owned(),
        Err(_) => format!("element type {code}"),
    }
}

/// Returns the bytes of an element, if that is a whole number.
pub(crate) fn data_type_width(elem: DataType) -> Option<usize> {
    DType::from_onnx_code(elem as i32).ok()?.byte_width()
}
