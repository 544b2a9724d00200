//! Passes over a graph before it runs: the compiler runs nodes of constants once, and merges
//! weights of equal content.

use std::collections::BTreeMap;

use souk_memory::Tensor;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_reference as reference;
use souk_reference::Scope;

/// Elements that a constant can have: half a gibibyte of 32-bit floats, more than the largest
/// weight of the models of the ONNX project.
const ELEMENTS_MAX: u128 = 1 << 27;

/// Bytes of a weight from which on its equals are looked for: engines copy smaller ones anyway.
const MERGED_BYTES_MIN: usize = 1024;

/// Bytes of a weight, evenly spread, by which its possible equals are found.
const SAMPLED_BYTES: usize = 64;

/// Operators whose result follows from their inputs and is not larger than those say.
const FOLDED: &[&str] = &[
    "Abs",
    "Add",
    "Cast",
    "Concat",
    "ConstantOfShape",
    "Div",
    "Equal",
    "Exp",
    "Expand",
    "Flatten",
    "Floor",
    "Gather",
    "Greater",
    "Identity",
    "Less",
    "Log",
    "Max",
    "Min",
    "Mul",
    "Neg",
    "Not",
    "Pow",
    "Reciprocal",
    "Reshape",
    "Shape",
    "Size",
    "Slice",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Sum",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// The graph with every constant computed.
pub(super) fn fold_constants(graph: &Graph) -> Graph {
    let mut folded = graph.clone();
    let proto = folded.model.graph.get_or_insert_default();
    let mut nodes = Vec::with_capacity(proto.node.len());
    for node in std::mem::take(&mut proto.node) {
        match constant_output(&node, graph, &folded.weights) {
            Some(tensor) => {
                let name = node.output.first().cloned().unwrap_or_default();
                folded.weights.insert(name, tensor);
            }
            None => nodes.push(node),
        }
    }
    folded.model.graph.get_or_insert_default().node = nodes;
    folded
}

/// A key that equal weights share: the type, the sizes, and the bytes at the same places.
type WeightSample<'a> = (i32, &'a [usize], Vec<u8>);

/// The graph with one weight for each content: its nodes read the first of equal ones. Names that a
/// graph within a node reads stay as they are.
pub(super) fn merge_weights(mut graph: Graph) -> Graph {
    let mut firsts: BTreeMap<WeightSample<'_>, Vec<&String>> = BTreeMap::new();
    let mut renamed: BTreeMap<String, String> = BTreeMap::new();
    for (name, weight) in &graph.weights {
        let bytes = weight.bytes();
        if bytes.len() < MERGED_BYTES_MIN {
            continue;
        }
        let sampled = bytes.iter().step_by(bytes.len() / SAMPLED_BYTES);
        let key = (
            weight.dtype().onnx_code(),
            weight.dims(),
            sampled.copied().collect(),
        );
        let alike = firsts.entry(key).or_default();
        match alike.iter().find(|first| graph.weights[**first] == *weight) {
            Some(first) => drop(renamed.insert(name.clone(), (*first).clone())),
            None => alike.push(name),
        }
    }
    let nodes = &mut graph.model.graph.get_or_insert_default().node;
    for input in nodes.iter_mut().flat_map(|node| &mut node.input) {
        if let Some(first) = renamed.get(input) {
            input.clone_from(first);
        }
    }
    graph
}

/// Returns the output of a node, if it is known before the run.
fn constant_output(
    node: &NodeProto,
    graph: &Graph,
    weights: &BTreeMap<String, Tensor>,
) -> Option<Tensor> {
    let [output] = &node.output[..] else {
        return None;
    };
    let known = node.operator_domain().is_empty() && FOLDED.contains(&node.op_type());
    if !known || node.input.is_empty() || reference::check_deep(node, &graph.dtypes).is_err() {
        return None;
    }
    let read = node.input.iter().filter(|name| !name.is_empty());
    let held = read.map(|name| Some((name.clone(), weights.get(name)?.clone())));
    let mut scope: Scope = held.collect::<Option<_>>()?;
    if elements_at_most(node, &scope)? > ELEMENTS_MAX {
        return None;
    }
    reference::run_nodes(std::slice::from_ref(node), &mut scope, graph.opset).ok()?;
    let made = scope.remove(output)?;
    // Later nodes were judged by the declared type, so the constant must have it.
    (graph.dtypes.get(output) == Some(&made.dtype())).then_some(made)
}

/// How many elements a node's result has at most; `None` if its inputs do not say.
fn elements_at_most(node: &NodeProto, scope: &Scope) -> Option<u128> {
    let stated = match node.op_type() {
        "ConstantOfShape" => Some(0),
        "Expand" => Some(1),
        _ => None,
    };
    let count = |tensor: &Tensor| {
        tensor
            .dims()
            .iter()
            .map(|&size| size as u128)
            .product::<u128>()
    };
    if let Some(index) = stated {
        let sizes: Vec<i64> = scope.get(node.input_name(index)?)?.to_vec().ok()?;
        let mut sizes = sizes.into_iter().map(|size| u128::try_from(size).ok());
        let product = sizes.try_fold(1u128, |product, size| product.checked_mul(size?))?;
        let given = if index == 1 {
            count(scope.get(node.input_name(0)?)?)
        } else {
            1
        };
        return product.checked_mul(given);
    }
    let inputs = node.input.iter().filter_map(|name| scope.get(name));
    let counts: Vec<u128> = inputs.map(count).filter(|&count| count > 1).collect();
    let same = counts.windows(2).all(|pair| pair[0] == pair[1]);
    match node.op_type() {
        "Concat" => Some(counts.iter().sum()),
        "Gather" | "Slice" | "Reshape" => counts.iter().try_fold(1, |p: u128, &c| p.checked_mul(c)),
        _ if same => Some(counts.first().copied().unwrap_or(1)),
        _ => counts.iter().try_fold(1, |p: u128, &c| p.checked_mul(c)),
    }
}
