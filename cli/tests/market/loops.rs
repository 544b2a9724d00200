//! Tests models with loops whose number of turns only the run decides: the times that a provider
//! measures for them must change the estimates of that model alone.

use serde_json::Value;
use souk_node::memory::{DType, Tensor};
use souk_onnx as onnx;
use souk_onnx::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    ValueInfoProto,
};

use crate::common::{Market, souk};

/// Sides of what the loop carries.
const SIDE: usize = 16;
/// Turns: a job that takes many hundred times as long as its graph says.
const TURNS: i64 = 1_500;

fn node(operator: &str, input: &[&str], output: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(format!("{operator} {}", output[0])),
        input: input.iter().map(|&name| name.to_owned()).collect(),
        output: output.iter().map(|&name| name.to_owned()).collect(),
        ..NodeProto::default()
    }
}

fn value(name: &str, dtype: DType, dims: &[usize]) -> ValueInfoProto {
    let dims = dims.iter().map(|size| Dimension::new_fixed(*size as i64));
    ValueInfoProto::new_tensor(name, dtype.onnx_code(), Some(dims.collect()))
}

/// `m` times the hyperbolic tangent of `x`, where `m` comes in the run.
fn repeated() -> Vec<u8> {
    let square = [SIDE, SIDE];
    let body = GraphProto {
        name: Some("turn".to_owned()),
        node: vec![
            node("Identity", &["go"], &["on"]),
            node("Tanh", &["v"], &["w"]),
        ],
        input: vec![
            value("i", DType::I64, &[]),
            value("go", DType::Bool, &[]),
            value("v", DType::F32, &square),
        ],
        output: vec![
            value("on", DType::Bool, &[]),
            value("w", DType::F32, &square),
        ],
        ..GraphProto::default()
    };
    let mut turns = node("Loop", &["m", "", "x"], &["y"]);
    turns.attribute.push(AttributeProto {
        name: Some("body".to_owned()),
        r#type: Some(onnx::AttributeType::Graph as i32),
        g: Some(body),
        ..AttributeProto::default()
    });
    let graph = GraphProto {
        name: Some("repeated".to_owned()),
        node: vec![turns],
        input: vec![value("x", DType::F32, &square), value("m", DType::I64, &[])],
        output: vec![value("y", DType::F32, &square)],
        ..GraphProto::default()
    };
    onnx::encode_model(&ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            version: Some(17),
            ..Default::default()
        }],
        graph: Some(graph),
        ..ModelProto::default()
    })
    .to_vec()
}

/// Runs the loop on the CPU; its times.
fn run_loop(market: &Market) -> Value {
    let model = market.path("loop.onnx");
    std::fs::write(&model, repeated()).expect("a file is written");
    let x = Tensor::from_vec([SIDE, SIDE], vec![0.5_f32; SIDE * SIDE]).expect("a square");
    let x = format!("x={}", market.write("x.npy", &x));
    let m = format!("m={}", market.write("m.npy", &Tensor::scalar(TURNS)));
    let out = market.path("turned");
    let words = [
        "submit",
        &model,
        "-i",
        &x,
        "-i",
        &m,
        "-o",
        &out,
        "--backend",
        "cpu",
    ];
    market.souk(&words).done()["times"].clone()
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn loops_whose_count_comes_in_the_run_teach_their_own_model_alone() {
    let market = Market::up();
    market.submit_digits("before", &["--backend", "cpu"]).done();
    let folder = market.folder().join("net/provider-1");
    let status = || souk(&folder, &["provider", "status"]).done()["learned"].clone();
    let of_device = |learned: &Value, what: &str| learned["devices"][0][what].clone();
    market.until(|| of_device(&status(), "operators").is_u64());
    let before = status();

    let last = (0..3).fold(None, |_, _| Some(run_loop(&market)));
    let last = last.expect("it ran thrice");
    let seconds = |which: &str| {
        let compute = last[which]["compute_seconds"].as_f64();
        compute.expect("it was planned and measured")
    };
    let off = seconds("planned") / seconds("measured");
    assert!((0.05..20.0).contains(&off), "its own runs told: {last}");

    // Its owner sees what was learned and from what, and may begin anew.
    market.until(|| of_device(&status(), "models")[0]["runs"] == 3);
    let after = status();
    for what in ["slowness", "operators"] {
        assert_eq!(of_device(&before, what), of_device(&after, what), "{what}");
    }
    let models = of_device(&after, "models");
    assert_eq!(models.as_array().map(Vec::len), Some(1), "{after}");
    assert_eq!(after["recent"].as_array().map(Vec::len), Some(4), "{after}");
    souk(&folder, &["provider", "status", "--reset"]).done();
    market.until(|| status()["devices"].as_array().is_some_and(Vec::is_empty));
}
