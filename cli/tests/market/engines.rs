//! Tests a CPU that is sold with ONNX Runtime as its second engine: in the sandbox of a lease, it
//! times both and reports which one ran.

use std::fs;

use serde_json::json;
use souk_node::memory::{DType, Tensor};
use souk_onnx as onnx;
use souk_onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto,
    tensor_to_proto,
};

use crate::common::{Market, floats};
use crate::hand::Hand;
use crate::seller::{Seller, until};

/// Requests: so many that those that one engine runs alone are not most of them.
const REQUESTS: usize = 30;
/// Rows of a request, and columns, which are also the sides of each layer.
const SIZES: [usize; 2] = [256, 512];
/// Layers: enough work that a hundred milliseconds of it are done in a third of the requests.
const LAYERS: usize = 6;

/// Layers without biases, so that twice the input gives twice the output.
fn layers() -> Vec<u8> {
    let side = SIZES[1];
    let weights: Vec<f32> = (0..side * side)
        .map(|it| ((it % 97) as f32 - 48.0) * 1e-3)
        .collect();
    let weights = Tensor::from_vec([side, side], weights).expect("as many as it has");
    let mut last = "x".to_owned();
    let mut nodes = Vec::new();
    let mut push = |operator: &str, inputs: Vec<String>, output: String| {
        nodes.push(NodeProto {
            op_type: Some(operator.to_owned()),
            name: Some(output.clone()),
            input: inputs,
            output: vec![output.clone()],
            ..NodeProto::default()
        });
        output
    };
    for layer in 0..LAYERS {
        let product = push(
            "MatMul",
            vec![last, "w".to_owned()],
            format!("product{layer}"),
        );
        let name = if layer + 1 == LAYERS {
            "y".to_owned()
        } else {
            format!("lit{layer}")
        };
        last = push("Relu", vec![product], name);
    }
    let port = |name: &str| {
        let dims = SIZES.map(|size| Dimension::new_fixed(size as i64)).to_vec();
        ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), Some(dims))
    };
    let graph = GraphProto {
        name: Some("layers".to_owned()),
        node: nodes,
        input: vec![port("x")],
        output: vec![port("y")],
        initializer: vec![tensor_to_proto("w", &weights)],
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

/// A request: so many times the first.
fn request(times: usize) -> Tensor {
    let count: usize = SIZES.iter().product();
    let values = (0..count).map(|it| (it % 31) as f32 * times as f32);
    Tensor::from_vec(SIZES, values.collect::<Vec<f32>>()).expect("as many as it has")
}

#[test]
fn a_cpu_in_a_sandbox_times_a_library_and_says_which_engine_ran() {
    let Ok(library) = std::env::var("SOUK_TEST_ONNXRUNTIME") else {
        eprintln!("SKIPPED: no ONNX Runtime library; SOUK_TEST_ONNXRUNTIME can name one");
        return;
    };
    let market = Market::up();
    // The testnet's own real device: whatever is asked for real ones goes to the seller.
    let emulated = json!({ "emulated": { "profile": "amd-epyc-9654" } });
    market.set_in_provider("provider-1", &[("device", emulated)]);
    let mut seller = Seller::init(&market, "beside");
    seller.sell_cpu_beside(&library);
    seller.start();
    let hand = Hand::join(&market);
    until("its ask is there", || {
        hand.listing(seller.account()).is_some()
    });

    let model = market.path("layers.onnx");
    fs::write(&model, layers()).expect("a model is written");
    fs::create_dir_all(market.path("requests")).expect("a folder is made");
    for number in 0..REQUESTS {
        market.write(&format!("requests/{number:03}.npy"), &request(number + 1));
    }
    let (stream, out) = (format!("x={}", market.path("requests")), market.path("out"));
    let arguments = ["submit", &model, "--real", "--stream", &stream, "-o", &out];
    let done = market.souk(&arguments).done();

    let devices = done["report"]["devices"].as_object().expect("devices");
    assert_eq!(devices.len(), 1, "{devices:?}");
    let engines = &devices.values().next().expect("one")["engines"];
    let tasks = |engine: &str| engines[engine].as_u64().unwrap_or(0);
    let (own, other) = (tasks("own"), tasks("onnxruntime"));
    assert_eq!(own + other, REQUESTS as u64, "{engines}");
    assert!(own >= 4 && other >= 3, "both were timed: {engines}");

    let answer = |number: usize| {
        let path = market.folder().join(format!("out/{number:03}/y.npy"));
        floats(&path)
    };
    let first = answer(0);
    let largest = first.iter().fold(0f32, |most, value| most.max(value.abs()));
    assert!(largest > 0.0);
    for number in 1..REQUESTS {
        let times = (number + 1) as f32;
        let alike =
            |(one, value): (&f32, &f32)| (one * times - value).abs() <= 1e-4 * times * largest;
        assert!(
            first.iter().zip(&answer(number)).all(alike),
            "request {number}"
        );
    }

    // The library was opened before the rules are in force, and all of them stand.
    let policy = &seller.status()["isolation"]["policy"];
    let standing = policy["enforced"].to_string();
    for rule in [
        "one thread",
        "a list of system calls",
        "reading a file is refused",
    ] {
        assert!(standing.contains(rule), "{rule}: {policy}");
    }
}
