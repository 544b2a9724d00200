//! Tests hostile and damaged models: the import must return a graph or an error, in a short time.
//! `scheduler/fuzz` does the same for hours, with a nightly compiler.

use bytes::Bytes;
use proptest::prelude::*;
use souk_onnx::budget::NODES_MAX;
use souk_onnx::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};
use souk_onnx::{Dimension, OperatorSetIdProto, TensorProto, ValueInfoProto, encode_model};
use souk_scheduler::graph::{Bindings, Graph, ImportError};

const DIGITS: &[u8] = include_bytes!("../../../testnet/models/digits/digits.onnx");

fn import(model: &ModelProto) -> Result<Graph, ImportError> {
    Graph::import(encode_model(model), &Bindings::with_assumed_extent(2))
}

fn model(graph: GraphProto, functions: Vec<FunctionProto>) -> ModelProto {
    ModelProto {
        ir_version: Some(10),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(18),
        }],
        graph: Some(graph),
        functions,
        ..ModelProto::default()
    }
}

fn floats(name: &str) -> ValueInfoProto {
    ValueInfoProto::new_tensor(name, 1, Some(vec![Dimension::new_fixed(2)]))
}

fn with_body(operator: &str, inputs: &[&str], output: &str, body: GraphProto) -> NodeProto {
    let attribute = AttributeProto {
        name: Some("body".to_owned()),
        g: Some(body),
        ..AttributeProto::default()
    };
    NodeProto {
        attribute: vec![attribute],
        ..NodeProto::for_operator(operator, inputs, output)
    }
}

/// Returns loops within loops, `depth` deep. Each carries many values, of which one more changes in
/// each round, and takes its initial values from the loop around it.
fn loops(depth: usize) -> GraphProto {
    let names: Vec<String> = (0..8).map(|place| format!("v{depth}_{place}")).collect();
    let inner = (depth > 0).then(|| loops(depth - 1));
    let condition = NodeProto::for_operator("Identity", &["go"], "on");
    let mut nodes = vec![condition];
    if let Some(inner) = inner {
        let inputs = ["", "", "x", "x", "x", "x", "x", "x", "x", "x"];
        nodes.push(with_body("Loop", &inputs, "inner", inner));
    }
    let outputs = (0..8).map(|place| {
        let made = format!("w{depth}_{place}");
        let read = names[(place + 7) % 8].clone();
        let next = if place == 0 {
            NodeProto::for_operator("Size", &[&read], &made)
        } else {
            NodeProto::for_operator("Identity", &[&read], &made)
        };
        nodes.push(next);
        floats(&made)
    });
    let output = std::iter::once(floats("on")).chain(outputs).collect();
    let inputs = ["i", "go"]
        .into_iter()
        .chain(names.iter().map(String::as_str));
    GraphProto {
        input: inputs.map(floats).collect(),
        node: nodes,
        output,
        ..GraphProto::default()
    }
}

#[test]
fn functions_that_double_and_loops_that_multiply_are_refused_by_name() {
    let function = |level: usize| {
        let next = format!("f{}", level + 1);
        let call = |input: &str, output: &str| NodeProto {
            domain: Some("mine".to_owned()),
            ..NodeProto::for_operator(&next, &[input], output)
        };
        FunctionProto {
            name: Some(format!("f{level}")),
            domain: Some("mine".to_owned()),
            input: vec!["a".to_owned()],
            output: vec!["c".to_owned()],
            node: match level {
                30 => vec![NodeProto::for_operator("Relu", &["a"], "c")],
                _ => vec![call("a", "b"), call("b", "c")],
            },
            ..FunctionProto::default()
        }
    };
    let call = NodeProto {
        domain: Some("mine".to_owned()),
        ..NodeProto::for_operator("f0", &["x"], "y")
    };
    let graph = GraphProto {
        node: vec![call],
        input: vec![floats("x")],
        output: vec![floats("y")],
        ..GraphProto::default()
    };
    let bomb = model(graph, (0..31).map(function).collect());
    assert!(
        encode_model(&bomb).len() < 2500,
        "as small as the one that was sent"
    );
    let refused = import(&bomb).unwrap_err().to_string();
    assert!(refused.contains("more than 100000 nodes"), "{refused}");

    let inputs = ["", "", "x", "x", "x", "x", "x", "x", "x", "x"];
    let graph = |depth| GraphProto {
        node: vec![with_body("Loop", &inputs, "y", loops(depth))],
        input: vec![floats("x")],
        output: vec![floats("y")],
        ..GraphProto::default()
    };
    assert!(import(&model(graph(0), Vec::new())).is_ok());
    let refused = import(&model(graph(12), Vec::new()));
    let refused = refused.map(|_| "a graph").unwrap_err().to_string();
    assert!(refused.contains("steps to infer"), "{refused}");
}

/// Large but valid models: a deep network, and one with many inputs and constants. The import is
/// too slow for them if its time grows with the square of their size.
#[test]
fn models_of_tens_of_thousands_of_nodes_inputs_and_constants_are_imported() {
    const COUNT: usize = 30_000;
    let names: Vec<String> = (0..=COUNT).map(|place| format!("v{place}")).collect();
    let nodes = names.windows(2).map(|pair| {
        let constant = format!("{}/w", pair[1]);
        NodeProto::for_operator("Add", &[&pair[0], &constant], &pair[1])
    });
    let constants = names[1..].iter().map(|name| TensorProto {
        dims: vec![2],
        data_type: Some(1),
        name: Some(format!("{name}/w")),
        float_data: vec![1.0, 2.0],
        ..TensorProto::default()
    });
    // Before version 4 of the format each constant is also an input.
    let inputs = constants.clone().map(|tensor| floats(tensor.name()));
    let graph = GraphProto {
        node: nodes.collect(),
        initializer: constants.collect(),
        input: std::iter::once(floats("v0")).chain(inputs).collect(),
        output: vec![floats(&names[COUNT])],
        ..GraphProto::default()
    };
    let graph = import(&model(graph, Vec::new())).unwrap();
    assert_eq!(graph.nodes().len(), COUNT);
    assert!(graph.nodes().len() as u64 <= NODES_MAX);
    assert_eq!(graph.summary().nodes, COUNT);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_model_that_is_bent_is_a_graph_or_a_refusal(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = DIGITS.to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let bytes = Bytes::from(bytes);
        let _ = Graph::read_meanings(bytes.clone());
        if let Ok(graph) = Graph::import(bytes, &Bindings::with_assumed_extent(2)) {
            let _ = graph.summary();
        }
    }
}
