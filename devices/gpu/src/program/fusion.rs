//! Finds the nodes that one kernel can compute at once: a product or a convolution, the bias, the
//! function of one element that follows, and the conversion of 8-bit operands before it. A GPU
//! program plans them when it is compiled, and records each such group as one node.
//!
//! A node can be fused into the one before it only if no other node reads the value between them.
//! The kernel then never rounds that value to 16 bits: it rounds the sum once, at the end.

use std::collections::BTreeMap;

use souk_memory::DType;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;

use crate::numbers::quarters::is_f8;
use crate::operators::elementwise::{attribute_numbers, gelu_expression, unary_map};
use crate::program::table::Side;
use crate::recording::{ElementFunction, Epilogue, FusedFunction};

/// A node with the nodes fused into it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fusion {
    pub epilogue: Epilogue,
    /// A weight that becomes its third input.
    pub bias: Option<String>,
    /// The 8-bit inputs before their conversion, and their scales.
    pub quarters: Option<[String; 4]>,
    /// Name of the output, which the last fused node computes.
    pub output: String,
}

/// The role of a node in the fusion.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FusionRole {
    /// The node runs alone.
    Alone,
    /// Other nodes are fused into it.
    Head(Box<Fusion>),
    /// The node is fused into one before it, or its readers use a stored matrix instead: it records
    /// nothing.
    Absorbed,
}

impl Fusion {
    /// Returns the names of the inputs of a node with these nodes fused into it; empty for none.
    pub fn input_names<'a>(&'a self, node: &'a NodeProto) -> Vec<&'a str> {
        let mut names: Vec<&str> = node.input.iter().map(String::as_str).collect();
        if let Some(bias) = &self.bias {
            names.truncate(2);
            names.push(bias);
        }
        if let Some([left, right, left_scale, right_scale]) = &self.quarters {
            names.resize(3, "");
            (names[0], names[1]) = (left, right);
            names.extend([left_scale.as_str(), right_scale.as_str()]);
        }
        names
    }
}

/// Returns the role of each node of a graph. `sides` has the side on which each node runs;
/// `multiplies_quarters` says whether the device multiplies 8-bit floats.
pub(crate) fn plan_fusion(
    graph: &Graph,
    sides: &[Side],
    multiplies_quarters: bool,
) -> Vec<FusionRole> {
    let nodes = graph.nodes();
    let readers = value_readers(graph);
    let mut roles = vec![FusionRole::Alone; nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        if !is_head(node) || sides[index] != Side::Device {
            continue;
        }
        let mut fused = Fusion {
            output: node.output.first().cloned().unwrap_or_default(),
            ..Fusion::default()
        };
        let mut absorbed = Vec::new();
        while let Some(&[next]) = readers.get(fused.output.as_str()).map(Vec::as_slice) {
            let after = &nodes[next];
            let is_fused = sides[next] == Side::Device
                && after.operator_domain().is_empty()
                && try_fuse(graph, node, after, &mut fused);
            if !is_fused {
                break;
            }
            absorbed.push(next);
        }
        if multiplies_quarters && let Some((found, names)) = find_quarters(graph, node, &readers) {
            fused.quarters = Some(names);
            absorbed.extend(found);
        }
        if absorbed.is_empty() {
            continue;
        }
        for next in absorbed {
            roles[next] = FusionRole::Absorbed;
        }
        roles[index] = FusionRole::Head(Box::new(fused));
    }
    roles
}

/// Returns for each value the nodes that read it, once for each read. An output of the graph has
/// two more readers that are not nodes, so that no node counts as its only reader.
fn value_readers(graph: &Graph) -> BTreeMap<&str, Vec<usize>> {
    let mut readers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            readers.entry(name).or_default().push(index);
        }
    }
    for port in &graph.outputs {
        readers.entry(&port.name).or_default().push(usize::MAX);
        readers.entry(&port.name).or_default().push(usize::MAX);
    }
    readers
}

fn is_head(node: &NodeProto) -> bool {
    let is_product = matches!(node.op_type(), "Conv" | "ConvTranspose" | "Gemm" | "MatMul");
    is_product && node.operator_domain().is_empty()
}

/// Fuses a node into `head` if that is possible, and returns whether it did.
fn try_fuse(graph: &Graph, head: &NodeProto, node: &NodeProto, fused: &mut Fusion) -> bool {
    if fused.epilogue.then.is_some() {
        return false;
    }
    let output = node.output.first().cloned().unwrap_or_default();
    if let Some(then) = fused_function(graph, node) {
        fused.epilogue.then = Some(then);
    } else if let Some(bias) = find_bias(graph, head, node, fused) {
        fused.bias = Some(bias);
    } else {
        return false;
    }
    fused.output = output;
    true
}

/// Finds the nodes that convert both operands of a product from 8-bit floats, with one scale each
/// and no other reader; returns them and the names of their inputs.
fn find_quarters(
    graph: &Graph,
    node: &NodeProto,
    readers: &BTreeMap<&str, Vec<usize>>,
) -> Option<([usize; 2], [String; 4])> {
    if node.op_type() != "MatMul" {
        return None;
    }
    let find_conversion = |input: usize| {
        let name = node.input_name(input)?;
        let is_producer = |producer: &NodeProto| producer.output.iter().any(|it| it == name);
        let index = graph.nodes().iter().position(is_producer)?;
        let producer = &graph.nodes()[index];
        let (packed, scale) = (producer.input_name(0)?, producer.input_name(1)?);
        let is_conversion = producer.op_type() == "DequantizeLinear"
            && producer.operator_domain().is_empty()
            && producer.input_name(2).is_none()
            && readers.get(name)?.len() == 1
            && is_f8(*graph.dtypes.get(packed)?)
            && graph.dtypes.get(name) == Some(&DType::F32)
            && graph.weights.get(scale)?.shape().element_count() == 1;
        is_conversion.then(|| (index, packed.to_owned(), scale.to_owned()))
    };
    let (left, left_packed, left_scale) = find_conversion(0)?;
    let (right, right_packed, right_scale) = find_conversion(1)?;
    let names = [left_packed, right_packed, left_scale, right_scale];
    Some(([left, right], names))
}

/// Returns the weight that an addition adds to each column of a product, if it does.
fn find_bias(graph: &Graph, head: &NodeProto, node: &NodeProto, fused: &Fusion) -> Option<String> {
    let is_bare = fused.bias.is_none()
        && head.input_name(2).is_none()
        && head.float("beta").is_none_or(|share| share == 1.0);
    if node.op_type() != "Add" || !is_bare {
        return None;
    }
    let mut others = node.input.iter().filter(|name| **name != fused.output);
    let other = others.next()?;
    let [size] = *graph.weights.get(other)?.dims() else {
        return None;
    };
    let right = graph.weights.get(head.input_name(1)?)?.dims();
    let columns = match (head.op_type(), right) {
        ("MatMul", [.., _, columns]) => *columns,
        ("Gemm", &[rows, columns]) => match head.int("transB").unwrap_or(0) {
            0 => columns,
            _ => rows,
        },
        _ => return None,
    };
    (columns == size).then(|| other.clone())
}

/// A node that is a function of one element.
fn fused_function(graph: &Graph, node: &NodeProto) -> Option<ElementFunction> {
    let plain = |expression, numbers| ElementFunction {
        expression,
        numbers,
        known: None,
    };
    match node.op_type() {
        "Gelu" => {
            let is_tanh = node.string("approximate") == Some("tanh");
            let known = is_tanh.then_some(FusedFunction::GeluTanh);
            let expression = gelu_expression(is_tanh);
            Some(ElementFunction {
                known,
                ..plain(expression, [0.0; 3])
            })
        }
        "Clip" => {
            let low = clip_bound(graph, node, 1, "min", f32::NEG_INFINITY)?;
            let high = clip_bound(graph, node, 2, "max", f32::INFINITY)?;
            Some(plain("smaller(larger(a, s), t)", [low, high, 0.0]))
        }
        operator => {
            let map = unary_map(operator).filter(|map| map.output == DType::F32)?;
            let numbers = attribute_numbers(node, map.numbers);
            Some(ElementFunction {
                known: (operator == "Relu").then_some(FusedFunction::Relu),
                ..plain(map.expression, numbers.map(|number| number as f32))
            })
        }
    }
}

/// Returns a bound of `Clip` that is known before the run: a weight, an attribute, or none.
fn clip_bound(graph: &Graph, node: &NodeProto, index: usize, name: &str, none: f32) -> Option<f32> {
    match node.input_name(index) {
        Some(weight) => {
            let values = graph.weights.get(weight)?.to_f64s().ok()?;
            let bound = *values.first()? as f32;
            (!bound.is_nan()).then_some(bound)
        }
        None => Some(node.float(name).unwrap_or(none)),
    }
}

#[cfg(test)]
mod tests;
