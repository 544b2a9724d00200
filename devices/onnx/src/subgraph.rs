//! Defines [`Subgraph`], the unit that a device compiles and runs: an ONNX model with its weights.
//! Also defines the reasons why a device can refuse one.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use souk_memory::{ContentId, DType};
use thiserror::Error;

use crate::{
    AttributeProto, DecodeError, GraphProto, ModelProto, NodeProto, SparseTensorProto,
    TensorDataError, TensorProto, decode_model, external_location,
};

/// An ONNX model and its external weights.
#[derive(Clone, Debug, Default)]
pub struct Subgraph {
    /// Bytes of the model.
    pub model: Bytes,
    /// Values of weights, little-endian in C order, by id. They must include each that the model
    /// refers to: the `location` of an initializer with external data is `blake3:` and the id.
    pub weights: BTreeMap<ContentId, Bytes>,
}

/// An input or output of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name in the model.
    pub name: String,
    /// Element type of the tensor.
    pub dtype: DType,
    /// Sizes, if the model states their number; `None` for one that may vary.
    pub dims: Option<Vec<Option<usize>>>,
}

/// An operator that a device does not support.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("operator {operator} (node {node:?}) is not supported: {reason}")]
pub struct Unsupported {
    /// Operator, with its domain unless that is the standard one.
    pub operator: String,
    /// Name of the node, or of its first output.
    pub node: String,
    /// Reason for the refusal.
    pub reason: UnsupportedReason,
}

/// Reasons why an operator is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnsupportedReason {
    /// The device does not have this operator.
    Operator,
    /// The device does not have it in this element type.
    DType(DType),
    /// An element type is unknown.
    UnknownDType,
    /// The device does not have it in this version of the operator set.
    Version(i64),
    /// The device does not support the value of this attribute.
    Attribute(&'static str),
    /// Its integers may exceed the range in which the device is exact.
    IntegerRange,
    /// The device promises the same bits as every other machine, and does not for this operator.
    Inexact,
    /// The engine refused it with this message.
    Engine(String),
}

/// Reasons why a subgraph did not compile.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// The bytes are not a model.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The device does not support a node.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The caller did not pass a weight.
    #[error("weight {name:?} ({id}) is missing")]
    WeightMissing {
        /// Name of the weight in the model.
        name: String,
        /// Content id of the weight.
        id: ContentId,
    },
    /// A weight contradicts the model.
    #[error("weight {name:?} differs from its declaration in the model: {cause}")]
    WeightMismatch {
        /// Name of the weight in the model.
        name: String,
        /// Description of the difference.
        cause: String,
    },
    /// The location of a weight's values is not a content id.
    #[error("weight {name:?} has its values at {location:?}, which is not a content id")]
    WeightPlace {
        /// Name of the weight in the model.
        name: String,
        /// The model's `location` entry.
        location: String,
    },
    /// A weight in the model is malformed.
    #[error(transparent)]
    Weight(#[from] TensorDataError),
    /// An input or output is not a tensor of a known element type.
    #[error("{name:?} is not a tensor of a supported element type")]
    Port {
        /// Name of the input or output.
        name: String,
    },
    /// A node reads a value that does not exist.
    #[error("node {node:?} uses {value:?}, which nothing produces")]
    Dangling {
        /// Name of the node.
        node: String,
        /// Name of the value.
        value: String,
    },
    /// The device was lost; another device may accept the model.
    #[error("{device}: the device was lost while it compiled")]
    DeviceLost {
        /// Name of the device.
        device: String,
    },
    /// The weights do not fit the device's memory; another device can have room.
    #[error("{device}: {bytes} bytes of its memory are needed for weights, {free} are free")]
    OutOfMemory {
        /// Name of the device.
        device: String,
        /// Bytes that the weights need.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The engine refused the model as a whole.
    #[error("the {engine} engine refuses the model: {reason}")]
    Engine {
        /// Name of the engine.
        engine: &'static str,
        /// The engine's message.
        reason: String,
    },
}

impl Subgraph {
    /// Decodes the model. Only initializers of its graph can have external values, and must refer
    /// to them by content id, because an engine would look for any other location among this
    /// machine's files.
    ///
    /// # Errors
    /// [`CompileError::Decode`], or [`CompileError::WeightPlace`] for values at other locations.
    pub fn decode_model(&self) -> Result<ModelProto, CompileError> {
        let model = decode_model(self.model.clone())?;
        if let Some(graph) = &model.graph {
            let named = |tensor: &&TensorProto| match external_location(tensor) {
                Some(place) => weight_id(place).is_none(),
                None => false,
            };
            none_outside(graph.initializer.iter().filter(named))?;
            none_outside(graph.sparse_initializer.iter().flat_map(component_tensors))?;
            nodes_closed(&graph.node)?;
        }
        for function in &model.functions {
            nodes_closed(&function.node)?;
            attributes_closed(&function.attribute_proto)?;
        }
        for training in &model.training_info {
            let graphs = training.initialization.iter().chain(&training.algorithm);
            graphs.into_iter().try_for_each(graph_closed)?;
        }
        Ok(model)
    }
}

fn graph_closed(graph: &GraphProto) -> Result<(), CompileError> {
    none_outside(&graph.initializer)?;
    none_outside(graph.sparse_initializer.iter().flat_map(component_tensors))?;
    nodes_closed(&graph.node)
}

fn nodes_closed(nodes: &[NodeProto]) -> Result<(), CompileError> {
    nodes
        .iter()
        .try_for_each(|node| attributes_closed(&node.attribute))
}

fn attributes_closed(attributes: &[AttributeProto]) -> Result<(), CompileError> {
    attributes.iter().try_for_each(|attribute| {
        none_outside(attribute.t.iter().chain(&attribute.tensors))?;
        let sparse = attribute
            .sparse_tensor
            .as_deref()
            .into_iter()
            .chain(&attribute.sparse_tensors);
        none_outside(sparse.flat_map(component_tensors))?;
        let mut graphs = attribute.g.iter().chain(&attribute.graphs);
        graphs.try_for_each(graph_closed)
    })
}

/// Returns the two tensors of a sparse one.
fn component_tensors(sparse: &SparseTensorProto) -> impl Iterator<Item = &TensorProto> {
    sparse.values.iter().chain(&sparse.indices)
}

fn none_outside<'a>(
    tensors: impl IntoIterator<Item = &'a TensorProto>,
) -> Result<(), CompileError> {
    let outside = |tensor: &TensorProto| {
        external_location(tensor).is_some() || !tensor.external_data.is_empty()
    };
    match tensors.into_iter().find(|tensor| outside(tensor)) {
        None => Ok(()),
        Some(tensor) => Err(CompileError::WeightPlace {
            name: tensor.name().to_owned(),
            location: tensor.external_entry("location").unwrap_or("").to_owned(),
        }),
    }
}

impl Port {
    /// Returns the shape with `?` for sizes that may vary, such as `[?, 3]`.
    #[must_use]
    pub fn shape_text(&self) -> String {
        let Some(dims) = &self.dims else {
            return "any".to_owned();
        };
        let size = |dim: &Option<usize>| dim.map_or("?".to_owned(), |size| size.to_string());
        format!("[{}]", dims.iter().map(size).collect::<Vec<_>>().join(", "))
    }

    /// Returns whether a tensor of this shape fits.
    #[must_use]
    pub fn accepts_dims(&self, dims: &[usize]) -> bool {
        self.dims.as_ref().is_none_or(|expected| {
            let fits = |(expected, found): (&Option<usize>, &usize)| {
                expected.is_none_or(|expected| expected == *found)
            };
            expected.len() == dims.len() && expected.iter().zip(dims).all(fits)
        })
    }
}

impl Unsupported {
    /// Creates the refusal of a node for `reason`.
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
            Self::Inexact => formatter.write_str("it is none of the operators of exact-1"),
            Self::Engine(reason) => formatter.write_str(reason),
        }
    }
}

/// Returns the content id in the location of an initializer's values: `blake3:` and an id.
#[must_use]
pub fn weight_id(location: &str) -> Option<ContentId> {
    location.strip_prefix("blake3:")?.parse().ok()
}

/// Returns the name of a node, or of its first output if it has none.
#[must_use]
pub fn node_name(node: &NodeProto) -> String {
    match node.name() {
        "" => node.output.first().cloned().unwrap_or_default(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLocation, FunctionProto, StringStringEntryProto, encode_model};

    /// A tensor whose values are said to be in a file of whoever opens it.
    fn from_file(location: &str) -> TensorProto {
        TensorProto {
            name: Some("w".to_owned()),
            data_location: Some(DataLocation::External as i32),
            external_data: vec![StringStringEntryProto::new("location", location.to_owned())],
            ..TensorProto::default()
        }
    }

    fn holding(tensor: TensorProto) -> AttributeProto {
        AttributeProto {
            name: Some("value".to_owned()),
            t: Some(tensor),
            ..AttributeProto::default()
        }
    }

    fn constant(tensor: TensorProto) -> NodeProto {
        NodeProto {
            attribute: vec![holding(tensor)],
            ..NodeProto::for_operator("Constant", &[], "y")
        }
    }

    fn decoded(graph: GraphProto, functions: Vec<FunctionProto>) -> Result<(), CompileError> {
        let model = ModelProto {
            ir_version: Some(8),
            graph: Some(graph),
            functions,
            ..ModelProto::default()
        };
        let subgraph = Subgraph {
            model: encode_model(&model),
            ..Subgraph::default()
        };
        subgraph.decode_model().map(drop)
    }

    #[test]
    fn a_model_names_no_file_wherever_it_hides_it() {
        let file = || from_file("../../home/provider/key");
        let body = |graph: GraphProto| GraphProto {
            node: vec![NodeProto {
                attribute: vec![AttributeProto {
                    g: Some(graph),
                    ..AttributeProto::default()
                }],
                ..NodeProto::for_operator("If", &["c"], "y")
            }],
            ..GraphProto::default()
        };
        let with_node = |node: NodeProto| GraphProto {
            node: vec![node],
            ..GraphProto::default()
        };
        let with_initializer = |tensor: TensorProto| GraphProto {
            initializer: vec![tensor],
            ..GraphProto::default()
        };
        let sparse = SparseTensorProto {
            values: Some(file()),
            ..SparseTensorProto::default()
        };
        let hidden = [
            with_initializer(file()),
            with_node(constant(file())),
            body(with_initializer(file())),
            body(with_node(constant(file()))),
            GraphProto {
                sparse_initializer: vec![sparse],
                ..GraphProto::default()
            },
        ];
        for graph in hidden {
            let refused = decoded(graph.clone(), Vec::new()).unwrap_err();
            assert!(
                matches!(refused, CompileError::WeightPlace { .. }),
                "{graph:?}: {refused}"
            );
        }
        let function = FunctionProto {
            node: vec![constant(file())],
            ..FunctionProto::default()
        };
        assert!(decoded(GraphProto::default(), vec![function]).is_err());
    }

    #[test]
    fn values_are_named_by_content_in_the_graphs_own_initializers_alone() {
        let id = ContentId::for_content(b"values");
        let content = || from_file(&format!("blake3:{id}"));
        let graph = GraphProto {
            initializer: vec![content()],
            ..GraphProto::default()
        };
        assert_eq!(decoded(graph, Vec::new()), Ok(()));
        let graph = GraphProto {
            node: vec![constant(content())],
            ..GraphProto::default()
        };
        assert!(decoded(graph, Vec::new()).is_err());
    }
}
