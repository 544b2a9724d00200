//! Simplifies a graph before the CPU compiles it, by constant folding and by merging equal weights.
//! Neither changes a result.
//!
//! *Folding* runs each node whose inputs are all constants once, with the reference kernels, and
//! makes its result a weight, so that no run computes it again. It does not fold a node if its
//! operator is not in [`FOLDED`], if the result could be too large, or if the reference kernels do
//! not support it. *Merging* lets nodes read one copy of weights with equal content.

use std::collections::BTreeMap;

use souk_memory::Tensor;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_reference as reference;
use souk_reference::Scope;

/// The most elements of a folded constant: half a gibibyte of 32-bit floats, more than the largest
/// weight of the models of the ONNX project.
const ELEMENTS_MAX: u128 = 1 << 27;

/// The smallest weight to merge, in bytes: engines copy smaller ones.
const MERGE_BYTES_MIN: usize = 1024;

/// How many bytes of a weight, evenly spread, the search for equal weights compares first.
const SAMPLED_BYTES: usize = 64;

/// The operators to fold: their result follows from their inputs alone, and its size is bounded by
/// them ([`elements_at_most`]).
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

/// Returns the graph without the nodes whose results are known before the run: these results become
/// weights under the names of the outputs.
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

/// Returns the graph whose nodes read the first of several equal weights. It still contains the
/// others, because a graph within a node can read them by name.
pub(super) fn merge_weights(mut graph: Graph) -> Graph {
    let mut firsts: BTreeMap<WeightSample<'_>, Vec<&String>> = BTreeMap::new();
    let mut renamed: BTreeMap<String, String> = BTreeMap::new();
    for (name, weight) in &graph.weights {
        let bytes = weight.bytes();
        if bytes.len() < MERGE_BYTES_MIN {
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
    let is_foldable = node.operator_domain().is_empty() && FOLDED.contains(&node.op_type());
    if !is_foldable || node.input.is_empty() || reference::check_deep(node, &graph.dtypes).is_err()
    {
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
    // Later nodes were checked against the declared type, so the constant must have it.
    (graph.dtypes.get(output) == Some(&made.dtype())).then_some(made)
}

/// Returns the most elements that a node's result can have, or `None` if its inputs do not bound
/// them.
fn elements_at_most(node: &NodeProto, scope: &Scope) -> Option<u128> {
    // The input that lists the sizes of the result, for the operators that have one.
    let sizes_input = match node.op_type() {
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
    if let Some(index) = sizes_input {
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
