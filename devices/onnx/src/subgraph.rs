//! What is given to a device to run, a model with its weights, and why a device may refuse it.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use souk_memory::{ContentId, DType};
use thiserror::Error;

use crate::{DecodeError, NodeProto, TensorDataError};

/// An ONNX model, and those of its weights that lie outside it.
#[derive(Clone, Debug, Default)]
pub struct Subgraph {
    /// The model's bytes.
    pub model: Bytes,
    /// Values of weights, little-endian in C order, by id: the `location` of an initializer with
    /// external data is `blake3:` and the id.
    pub weights: BTreeMap<ContentId, Bytes>,
}

/// An input or output of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name in the model.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its sizes, if the model states how many there are; `None` for one that may vary.
    pub dims: Option<Vec<Option<usize>>>,
}

/// An operator that a device does not run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("operator {operator} (node {node:?}) is not supported: {reason}")]
pub struct Unsupported {
    /// Operator, with its domain if that is not the standard one.
    pub operator: String,
    /// The node's name, or that of its first output.
    pub node: String,
    /// Why.
    pub reason: UnsupportedReason,
}

/// Why an operator is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnsupportedReason {
    /// The device has no such operator.
    Operator,
    /// Not in this element type.
    DType(DType),
    /// An element type could not be told.
    UnknownDType,
    /// Not in this version of the operator set.
    Version(i64),
    /// Not with this attribute as it is set.
    Attribute(&'static str),
    /// Its integers may leave the range in which the device is exact.
    IntegerRange,
    /// The engine beneath refused it, saying this.
    Engine(String),
}

/// Why a subgraph was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// The bytes are no model.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A node cannot be run.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A weight is not among those given.
    #[error("weight {name:?} ({id}) was not given")]
    WeightMissing {
        /// Its name in the model.
        name: String,
        /// Its id.
        id: ContentId,
    },
    /// A weight is not what the model says.
    #[error("weight {name:?} is not what the model says: {cause}")]
    WeightMismatch {
        /// Its name in the model.
        name: String,
        /// What differs.
        cause: String,
    },
    /// A weight's values cannot be had: their place is no content id.
    #[error("weight {name:?} has its values at {location:?}, which names no content")]
    WeightPlace {
        /// Its name in the model.
        name: String,
        /// The place.
        location: String,
    },
    /// A weight in the model is malformed.
    #[error(transparent)]
    Weight(#[from] TensorDataError),
    /// An input or output is not a tensor of a known element type.
    #[error("{name:?} is not a tensor of a supported element type")]
    Port {
        /// The input or output.
        name: String,
    },
    /// A node uses a value nothing gives.
    #[error("node {node:?} uses {value:?}, which nothing gives")]
    Dangling {
        /// The node.
        node: String,
        /// The value.
        value: String,
    },
    /// The device went away; another one may take the model.
    #[error("{device}: the device was lost while it compiled")]
    DeviceLost {
        /// The device.
        device: String,
    },
    /// The weights do not fit the device's memory; another one may have room.
    #[error("{device}: {bytes} bytes of its memory are wanted for weights, {free} are free")]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes wanted.
        bytes: u64,
        /// Bytes free.
        free: u64,
    },
    /// The engine beneath refused the model as a whole.
    #[error("the {engine} engine refuses the model: {reason}")]
    Engine {
        /// Which engine.
        engine: &'static str,
        /// What it said.
        reason: String,
    },
}

impl Port {
    /// The shape with `?` for sizes that may vary, such as `[?, 3]`.
    #[must_use]
    pub fn shape_text(&self) -> String {
        let Some(dims) = &self.dims else {
            return "any".to_owned();
        };
        let size = |dim: &Option<usize>| dim.map_or("?".to_owned(), |size| size.to_string());
        format!("[{}]", dims.iter().map(size).collect::<Vec<_>>().join(", "))
    }

    /// Whether a tensor of this shape fits.
    #[must_use]
    pub fn accepts(&self, dims: &[usize]) -> bool {
        self.dims.as_ref().is_none_or(|expected| {
            let fits = |(expected, found): (&Option<usize>, &usize)| {
                expected.is_none_or(|expected| expected == *found)
            };
            expected.len() == dims.len() && expected.iter().zip(dims).all(fits)
        })
    }
}

impl Unsupported {
    /// A node that is not supported for `reason`.
    #[must_use]
    pub fn new(node: &NodeProto, reason: UnsupportedReason) -> Self {
        let operator = match node.operator_domain() {
            "" => node.op_type().to_owned(),
            domain => format!("{domain}.{}", node.op_type()),
        };
        Self {
            operator,
            node: node_name(node),
            reason,
        }
    }
}

impl fmt::Display for UnsupportedReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => formatter.write_str("the device has no such operator"),
            Self::DType(dtype) => write!(formatter, "not in {dtype}"),
            Self::UnknownDType => formatter.write_str("its element types cannot be told"),
            Self::Version(version) => write!(formatter, "not in version {version}"),
            Self::Attribute(name) => write!(formatter, "not with its attribute {name}"),
            Self::IntegerRange => formatter.write_str("its integers may exceed 32 bits"),
            Self::Engine(reason) => formatter.write_str(reason),
        }
    }
}

/// The content that the place of an initializer's values names: `blake3:` and an id.
#[must_use]
pub fn weight_id(location: &str) -> Option<ContentId> {
    location.strip_prefix("blake3:")?.parse().ok()
}

/// What a node is called: its name, else its first output's.
#[must_use]
pub fn node_name(node: &NodeProto) -> String {
    match node.name() {
        "" => node.output.first().cloned().unwrap_or_default(),
        name => name.to_owned(),
    }
}
