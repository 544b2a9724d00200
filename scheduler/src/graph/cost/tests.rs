//! Tests the counted work and traffic of nodes with bodies, of `Einsum` with an ellipsis, and of
//! mixtures of experts.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use souk_cpu::Cpu;
use souk_memory::Tensor;
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{
    AttributeProto, GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto, encode_model,
    tensor_to_proto,
};
use souk_vocabulary::catalogue;

use super::*;
use crate::graph::{Bindings, Graph};

const SIDE: usize = 4;
/// Operations of a product of two squares.
const PRODUCT: u64 = 2 * (SIDE * SIDE * SIDE) as u64;
/// Operations of an addition of two.
const ADDITION: u64 = (SIDE * SIDE) as u64;

fn node(operator: &str, input: &[&str], output: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        input: input.iter().map(|&name| name.to_owned()).collect(),
        output: output.iter().map(|&name| name.to_owned()).collect(),
        ..NodeProto::default()
    }
}

fn value(name: &str, dtype: DType) -> ValueInfoProto {
    ValueInfoProto::new_tensor(name, dtype.onnx_code(), None)
}

fn body(nodes: Vec<NodeProto>, input: &[&str], output: &[&str]) -> GraphProto {
    let typed = |name: &&str| match *name {
        "i" => value(name, DType::I64),
        "go" | "on" => value(name, DType::Bool),
        _ => value(name, DType::F32),
    };
    GraphProto {
        node: nodes,
        name: Some("body".to_owned()),
        input: input.iter().map(typed).collect(),
        output: output.iter().map(typed).collect(),
        ..GraphProto::default()
    }
}

fn with(mut node: NodeProto, name: &str, body: GraphProto) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        g: Some(body),
        ..AttributeProto::default()
    });
    node
}

fn product(left: &str, output: &str) -> NodeProto {
    node("MatMul", &[left, "x"], &[output])
}

fn choice() -> NodeProto {
    let costly = body(vec![product("x", "a")], &[], &["a"]);
    let cheap = body(vec![node("Add", &["x", "x"], &["b"])], &[], &["b"]);
    let choice = node("If", &["condition"], &["y"]);
    with(with(choice, "then_branch", cheap), "else_branch", costly)
}

fn repeated(rounds: &str) -> NodeProto {
    let nodes = vec![node("Identity", &["go"], &["on"]), product("v", "w")];
    let body = body(nodes, &["i", "go", "v"], &["on", "w"]);
    with(node("Loop", &[rounds, "", "x"], &["y"]), "body", body)
}

/// Returns a `Loop` of five rounds, whose body has further loops.
fn nested(rounds: &str) -> NodeProto {
    let inner = repeated(rounds);
    let nodes = vec![node("Identity", &["go"], &["on"]), inner];
    let outer = body(nodes, &["i", "go", "u"], &["on", "y"]);
    with(node("Loop", &["five", "", "x"], &["z"]), "body", outer)
}

fn scan() -> NodeProto {
    let nodes = vec![
        node("Add", &["s", "e"], &["t"]),
        node("Identity", &["t"], &["o"]),
    ];
    let inner = body(nodes, &["s", "e"], &["t", "o"]);
    let mut scan = with(node("Scan", &["row", "x"], &["last", "y"]), "body", inner);
    scan.attribute.push(AttributeProto {
        name: Some("num_scan_inputs".to_owned()),
        i: Some(1),
        ..AttributeProto::default()
    });
    scan
}

fn model(node: NodeProto) -> ModelProto {
    let output = node.output.last().map_or("", String::as_str).to_owned();
    let weight = |name: &str, count: i64| tensor_to_proto(name, &Tensor::scalar(count));
    let row = Tensor::from_vec([SIDE], vec![0.0_f32; SIDE]).unwrap();
    ModelProto {
        ir_version: Some(10),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(21),
        }],
        graph: Some(GraphProto {
            node: vec![node],
            name: Some("test".to_owned()),
            input: vec![
                value("x", DType::F32),
                value("condition", DType::Bool),
                value("count", DType::I64),
            ],
            output: vec![value(&output, DType::F32)],
            initializer: vec![
                weight("three", 3),
                weight("five", 5),
                tensor_to_proto("row", &row),
            ],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

/// Returns the operations of the only node as the planner counts them and as a device reports them,
/// and whether the planner is certain.
fn counted(node: NodeProto) -> (u64, u64, bool) {
    let model = encode_model(&model(node));
    let square = Tensor::from_vec([SIDE, SIDE], vec![0.5_f32; SIDE * SIDE]).unwrap();
    let truth = Tensor::from_bools([], &[true]).unwrap();
    let inputs = BTreeMap::from([
        ("x".to_owned(), square),
        ("condition".to_owned(), truth),
        ("count".to_owned(), Tensor::scalar(1_i64)),
    ]);
    let bound = inputs.iter().fold(Bindings::new(), |bound, (name, input)| {
        bound.with_input(name, input.dtype(), input.dims())
    });
    let graph = Graph::import(model.clone(), &bound).unwrap();
    let cost = graph.nodes()[0].cost;
    assert_eq!(cost.flops, cost.bodies.operations);
    assert_eq!(cost.dtype, Some(DType::F32));
    let subgraph = Subgraph {
        model,
        ..Subgraph::default()
    };
    let cpu = Cpu::new(catalogue::all_processors()[0].clone(), NonZeroUsize::MIN);
    let works = cpu.work_of(&subgraph, &inputs).unwrap();
    (cost.flops, works[0].operations, cost.certain)
}

#[test]
fn bodies_cost_what_their_nodes_do_as_often_as_they_run() {
    let cases = [
        ("the costlier branch of an if", choice(), PRODUCT, false),
        (
            "three rounds of a loop",
            repeated("three"),
            3 * PRODUCT,
            true,
        ),
        ("a loop in a loop", nested("three"), 15 * PRODUCT, true),
        (
            "rounds that come in the run",
            repeated("count"),
            PRODUCT,
            false,
        ),
        ("such rounds in a body", nested("count"), 5 * PRODUCT, false),
        ("a scan of four rows", scan(), ADDITION, true),
    ];
    for (title, node, expected, certain) in cases {
        assert_eq!(counted(node), (expected, expected, certain), "{title}");
    }
}

#[test]
fn einsum_with_an_ellipsis_is_counted_though_its_shape_is_not_inferred() {
    let mut einsum = node("Einsum", &["x", "x"], &["y"]);
    einsum.attribute.push(AttributeProto {
        name: Some("equation".to_owned()),
        s: Some("...j,jk->...k".as_bytes().to_vec().into()),
        ..AttributeProto::default()
    });
    let square = Fact::new_tensor(Some(souk_onnx::DataType::Float), vec![Some(SIDE as u64); 2]);
    let work = node_work(
        &einsum,
        &[Some(&square), Some(&square)],
        &[&Fact::default()],
    );
    assert_eq!(work.operations, PRODUCT);
}

#[test]
fn of_experts_only_those_are_read_that_rows_may_be_routed_to() {
    let mut routed = node(routing::OPERATOR, &["x", "experts", "chosen"], &["y"]);
    routed.domain = Some(souk_onnx::custom::DOMAIN.to_owned());
    let mut model = model(routed);
    model.opset_import.push(OperatorSetIdProto {
        domain: Some(souk_onnx::custom::DOMAIN.to_owned()),
        version: Some(1),
    });
    let experts = Tensor::from_vec([6, 3, SIDE], vec![0.5_f32; 18 * SIDE]).unwrap();
    let graph = model.graph.as_mut().unwrap();
    graph.initializer = vec![tensor_to_proto("experts", &experts)];
    graph.input = vec![value("x", DType::F32), value("chosen", DType::I64)];
    let bound = Bindings::new()
        .with_input("x", DType::F32, &[1, 2, SIDE])
        .with_input("chosen", DType::I64, &[1, 2, 2]);
    let graph = Graph::import(encode_model(&model), &bound).unwrap();
    let cost = graph.nodes()[0].cost;
    assert!(cost.certain);
    let (rows, chosen, made) = (2 * SIDE as u64, 4, 4 * 3);
    assert_eq!(cost.flops, 2 * made * SIDE as u64);
    assert_eq!(
        cost.bytes_read,
        4 * rows + 8 * chosen + chosen * 4 * 3 * SIDE as u64
    );
    assert_eq!(cost.bytes_written, 4 * made);
    assert_eq!(cost.weight_bytes, 4 * 18 * SIDE as u64);
}
