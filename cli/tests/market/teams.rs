//! Tests a group of several devices that a provider sells as one: in the sandbox of a lease, they
//! share the work of a job.

use std::fs;

use serde_json::{Value, json};
use souk_node::memory::{DType, Tensor};
use souk_onnx as onnx;
use souk_onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto,
    tensor_to_proto,
};

use crate::common::{Market, floats};

/// Rows of the input, and columns, which are also the sides of each weight.
const SIZES: [usize; 2] = [256, 512];
/// Products of each of two branches: much more work than handing a tensor over.
const DEPTH: usize = 3;
/// More than a group in the provider's own process may hold between its devices.
const MEMORY_MIB: u64 = 3000;

/// Two branches that do not need each other, and their sum.
fn branches() -> Vec<u8> {
    let side = SIZES[1];
    let mut weights = vec![0f32; side * side];
    // Each column is the one beside it, so that a product turns the rows.
    (0..side).for_each(|row| weights[row * side + (row + 1) % side] = 1.0);
    let weights = Tensor::from_vec([side, side], weights).expect("as many as it has");
    let mut nodes = Vec::new();
    let mut push = |operator: &str, inputs: [&str; 2], output: String| {
        nodes.push(NodeProto {
            op_type: Some(operator.to_owned()),
            name: Some(output.clone()),
            input: inputs.map(str::to_owned).to_vec(),
            output: vec![output.clone()],
            ..NodeProto::default()
        });
        output
    };
    let ends = ["a", "b"].map(|branch| {
        (0..DEPTH).fold("x".to_owned(), |last, depth| {
            push("MatMul", [&last, "w"], format!("{branch}{depth}"))
        })
    });
    push("Add", [&ends[0], &ends[1]], "y".to_owned());
    let port = |name: &str| {
        let dims = SIZES.map(|size| Dimension::new_fixed(size as i64)).to_vec();
        ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), Some(dims))
    };
    let graph = GraphProto {
        name: Some("branches".to_owned()),
        node: nodes,
        input: vec![port("x")],
        output: vec![port("y")],
        initializer: vec![tensor_to_proto("w", &weights)],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto {
        version: Some(17),
        ..Default::default()
    };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset],
        graph: Some(graph),
        ..ModelProto::default()
    };
    onnx::encode_model(&model).to_vec()
}

/// Has a group of these devices, by itself, compute the branches; its report once the answer is
/// right.
fn computed_by(devices: &Value) -> Value {
    computed_for("fastest", devices)
}

/// The same of a group that prefers this.
fn computed_for(preferred: &str, devices: &Value) -> Value {
    let market = Market::up();
    let group = json!({ "group": devices });
    let limits = json!({ "memory_mib": MEMORY_MIB });
    let entries = [
        ("device", group),
        ("limits", limits),
        ("prefer", json!(preferred)),
    ];
    market.set_in_provider("provider-1", &entries);
    let model = market.path("branches.onnx");
    fs::write(&model, branches()).expect("a model is written");
    let count: usize = SIZES.iter().product();
    let values: Vec<f32> = (0..count).map(|it| (it % 31) as f32).collect();
    let input = Tensor::from_vec(SIZES, values.clone()).expect("as many as it has");
    let (input, out) = (
        format!("x={}", market.write("x.npy", &input)),
        market.path("out"),
    );
    let others = ["provider-2", "provider-3", "provider-4"];
    let others = others.map(|name| market.account_of(name));
    let mut arguments = vec!["submit", &model, "-i", &input, "-o", &out];
    arguments.extend(others.iter().flat_map(|other| ["--exclude", other]));
    let mut done = market.souk(&arguments).done();

    let turned = |at: usize| {
        let (row, column) = (at / SIZES[1], at % SIZES[1]);
        values[row * SIZES[1] + (column + SIZES[1] - DEPTH) % SIZES[1]]
    };
    let answer = floats(&market.folder().join("out/y.npy"));
    assert_eq!(answer.len(), count);
    assert!((0..count).all(|at| answer[at] == 2.0 * turned(at)));
    done["report"].take()
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_group_in_a_sandbox_shares_a_job_in_the_memory_it_was_sold() {
    let gpu = || json!({ "emulated": { "profile": "apple-m1-gpu" } });
    let report = computed_by(&json!([gpu(), gpu()]));
    let devices = report["devices"].as_object().expect("devices");
    assert_eq!(devices.len(), 2, "both had a branch: {devices:?}");
    let memory = report["memory"].as_object().expect("what memories held");
    let limit = |name: &str| memory[name]["limit_bytes"].as_u64();
    assert!(devices.keys().all(|name| memory.contains_key(name)));
    let whole = memory.keys().find(|name| !devices.contains_key(*name));
    assert_eq!(
        limit(whole.expect("the group's own")),
        Some(MEMORY_MIB << 20)
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_processor_in_a_sandbox_that_may_not_ask_for_its_memory_computes_in_a_group() {
    let cpu = || json!({ "cpu": { "threads": 1 } });
    let report = computed_by(&json!([cpu(), cpu()]));
    let devices = report["devices"].as_object().expect("devices");
    assert_eq!(devices.len(), 2, "both had a part: {devices:?}");
    // A branch each, or the rows of all products divided: then both are at each of these.
    let operators = |device: &Value| device["operators"].as_u64();
    let all: u64 = devices.values().filter_map(operators).sum();
    let products = 2 * DEPTH as u64;
    assert!(
        [products + 1, 2 * products + 1].contains(&all),
        "each once, or each by both: {devices:?}"
    );
}

#[test]
fn a_group_in_a_sandbox_makes_time_or_joules_small_as_its_owner_says() {
    let emulated = |profile: &str| json!({ "emulated": { "profile": profile } });
    let group = json!([emulated("nvidia-h100-sxm"), emulated("nvidia-t4")]);
    let [soon, few] = ["fastest", "greenest"].map(|preferred| computed_for(preferred, &group));
    let at_work = |report: &Value, name: &str| {
        let devices = report["devices"].as_object().expect("devices");
        let of = devices.iter().filter(|(device, _)| device.contains(name));
        of.map(|(_, device)| device["operators"].as_u64().unwrap_or(0))
            .sum::<u64>()
    };
    assert!(at_work(&soon, "h100") > 0, "{soon}");
    assert_eq!(at_work(&few, "h100"), 0, "{few}");
    assert!(at_work(&few, "t4") > 0, "{few}");
    let joules = |report: &Value| -> f64 {
        let devices = report["devices"].as_object().expect("devices").values();
        let each = devices.filter_map(|device| device["energy"]["modelled_joules"].as_f64());
        each.sum()
    };
    assert!(joules(&few) < joules(&soon), "{few} {soon}");
    let expected = few["against"]["expected_joules"].as_f64().expect("joules");
    assert!((expected / joules(&few) - 1.0).abs() < 0.1, "{few}");
}
