//! A model ready to be planned: live nodes in topological order, every value typed where it can be.
//!
//! A [`Graph`] is bound to the shapes of one job's inputs. That is what makes its costs numbers and
//! its cuts typed; nothing is lost, since a job knows its inputs before it is planned.

mod bind;
mod captures;
pub mod cost;
pub mod cut;
mod error;
mod extents;
mod external;
mod fixed;
mod fold;
mod import;
mod indices;
mod inline;
mod order;
pub mod shape;
mod states;
mod turns;
mod upgrade;
mod wish;

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{ContentId, DType, Shape, Tensor};
use souk_onnx::liveness::{Liveness, StepValues};
use souk_onnx::{DataType, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto};

pub use bind::{Bindings, InputType};
use cost::Cost;
pub use error::ImportError;
pub use extents::extents;
pub(crate) use external::CONTENT_SCHEME;
pub use external::FilePart;
pub use inline::FunctionError;
pub use order::topological;
use shape::Fact;
pub use souk_onnx::expansion::{Label, Meanings, PreparationError, Texts};
pub use wish::Wish;

/// A node by its place in [`Graph::nodes`]: topological, so a node's inputs come from lower ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// A value by its place in [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub usize);

/// A model bound to input shapes: validated, ordered, inferred, costed.
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
    /// What parts state of sizes, where that is less than is known here.
    open: BTreeMap<ValueId, shape::Dims>,
    /// How many times the work is counted of nodes that do not say beforehand what they do.
    turns: f64,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operator with its attributes. Its name is unique and never empty.
    pub proto: NodeProto,
    /// Values read, in the operator's order; `None` where an optional input is left out.
    pub inputs: Vec<Option<ValueId>>,
    /// Values of this graph that the bodies of `If`, `Loop` and `Scan` read beside the inputs.
    pub captures: Vec<ValueId>,
    /// Values made; `None` where an optional output is not wanted.
    pub outputs: Vec<Option<ValueId>>,
    /// Work and traffic.
    pub cost: Cost,
}

/// A tensor (rarely a sequence or an optional) between nodes.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its name in the model.
    pub name: String,
    /// Element type, extents and, if small, contents: as far as they are known.
    pub fact: Fact,
    /// Where it comes from.
    pub source: Source,
    /// Nodes that read it, ascending, each once.
    pub readers: Vec<NodeId>,
    /// The type the model states, kept for values that are no tensors.
    pub(crate) stated: Option<ValueInfoProto>,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Given with the job.
    Input,
    /// Part of the model.
    Constant(Box<Weight>),
    /// Made by a node.
    Node(NodeId),
}

/// A constant: its declaration, and its bytes by content id.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Name, extents and element type; the values too if the type is one that has no fixed width.
    pub proto: TensorProto,
    /// Name of the bytes, if they are [`Weight::EXTERNAL_BYTES_MIN`] long or longer.
    pub id: Option<ContentId>,
    /// Little-endian values in row-major order; `None` if they are in a file, or only their id is
    /// known.
    pub bytes: Option<Bytes>,
    /// The file that has them, where they are too many to be held for a plan.
    pub file: Option<FilePart>,
    /// Length of the values in bytes.
    pub byte_length: u64,
}

impl Weight {
    /// Constants of this many bytes or more travel by content id, shorter ones inside the graph.
    pub const EXTERNAL_BYTES_MIN: u64 = 1024;

    /// The values; `None` if only their id is known, or if their file is not what it was.
    #[must_use]
    pub fn read(&self) -> Option<Bytes> {
        let from_file = || self.file.as_ref()?.read().ok();
        self.bytes.clone().or_else(from_file)
    }

    /// The constant as a tensor; `None` where its values cannot be had.
    #[must_use]
    pub fn tensor(&self) -> Option<Tensor> {
        let dtype = DType::from_onnx_code(self.proto.data_type()).ok()?;
        let dims = self.proto.dims.iter().map(|&dim| usize::try_from(dim));
        let dims: Vec<usize> = dims.collect::<Result<_, _>>().ok()?;
        Tensor::new(dtype, Shape::new(dims).ok()?, self.read()?).ok()
    }
}

/// What a person wants to know of a model before running it.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Name of the graph.
    pub name: String,
    /// Version of the standard operator set.
    pub opset: Option<i64>,
    /// Live nodes.
    pub nodes: usize,
    /// Nodes dropped because no output needs them or their values were known beforehand.
    pub dropped_nodes: usize,
    /// Values made by nodes.
    pub values: usize,
    /// Values whose extents could not be inferred.
    pub unknown_values: usize,
    /// Constants in use.
    pub weights: usize,
    /// Their bytes.
    pub weight_bytes: u64,
    /// Floating-point (or integer) operations of one run.
    pub flops: u64,
    /// Bytes read by all nodes, weights included.
    pub bytes_read: u64,
    /// Bytes written by all nodes.
    pub bytes_written: u64,
    /// Most bytes of activations alive at once when nodes run in order.
    pub activation_bytes_peak: u64,
    /// The most memory that a run takes: the weights, each once, and those activations. A plan
    /// holds devices to it.
    pub memory_bytes_peak: u64,
    /// Operators in use with their counts, by name.
    pub operators: Vec<(String, usize)>,
}

impl Graph {
    /// Name of the model's graph.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Version of the standard operator set.
    #[must_use]
    pub fn opset(&self) -> Option<i64> {
        let mut sets = self.opsets.iter();
        let standard = sets.find(|set| matches!(set.domain(), "" | "ai.onnx"))?;
        Some(standard.version())
    }

    /// Nodes in topological order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All values: inputs, constants and what nodes make.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Inputs of the job, in the model's order.
    #[must_use]
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// Outputs of the job, in the model's order.
    #[must_use]
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// A value.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// The value called `name`.
    #[must_use]
    pub fn find_value(&self, name: &str) -> Option<ValueId> {
        let found = self.values.iter().position(|value| value.name == name);
        found.map(ValueId)
    }

    /// Counts, work and memory for people.
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
            opset: self.opset(),
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

    /// Bytes of activations that exist while each node runs, in order: its inputs and outputs, what
    /// later nodes still need, and what the run was given, which its caller holds until it ends.
    /// States are no part of that: they change in place. Values of unknown extent count nothing.
    #[must_use]
    pub fn activation_bytes(&self) -> Vec<u64> {
        let step = |node: &Node| StepValues {
            reads: node.reads().collect(),
            makes: node.outputs.iter().copied().flatten().collect(),
        };
        let states = self.states();
        let inputs = || self.inputs.iter().copied();
        let held = inputs().filter(|input| !states.contains(input));
        let kept = held.chain(self.outputs.iter().copied());
        let liveness = Liveness::new(inputs(), self.nodes.iter().map(step), kept);
        liveness.bytes_by_step(|value| self.value(*value).fact.byte_length().unwrap_or(0))
    }
}

impl Node {
    /// Name, unique in the graph.
    #[must_use]
    pub fn name(&self) -> &str {
        self.proto.name()
    }

    /// Operator, with its domain in front unless it is the standard one: `com.microsoft.Gelu`.
    #[must_use]
    pub fn operator(&self) -> String {
        match self.proto.operator_domain() {
            "" => self.proto.op_type().to_owned(),
            domain => format!("{domain}.{}", self.proto.op_type()),
        }
    }

    /// Every value it reads, captures included; a value read twice comes twice.
    pub fn reads(&self) -> impl Iterator<Item = ValueId> {
        let inputs = self.inputs.iter().copied().flatten();
        inputs.chain(self.captures.iter().copied())
    }

    /// Every value it makes.
    pub fn makes(&self) -> impl Iterator<Item = ValueId> {
        self.outputs.iter().copied().flatten()
    }
}

impl Value {
    /// The node that makes it, if one does.
    #[must_use]
    pub fn producer(&self) -> Option<NodeId> {
        match self.source {
            Source::Node(node) => Some(node),
            Source::Input | Source::Constant(_) => None,
        }
    }

    /// The constant it is, if it is one.
    #[must_use]
    pub fn weight(&self) -> Option<&Weight> {
        match &self.source {
            Source::Constant(weight) => Some(weight),
            _ => None,
        }
    }

    /// Whether it is part of the model.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        matches!(self.source, Source::Constant(_))
    }

    /// Element type, if it is one souk carries between devices.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        let code = self.fact.elem? as i32;
        DType::from_onnx_code(code).ok()
    }

    /// Extents, if all are known.
    #[must_use]
    pub fn dims(&self) -> Option<Vec<u64>> {
        self.fact.dims.as_ref()?.iter().copied().collect()
    }

    /// Whether it can be sent to another device: a tensor of known element type that is no string.
    #[must_use]
    pub fn is_portable(&self) -> bool {
        let tensor = self
            .stated
            .as_ref()
            .is_none_or(|stated| stated.tensor_type().is_some());
        tensor && self.fact.elem.is_some_and(|elem| elem != DataType::String)
    }
}
