//! Finds the segments of a graph that devices can share: an operator, and the operators after it
//! that can be split in the same way.

use souk_memory::DType;
use souk_onnx::NodeProto;

use crate::graph::cost::OperatorClass;
use crate::graph::{Graph, Node, NodeId, Value, ValueId};

/// Operators on each element separately.
const UNARY: [&str; 20] = [
    "Abs",
    "Ceil",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Log",
    "Neg",
    "Relu",
    "Selu",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tanh",
];
/// Operators on pairs of elements.
const BINARY: [&str; 5] = ["Add", "Div", "Mul", "Pow", "Sub"];
/// Operators on each image of a batch, whose other inputs are weights.
const IMAGES: [&str; 6] = [
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "MaxPool",
];

/// The way in which devices cut a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Along its rows: the first `lead` extents of its input and output, taken as one.
    Rows {
        /// Number of these extents.
        lead: usize,
    },
    /// Along the output channels: each part reads the whole input and its part of the weights.
    Channels,
}

/// An operator that devices can split, with the operators after it that split in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its nodes. Each node but the first reads the output of the node before it.
    pub nodes: Vec<NodeId>,
    /// The input that is not a weight.
    pub input: ValueId,
    /// The output of its last node.
    pub output: ValueId,
    /// The way to cut it.
    pub cut: Cut,
    /// Number of rows or output channels.
    pub units: usize,
    /// The axis of the output along which the parts are joined.
    pub axis: usize,
}

/// Returns every segment of a graph, in order. For each way to cut, a node is in one segment at
/// most.
#[must_use]
pub fn find_segments(graph: &Graph) -> Vec<Segment> {
    let ids = || (0..graph.nodes().len()).map(NodeId);
    let mut found: Vec<Segment> = Vec::new();
    for id in ids() {
        let inside = |segment: &Segment| segment.nodes.contains(&id);
        if !found.iter().any(inside) {
            found.extend(by_rows(graph, id));
        }
        found.extend(by_channels(graph, id));
    }
    found
}

impl Segment {
    /// Returns the extents of a part with `units` units. `dims` must be those of the input or
    /// output for a cut by rows, and of the output for a cut by channels.
    #[must_use]
    pub fn part_dims(&self, dims: &[usize], units: usize) -> Vec<usize> {
        match self.cut {
            Cut::Rows { lead } => {
                let ones = std::iter::repeat_n(1, lead - 1);
                ones.chain([units])
                    .chain(dims[lead..].iter().copied())
                    .collect()
            }
            Cut::Channels => {
                let mut dims = dims.to_vec();
                dims[self.axis] = units;
                dims
            }
        }
    }
}

/// Returns the extents of a value, if they are known and its elements are whole bytes.
fn whole_byte_dims(value: &Value) -> Option<Vec<usize>> {
    let dtype = value.dtype()?;
    let cut = dtype != DType::I4 && dtype.bit_width() % 8 == 0;
    let dims = value.dims().filter(|_| cut)?;
    let whole = dims.into_iter().map(|extent| usize::try_from(extent).ok());
    whole.collect()
}

/// Returns the output of a node, if it has exactly one.
fn only_output(node: &Node) -> Option<ValueId> {
    let mut made = node.output_values();
    made.next().filter(|_| made.next().is_none())
}

/// Returns a node's first input, if it is not a weight and all other inputs are weights.
fn fed_by(graph: &Graph, node: &Node) -> Option<ValueId> {
    let first = node.inputs.first().copied().flatten()?;
    let fed = !graph.value(first).is_constant() && node.captures.is_empty();
    let mut others = node.inputs[1..].iter().copied().flatten();
    let weights = others.all(|id| {
        let weight = graph.value(id).weight();
        weight.is_some() && whole_byte_dims(graph.value(id)).is_some()
    });
    (fed && weights).then_some(first)
}

fn is_standard(proto: &NodeProto) -> bool {
    proto.operator_domain().is_empty()
}

/// Returns the only reader of a value that is not an output of the graph.
fn only_reader(graph: &Graph, value: ValueId) -> Option<NodeId> {
    let wanted = graph.outputs().contains(&value);
    match graph.value(value).readers.as_slice() {
        [only] if !wanted => Some(*only),
        _ => None,
    }
}

/// Returns the input of a product of rows, and the number of extents that count rows.
fn product_input(graph: &Graph, node: &Node) -> Option<(ValueId, usize)> {
    let input = fed_by(graph, node)?;
    let rank = whole_byte_dims(graph.value(input))?.len();
    let weight = node.inputs.get(1).copied().flatten()?;
    let flat = whole_byte_dims(graph.value(weight))?.len() == 2;
    // The addend of a Gemm can differ from row to row; such a node stays whole.
    let added = node.inputs.get(2).copied().flatten();
    let added = added
        .and_then(|id| whole_byte_dims(graph.value(id)))
        .unwrap_or_default();
    let alike = added.len() < 2 || added[0] == 1;
    let plain = match node.proto.op_type() {
        "MatMul" => true,
        "Gemm" => node.proto.int("transA").unwrap_or(0) == 0 && alike,
        _ => false,
    };
    (is_standard(&node.proto) && plain && flat && rank >= 2).then(|| (input, rank - 1))
}

/// Returns the input of a convolution of a batch.
fn convolution_input(graph: &Graph, node: &Node) -> Option<ValueId> {
    let input = fed_by(graph, node)?;
    let rank = whole_byte_dims(graph.value(input))?.len();
    (is_standard(&node.proto) && node.proto.op_type() == "Conv" && rank >= 3).then_some(input)
}

fn by_rows(graph: &Graph, head: NodeId) -> Option<Segment> {
    let node = graph.node(head);
    let (input, lead) = product_input(graph, node)
        .or_else(|| convolution_input(graph, node).map(|input| (input, 1)))?;
    let of_rows = whole_byte_dims(graph.value(input))?;
    let units: usize = of_rows[..lead].iter().product();
    let mut segment = Segment {
        nodes: vec![head],
        input,
        output: only_output(node)?,
        cut: Cut::Rows { lead },
        units,
        axis: 0,
    };
    let rows = |id: ValueId| {
        let dims = whole_byte_dims(graph.value(id))?;
        Some(dims.get(..lead)?.iter().product::<usize>() == units)
    };
    if units < 2 || rows(segment.output) != Some(true) {
        return None;
    }
    // A node that also reads results of other rows ends the segment.
    while let Some(next) = only_reader(graph, segment.output) {
        let node = graph.node(next);
        let Some(made) = only_output(node) else { break };
        let follows = follows_by_rows(graph, node, segment.output, lead);
        if !follows || rows(made) != Some(true) || !same_rank(graph, segment.output, made) {
            break;
        }
        segment.nodes.push(next);
        segment.output = made;
    }
    Some(segment)
}

fn same_rank(graph: &Graph, one: ValueId, other: ValueId) -> bool {
    let rank = |id: ValueId| whole_byte_dims(graph.value(id)).map(|dims| dims.len());
    rank(one).is_some() && rank(one) == rank(other)
}

fn follows_by_rows(graph: &Graph, node: &Node, value: ValueId, lead: usize) -> bool {
    let kind = node.proto.op_type();
    if !is_standard(&node.proto) {
        return false;
    }
    if UNARY.contains(&kind) {
        return node.inputs == [Some(value)];
    }
    if BINARY.contains(&kind) {
        let rank = whole_byte_dims(graph.value(value)).map_or(0, |dims| dims.len());
        let same = |weight: Vec<usize>| {
            // In the extents that count rows, the weight must have 1 or no extent.
            let leading = (weight.len() + lead).saturating_sub(rank);
            weight.len() <= rank
                && weight[..leading.min(weight.len())]
                    .iter()
                    .all(|&one| one == 1)
        };
        return partner_dims(graph, node, value).is_some_and(same);
    }
    if fed_by(graph, node) != Some(value) {
        return false;
    }
    let images = lead == 1 && IMAGES.contains(&kind) && node.proto.int("training_mode") != Some(1);
    images || product_input(graph, node).is_some_and(|(_, rows)| rows == lead)
}

/// Returns the extents of the weight that a node of two inputs combines with a value.
fn partner_dims(graph: &Graph, node: &Node, value: ValueId) -> Option<Vec<usize>> {
    let [Some(one), Some(other)] = node.inputs[..] else {
        return None;
    };
    let weight = if one == value { other } else { one };
    let reads = one == value || other == value;
    let weight = graph.value(weight);
    weight.weight().filter(|_| reads)?;
    whole_byte_dims(weight)
}

fn by_channels(graph: &Graph, head: NodeId) -> Option<Segment> {
    let node = graph.node(head);
    let grouped = node.proto.int("group").unwrap_or(1) != 1;
    let input = match node.cost.class {
        OperatorClass::Convolution => convolution_input(graph, node).filter(|_| !grouped),
        _ => product_input(graph, node).map(|(input, _)| input),
    }?;
    let output = only_output(node)?;
    let extents = whole_byte_dims(graph.value(output))?;
    let axis = match node.cost.class {
        OperatorClass::Convolution => 1,
        _ => extents.len() - 1,
    };
    let mut segment = Segment {
        nodes: vec![head],
        input,
        output,
        cut: Cut::Channels,
        units: extents[axis],
        axis,
    };
    if segment.units < 2 {
        return None;
    }
    while let Some(next) = only_reader(graph, segment.output) {
        let node = graph.node(next);
        let Some(made) = only_output(node) else { break };
        let kind = node.proto.op_type();
        let unary = UNARY.contains(&kind) && node.inputs == [Some(segment.output)];
        let binary = BINARY.contains(&kind) && partner_dims(graph, node, segment.output).is_some();
        let same =
            whole_byte_dims(graph.value(made)) == whole_byte_dims(graph.value(segment.output));
        if !is_standard(&node.proto) || !(unary || binary) || !same {
            break;
        }
        segment.nodes.push(next);
        segment.output = made;
    }
    Some(segment)
}
