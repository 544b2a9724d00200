//! Models whose work nobody knows before they run, and what they do to the plans of others.

use serde_json::Value;
use souk_node::memory::{DType, Tensor};
use souk_onnx as onnx;
use souk_onnx::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    ValueInfoProto,
};

use crate::common::{Market, digits, souk};

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
    let dims = dims.iter().map(|size| Dimension::fixed(*size as i64));
    ValueInfoProto::tensor(name, dtype.onnx_code(), Some(dims.collect()))
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
    onnx::encode(&ModelProto {
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

/// What the digits would cost on the CPU.
fn price_of_digits(market: &Market) -> u64 {
    let images = format!("images={}", digits("images.npy").display());
    let model = digits("digits.onnx").to_string_lossy().into_owned();
    let words = ["plan", &model, "-i", &images, "--backend", "cpu"];
    let plan = market.souk(&words).done();
    plan["micro_credits"].as_u64().expect("a plan has a price")
}

#[test]
fn loops_whose_count_comes_in_the_run_move_no_plan_of_another_model() {
    let market = Market::up();
    market.submit_digits("before", &["--backend", "cpu"]).done();
    let before = price_of_digits(&market);
    let seconds = |times: &Value, which: &str| {
        let compute = times[which]["compute_seconds"].as_f64();
        compute.expect("it was planned and measured")
    };
    let mut last = Value::Null;
    for _ in 0..3 {
        last = run_loop(&market);
    }
    let off = seconds(&last, "planned") / seconds(&last, "measured");
    assert!(
        (0.2..5.0).contains(&off),
        "its own runs have taught: {last}"
    );
    market
        .submit_digits("between", &["--backend", "cpu"])
        .done();
    let after = price_of_digits(&market);
    assert!(after * 2 <= before * 3, "{before} became {after}");

    // Its owner sees what was learned and from what, and may begin anew.
    let folder = market.folder().join("net/provider-1");
    let status = || souk(&folder, &["provider", "status"]).done()["learned"].clone();
    let models = |learned: &Value| learned["devices"][0]["models"].clone();
    market.until(|| models(&status())[0]["runs"] == 3);
    let learned = status();
    assert_eq!(
        models(&learned).as_array().map(Vec::len),
        Some(1),
        "{learned}"
    );
    assert!(
        learned["recent"]
            .as_array()
            .is_some_and(|runs| runs.len() >= 5)
    );
    souk(&folder, &["provider", "status", "--reset"]).done();
    market.until(|| status()["devices"].as_array().is_some_and(Vec::is_empty));
}
