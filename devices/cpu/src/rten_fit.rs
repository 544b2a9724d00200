//! Decides which nodes of a graph rten (the ONNX runtime that the CPU uses) runs exactly as ONNX
//! defines. The compiler asks it about each node in order, and gives the others to the reference
//! kernels.
//!
//! rten computes in `f32`, `i32`, `i8` and `u8` only: it narrows `i64`, `bool`, `f64` and `f16`
//! when it loads a model. So rten gets a node only where narrowing cannot change a value: where a
//! node merely moves, compares or counts 64-bit integers (each run checks the inputs), or they are
//! sizes.

use std::collections::BTreeSet;

use souk_memory::DType;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::ranks::Ranks;
use souk_onnx::schema::{OperatorSchema, RtenClass};
use souk_onnx::subgraph::UnsupportedReason;
use souk_onnx::types::Types;

/// Before this version arithmetic broadcast by attributes, which rten does not know.
const OPSET_MIN: i64 = 7;

/// Before this version a clip had its bounds as attributes.
const CLIP_OPSET_MIN: i64 = 11;

/// Paddings, strides and the like beyond this are no picture's.
const ATTRIBUTE_MAX: u64 = 1 << 14;

/// Upper bound on the elements that stated sizes can imply.
const ELEMENTS_MAX: i64 = 1 << 29;

/// Before this version a softmax went over all dimensions from its axis on.
const SOFTMAX_OPSET_MIN: i64 = 13;

/// Integer arithmetic that keeps sizes small.
const SIZE_ARITHMETIC: &[&str] = &["Add", "Div", "Mul", "Sub"];

/// Judges the nodes of a graph in order, and follows which values are small enough to compute with.
pub(super) struct Fit<'a> {
    graph: &'a Graph,
    types: &'a Types,
    opset: i64,
    /// The known dimensions of the values: rten gets products of tensors and vectors wrong.
    ranks: Ranks,
    /// Integer values made of sizes and small constants.
    small: BTreeSet<&'a str>,
    /// Constants that 32 bits do not hold.
    wide: BTreeSet<&'a str>,
}

impl<'a> Fit<'a> {
    /// A judge for the nodes of `graph`; the caller must ask about them in their order.
    pub fn new(graph: &'a Graph) -> Self {
        let mut fit = Self {
            graph,
            types: &graph.dtypes,
            opset: graph.opset,
            ranks: Ranks::from_graph(graph),
            small: BTreeSet::new(),
            wide: BTreeSet::new(),
        };
        for (name, weight) in &graph.weights {
            if let Ok(values) = weight.elements::<i64>() {
                fit.note_constant(name, &values);
            }
        }
        fit
    }

    fn note_constant(&mut self, name: &'a str, values: &[i64]) {
        if values.iter().all(|&value| is_small(value)) {
            self.small.insert(name);
        }
        if values.iter().any(|&value| i32::try_from(value).is_err()) {
            self.wide.insert(name);
        }
    }

    /// Whether rten runs `node` exactly.
    pub fn check_node(&mut self, node: &'a NodeProto) -> Result<(), UnsupportedReason> {
        let reason = |dtype| Err(UnsupportedReason::DType(dtype));
        if self.opset < OPSET_MIN {
            return Err(UnsupportedReason::Version(self.opset));
        }
        let class = OperatorSchema::for_operator(node.op_type()).rten;
        if !node.operator_domain().is_empty() || class.is_none() {
            return Err(UnsupportedReason::Operator);
        }
        let names = node
            .input
            .iter()
            .chain(&node.output)
            .filter(|name| !name.is_empty());
        let types: Vec<DType> = names
            .filter_map(|name| self.types.get(name))
            .copied()
            .collect();
        if let Some(&dtype) = types.iter().find(|dtype| !is_narrowed_exactly(**dtype)) {
            return reason(dtype);
        }
        // A slice clamps its bounds to the extent, so narrowing them to 32 bits changes nothing.
        let is_wide = |name: &String| self.wide.contains(name.as_str());
        if node.op_type() != "Slice" && node.input.iter().any(is_wide) {
            return Err(UnsupportedReason::IntegerRange);
        }
        self.follow_sizes(node);
        if self.makes_too_much(node) {
            return Err(UnsupportedReason::Engine(
                "its result may be too large".to_owned(),
            ));
        }
        let operator = node.op_type();
        if matches!(operator, "Softmax" | "LogSoftmax") && self.opset < SOFTMAX_OPSET_MIN {
            return Err(UnsupportedReason::Version(self.opset));
        }
        if operator == "Clip" && self.opset < CLIP_OPSET_MIN {
            return Err(UnsupportedReason::Version(self.opset));
        }
        if operator == "MatMul" && !self.ranks.are_matrices(node) {
            return Err(UnsupportedReason::Engine(
                "an operand may be a vector".to_owned(),
            ));
        }
        if matches!(class, Some(RtenClass::Move | RtenClass::Compare)) {
            return Ok(());
        }
        if class == Some(RtenClass::Convert) {
            return self.check_cast(node);
        }
        let inputs = node.input.iter().filter(|name| !name.is_empty());
        for (index, name) in inputs.enumerate() {
            let is_index = index > 0 && operator.starts_with("Reduce");
            let small = self.small.contains(name.as_str());
            match self.types.get(name) {
                Some(DType::F32) | None => {}
                Some(_) if is_index => {}
                Some(_) if small && SIZE_ARITHMETIC.contains(&operator) => {}
                Some(DType::I64) => return Err(UnsupportedReason::IntegerRange),
                Some(&dtype) => return reason(dtype),
            }
        }
        let outputs = node.output.iter().filter_map(|name| self.types.get(name));
        let whole = outputs.clone().all(|dtype| *dtype == DType::F32);
        if whole || self.are_small(node) {
            return Ok(());
        }
        reason(outputs.copied().next().unwrap_or(DType::F32))
    }

    /// Whether a node states sizes beyond any use: rten would allocate them without asking.
    fn makes_too_much(&self, node: &NodeProto) -> bool {
        let is_large = |value: &i64| value.unsigned_abs() > ATTRIBUTE_MAX;
        let lists = [
            "pads",
            "strides",
            "dilations",
            "kernel_shape",
            "output_padding",
        ];
        let lists = lists.iter().filter_map(|name| node.ints(name));
        let sizes = match node.op_type() {
            "ConstantOfShape" => node.input_name(0),
            "Expand" | "Tile" => node.input_name(1),
            _ => None,
        };
        let stated = sizes.and_then(|name| self.graph.weights.get(name)?.to_vec::<i64>().ok());
        let product = stated
            .unwrap_or_default()
            .into_iter()
            .try_fold(1i64, i64::checked_mul);
        lists.flatten().any(is_large) || product.is_none_or(|product| product > ELEMENTS_MAX)
    }

    /// Records whether a node's outputs are sizes or computed from sizes.
    fn follow_sizes(&mut self, node: &'a NodeProto) {
        if node.op_type() == "Constant"
            && let (Some(output), Some(values)) = (node.output.first(), constant_integers(node))
        {
            return self.note_constant(output, &values);
        }
        let is_source = matches!(node.op_type(), "Shape" | "Size");
        let moves = OperatorSchema::for_operator(node.op_type()).rten == Some(RtenClass::Move);
        let keeps = moves || SIZE_ARITHMETIC.contains(&node.op_type());
        if is_source || (keeps && self.are_small(node)) {
            let outputs = node.output.iter().filter(|name| !name.is_empty());
            self.small.extend(outputs.map(String::as_str));
        }
    }

    /// Whether everything a node computes with is small; a slice computes with its first input.
    fn are_small(&self, node: &NodeProto) -> bool {
        let count = if node.op_type() == "Slice" {
            1
        } else {
            node.input.len()
        };
        let mut inputs = node
            .input
            .iter()
            .take(count)
            .filter(|name| !name.is_empty())
            .peekable();
        inputs.peek().is_some() && inputs.all(|name| self.small.contains(name.as_str()))
    }

    fn check_cast(&self, node: &NodeProto) -> Result<(), UnsupportedReason> {
        let type_of =
            |names: &[String]| names.first().and_then(|name| self.types.get(name)).copied();
        match (type_of(&node.input), type_of(&node.output)) {
            (Some(from), Some(DType::F32)) if is_narrowed_exactly(from) => Ok(()),
            (Some(DType::I32 | DType::I64 | DType::Bool), Some(DType::I64 | DType::I32)) => Ok(()),
            (_, Some(to)) => Err(UnsupportedReason::DType(to)),
            _ => Err(UnsupportedReason::UnknownDType),
        }
    }
}

/// Whether values of this type survive rten's types, integers being checked where they come in.
fn is_narrowed_exactly(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32 | DType::I64 | DType::Bool)
}

/// Whether sums and products of a few such values stay within 32 bits when they are sizes.
fn is_small(value: i64) -> bool {
    value.unsigned_abs() <= 1 << 16
}

/// The values of a constant of 64-bit integers.
fn constant_integers(node: &NodeProto) -> Option<Vec<i64>> {
    let tensor = node
        .tensor("value")
        .and_then(|value| souk_onnx::tensor_from_proto(value).ok());
    let tensor = tensor.and_then(|tensor| tensor.to_vec::<i64>().ok());
    let ints = node
        .ints("value_ints")
        .map(<[i64]>::to_vec)
        .filter(|ints| !ints.is_empty());
    tensor
        .or(ints)
        .or(node.int("value_int").map(|value| vec![value]))
}
