//! Represents a model that is ready for planning: its live nodes in topological order, with the
//! types of all values that can be inferred.
//!
//! A [`Graph`] is bound to the shapes of one job's inputs. So its costs are numbers and its cuts
//! have types. This loses nothing, because a job knows its inputs before its planning.

mod bind;
mod body_rounds;
mod captures;
mod constant_nodes;
pub mod cost;
pub mod cut;
mod device_requirement;
mod error;
mod extents;
mod external;
mod fold;
mod indices;
mod inline;
mod onnx_import;
mod order;
pub mod shape;
mod states;
mod upgrade;

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{ContentId, DType, Shape, Tensor};
use souk_onnx::liveness::{Liveness, StepValues};
use souk_onnx::{DataType, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto};

pub use bind::{Bindings, InputType};
use cost::Cost;
pub use device_requirement::DeviceRequirement;
pub use error::ImportError;
pub use extents::value_extents;
pub(crate) use external::CONTENT_SCHEME;
pub use external::FilePart;
pub use inline::FunctionError;
pub use order::topological_order;
use shape::Fact;
pub use souk_onnx::expansion::{Label, Meanings, PreparationError, Texts};

/// The index of a node in [`Graph::nodes`]. The order is topological, so a node's inputs come from
/// lower ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// The index of a value in [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub usize);

/// A model bound to input shapes: validated, ordered, inferred and costed.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) ir_version: i64,
    pub(crate) opsets: Vec<OperatorSetIdProto>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) values: Vec<Value>,
    pub(crate) inputs: Vec<ValueId>,
    pub(crate) outputs: Vec<ValueId>,
    pub(crate) dropped_nodes: usize,
    /// Extents in the declarations of parts, for values whose extents are less certain there than
    /// here.
    open: BTreeMap<ValueId, shape::Dims>,
    /// Factor for the work of nodes whose work is unknown in advance.
    turns: f64,
}

/// One operation of a graph.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operator with its attributes. Its name is unique and never empty.
    pub proto: NodeProto,
    /// Values that it reads, in the operator's order; `None` for an omitted optional input.
    pub inputs: Vec<Option<ValueId>>,
    /// Values of this graph that the bodies of `If`, `Loop` and `Scan` read in addition to the
    /// inputs.
    pub captures: Vec<ValueId>,
    /// Values that it produces; `None` for an omitted optional output.
    pub outputs: Vec<Option<ValueId>>,
    /// Its arithmetic work and memory traffic.
    pub cost: Cost,
}

/// A tensor (rarely a sequence or an optional) between nodes.
#[derive(Clone, Debug)]
pub struct Value {
    /// Name of the value in the model.
    pub name: String,
    /// The known element type, extents and, for small tensors, contents.
    pub fact: Fact,
    /// The origin of the value.
    pub source: Source,
    /// Nodes that read it, ascending, each once.
    pub readers: Vec<NodeId>,
    /// Whether the element type and extents follow from the inputs. If not, they can be those that
    /// the model declares, which can be wrong.
    pub is_inferred: bool,
    /// The type in the model's declaration, for values that are not tensors.
    pub(crate) stated: Option<ValueInfoProto>,
}

/// The origin of a value.
#[derive(Clone, Debug)]
pub enum Source {
    /// An input of the job.
    Input,
    /// A constant of the model.
    Constant(Box<Weight>),
    /// The output of a node.
    Node(NodeId),
}

/// A constant: its declaration, and its bytes by content id.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Name, extents and element type, and also the values if the type has no fixed width.
    pub proto: TensorProto,
    /// Content id of the bytes, if there are at least [`Weight::EXTERNAL_BYTES_MIN`] of them.
    pub id: Option<ContentId>,
    /// Little-endian values in row-major order; `None` if they are in a file, or only their id is
    /// known.
    pub bytes: Option<Bytes>,
    /// The file with the values, if they are too large to hold during planning.
    pub file: Option<FilePart>,
    /// Length of the values in bytes.
    pub byte_length: u64,
}

impl Weight {
    /// Constants of at least this many bytes travel by content id, shorter ones inside the graph.
    pub const EXTERNAL_BYTES_MIN: u64 = 1024;

    /// Returns the values, or `None` if only their id is known or their file has changed.
    #[must_use]
    pub fn read(&self) -> Option<Bytes> {
        let from_file = || self.file.as_ref()?.read().ok();
        self.bytes.clone().or_else(from_file)
    }

    /// Returns the constant as a tensor, or `None` if its values are not available.
    #[must_use]
    pub fn to_tensor(&self) -> Option<Tensor> {
        let dtype = DType::from_onnx_code(self.proto.data_type()).ok()?;
        let dims = self.proto.dims.iter().map(|&dim| usize::try_from(dim));
        let dims: Vec<usize> = dims.collect::<Result<_, _>>().ok()?;
        Tensor::new(dtype, Shape::new(dims).ok()?, self.read()?).ok()
    }
}

/// Facts of a model for a person who is about to run it.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Name of the graph.
    pub name: String,
    /// Version of the standard operator set.
    pub opset: Option<i64>,
    /// Number of live nodes.
    pub nodes: usize,
    /// Number of dropped nodes: no output needs them, or their values are known in advance.
    pub dropped_nodes: usize,
    /// Number of values that nodes produce.
    pub values: usize,
    /// Number of values whose extents could not be inferred.
    pub unknown_values: usize,
    /// Number of constants in use.
    pub weights: usize,
    /// Total bytes of these constants.
    pub weight_bytes: u64,
    /// Floating-point (or integer) operations of one run.
    pub flops: u64,
    /// Bytes read by all nodes, weights included.
    pub bytes_read: u64,
    /// Bytes written by all nodes.
    pub bytes_written: u64,
    /// Maximum bytes of activations that exist at once when nodes run in order.
    pub activation_bytes_peak: u64,
    /// Maximum bytes of memory of a run: the weights, each once, and those activations. A plan
    /// compares devices with it.
    pub memory_bytes_peak: u64,
    /// Operators in use with their counts, by name.
    pub operators: Vec<(String, usize)>,
}

impl Graph {
    /// Returns the name of the model's graph.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version of the standard operator set.
    #[must_use]
    pub fn standard_opset(&self) -> Option<i64> {
        let mut sets = self.opsets.iter();
        let standard = sets.find(|set| matches!(set.domain(), "" | "ai.onnx"))?;
        Some(standard.version())
    }

    /// Returns the nodes in topological order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns all values: inputs, constants and node outputs.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Returns the inputs of the job, in the model's order.
    #[must_use]
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// Returns the outputs of the job, in the model's order.
    #[must_use]
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// Returns the node with an id, which must be one of this graph.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// Returns the value with an id.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// Returns the id of the value called `name`.
    #[must_use]
    pub fn find_value(&self, name: &str) -> Option<ValueId> {
        let found = self.values.iter().position(|value| value.name == name);
        found.map(ValueId)
    }

    /// Returns counts, work and memory for people.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut operators = BTreeMap::new();
        for node in &self.nodes {
            *operators
                .entry(node.proto.op_type().to_owned())
                .or_insert(0) += 1;
        }
        let made = || {
            self.values
                .iter()
                .filter(|value| matches!(value.source, Source::Node(_)))
        };
        let weights = || self.values.iter().filter_map(Value::weight);
        let total = |field: fn(&Cost) -> u64| {
            let costs = self.nodes.iter().map(|node| field(&node.cost));
            costs.fold(0, u64::saturating_add)
        };
        let weight_bytes = weights().map(|weight| weight.byte_length).sum();
        let activation_bytes_peak = self.activation_bytes().into_iter().max().unwrap_or(0);
        Summary {
            name: self.name.clone(),
            opset: self.standard_opset(),
            nodes: self.nodes.len(),
            dropped_nodes: self.dropped_nodes,
            values: made().count(),
            unknown_values: made()
                .filter(|value| value.fact.byte_length().is_none())
                .count(),
            weights: weights().count(),
            weight_bytes,
            flops: total(|cost| cost.flops),
            bytes_read: total(|cost| cost.bytes_read),
            bytes_written: total(|cost| cost.bytes_written),
            activation_bytes_peak,
            memory_bytes_peak: activation_bytes_peak.saturating_add(weight_bytes),
            operators: operators.into_iter().collect(),
        }
    }

    /// Returns the bytes of activations that exist while each node runs, in order: its inputs and
    /// outputs, values that later nodes need, and the job's inputs, which the caller must hold
    /// until the end. States do not count, because they change in place. Values of unknown extent
    /// count zero.
    #[must_use]
    pub fn activation_bytes(&self) -> Vec<u64> {
        let step = |node: &Node| StepValues {
            reads: node.input_values().collect(),
            makes: node.outputs.iter().copied().flatten().collect(),
        };
        let states = self.state_values();
        let inputs = || self.inputs.iter().copied();
        let held = inputs().filter(|input| !states.contains(input));
        let kept = held.chain(self.outputs.iter().copied());
        let liveness = Liveness::new(inputs(), self.nodes.iter().map(step), kept);
        liveness.bytes_by_step(|value| self.value(*value).fact.byte_length().unwrap_or(0))
    }
}

impl Node {
    /// Returns the name, which is unique in the graph.
    #[must_use]
    pub fn name(&self) -> &str {
        self.proto.name()
    }

    /// Returns the operator, with its domain in front unless it is the standard one, for example
    /// `com.microsoft.Gelu`.
    #[must_use]
    pub fn operator_name(&self) -> String {
        match self.proto.operator_domain() {
            "" => self.proto.op_type().to_owned(),
            domain => format!("{domain}.{}", self.proto.op_type()),
        }
    }

    /// Returns every value that it reads, including captures. A value that it reads twice appears
    /// twice.
    pub fn input_values(&self) -> impl Iterator<Item = ValueId> {
        let inputs = self.inputs.iter().copied().flatten();
        inputs.chain(self.captures.iter().copied())
    }

    /// Returns every value that it produces.
    pub fn output_values(&self) -> impl Iterator<Item = ValueId> {
        self.outputs.iter().copied().flatten()
    }
}

impl Value {
    /// Returns the node that produces it, if there is one.
    #[must_use]
    pub fn producer(&self) -> Option<NodeId> {
        match self.source {
            Source::Node(node) => Some(node),
            Source::Input | Source::Constant(_) => None,
        }
    }

    /// Returns the constant, if the value is one.
    #[must_use]
    pub fn weight(&self) -> Option<&Weight> {
        match &self.source {
            Source::Constant(weight) => Some(weight),
            _ => None,
        }
    }

    /// Returns whether the value is a constant of the model.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        matches!(self.source, Source::Constant(_))
    }

    /// Returns the element type, if souk can carry it between devices.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        let code = self.fact.elem? as i32;
        DType::from_onnx_code(code).ok()
    }

    /// Returns the extents, if all are known.
    #[must_use]
    pub fn dims(&self) -> Option<Vec<u64>> {
        self.fact.dims.as_ref()?.iter().copied().collect()
    }

    /// Returns whether another device can receive it: it must be a tensor of a known element type
    /// other than string.
    #[must_use]
    pub fn is_portable(&self) -> bool {
        let tensor = self
            .stated
            .as_ref()
            .is_none_or(|stated| stated.tensor_type().is_some());
        tensor && self.fact.elem.is_some_and(|elem| elem != DataType::String)
    }
}
