//! Tests that sizes copied from the value to reshape become constants, and that all other sizes are
//! computed in the run.

use souk_memory::DType;
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{Dimension, ValueInfoProto};
use souk_reference as reference;
use souk_reference::Scope;
use souk_testing::{
    assert_near, model, named_tensors, node, noise_tensor, subgraph, with_int, with_ints,
};
use souk_vocabulary::processor::Processor;

use super::super::sequences;
use super::super::tests::cpu;
use super::*;

fn integers(values: &[i64]) -> Tensor {
    Tensor::from_vec([values.len()], values.to_vec()).unwrap()
}

/// A size of `of`, as exporters have it: told, picked, and made a list of one.
fn counted(of: &str, axis: &str, list: &str) -> Vec<NodeProto> {
    let at = |part: &str| format!("{list}_{part}");
    vec![
        node("Shape", &[of], &[&at("shape")]),
        with_int(
            node("Gather", &[&at("shape"), axis], &[&at("size")]),
            "axis",
            0,
        ),
        node("Unsqueeze", &[&at("size"), "front"], &[list]),
    ]
}

/// Attention over `x` whose sizes are counted of `batch_of` and `x`.
fn attention(batch_of: &str) -> Vec<NodeProto> {
    let mut nodes = counted(batch_of, "first", "batch");
    nodes.extend(counted("x", "second", "length"));
    let concat =
        |inputs: &[&str], output: &str| with_int(node("Concat", inputs, &[output]), "axis", 0);
    nodes.push(concat(&["batch", "length", "heads", "each"], "split"));
    let turned = |from: &str, to: &str, axes: &[i64]| {
        with_ints(node("Transpose", &[from], &[to]), "perm", axes)
    };
    for name in ["q", "k", "v"] {
        let at = |part: &str| format!("{name}_{part}");
        nodes.push(node("MatMul", &["x", &at("weights")], &[&at("rows")]));
        nodes.push(node("Reshape", &[&at("rows"), "split"], &[&at("split")]));
        let axes = if name == "k" {
            [0, 2, 3, 1]
        } else {
            [0, 2, 1, 3]
        };
        nodes.push(turned(&at("split"), &at("turned"), &axes));
    }
    nodes.push(node("MatMul", &["q_turned", "k_turned"], &["scores"]));
    nodes.push(with_int(
        node("Softmax", &["scores"], &["shares"]),
        "axis",
        -1,
    ));
    nodes.push(node("MatMul", &["shares", "v_turned"], &["found"]));
    nodes.push(turned("found", "back", &[0, 2, 1, 3]));
    // The first two sizes of what was turned, at once.
    nodes.push(node("Shape", &["back"], &["back_shape"]));
    nodes.push(node("Slice", &["back_shape", "from", "to"], &["outer"]));
    nodes.push(concat(&["outer", "features"], "merge"));
    nodes.push(node("Reshape", &["back", "merge"], &["merged"]));
    nodes.push(node("MatMul", &["merged", "out_weights"], &["y"]));
    nodes
}

fn graph(batch_of: &str, batch: usize, length: usize) -> (Subgraph, Scope) {
    let mut weights: Vec<(&str, Tensor)> = ["q_weights", "k_weights", "v_weights", "out_weights"]
        .into_iter()
        .zip(0..)
        .map(|(name, seed)| (name, noise_tensor(&[8, 8], seed)))
        .collect();
    for (name, value) in [
        ("heads", 2),
        ("each", 4),
        ("features", 8),
        ("from", 0),
        ("to", 2),
    ] {
        weights.push((name, integers(&[value])));
    }
    weights.push(("front", integers(&[0])));
    for (name, value) in [("first", 0i64), ("second", 1)] {
        weights.push((name, Tensor::scalar(value)));
    }
    let ports = [("x", DType::F32), ("other", DType::F32)];
    let mut model = model(attention(batch_of), &ports, &[("y", DType::F32)], &weights);
    let open = Dimension::default;
    let dims = [
        vec![open(), open(), Dimension::new_fixed(8)],
        vec![open(), Dimension::new_fixed(3)],
    ];
    let declared = &mut model.graph.as_mut().unwrap().input;
    for (input, dims) in declared.iter_mut().zip(dims) {
        let name = input.name().to_owned();
        *input = ValueInfoProto::new_tensor(&name, DType::F32.onnx_code(), Some(dims));
    }
    let (x, other) = ([batch, length, 8], [batch, 3]);
    let inputs = named_tensors(&[
        ("x", noise_tensor(&x, 7)),
        ("other", noise_tensor(&other, 8)),
    ]);
    (subgraph(&model), inputs)
}

fn assert_right(subgraph: &Subgraph, inputs: &Scope) {
    let graph = Graph::from_subgraph(subgraph).unwrap();
    let mut scope = inputs.clone();
    scope.extend(graph.weights.clone());
    reference::run_nodes(graph.nodes(), &mut scope, graph.opset).unwrap();
    let expected = Scope::from([("y".to_owned(), scope["y"].clone())]);
    let found = cpu().compile(subgraph).unwrap().run(inputs).unwrap();
    assert_near(&found.outputs, &expected, 1e-5, "sizes");
}

#[test]
fn sizes_of_what_is_reshaped_are_copied_and_not_counted() {
    let (subgraph, inputs) = graph("x", 2, 5);
    let stated = fold_copied_sizes(Graph::from_subgraph(&subgraph).unwrap());
    let tells = |node: &NodeProto| matches!(node.op_type(), "Shape" | "Concat" | "Slice");
    assert!(!stated.nodes().iter().any(tells), "nobody asks for a shape");
    let reshapes = stated.nodes().iter().filter(|it| it.op_type() == "Reshape");
    let sizes: Vec<Vec<i64>> = reshapes
        .map(|node| stated.weights[&node.input[1]].to_vec().unwrap())
        .collect();
    let (split, merge) = (vec![0, 0, 2, 4], vec![0, 0, 8]);
    assert_eq!(sizes, [split.clone(), split.clone(), split, merge]);
    let all = 0..stated.nodes().len();
    assert_eq!(
        sequences::find_runs(&stated, &[]),
        [all],
        "it is attention to the kernels now"
    );
    for (batch, length) in [(2, 5), (1, 1), (0, 3)] {
        let (_, inputs) = graph("x", batch, length);
        assert_right(&subgraph, &inputs);
    }
    assert_right(&subgraph, &inputs);
}

#[test]
fn sizes_of_something_else_are_counted_in_the_run() {
    let (subgraph, inputs) = graph("other", 3, 4);
    let before = Graph::from_subgraph(&subgraph).unwrap();
    let stated = fold_copied_sizes(before.clone());
    let shapes = |graph: &Graph| {
        let nodes = graph.nodes().iter();
        nodes.filter(|it| it.op_type() == "Shape").count()
    };
    assert_eq!(
        (shapes(&before), shapes(&stated)),
        (3, 2),
        "only what is merged is known"
    );
    assert_right(&subgraph, &inputs);
}
