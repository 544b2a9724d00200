//! Tests custom operators: kernels in WGSL or WebAssembly that a buyer wrote, which run on the
//! devices and in the processes of providers.

use std::path::Path;

use serde_json::{Value, json};
use souk_node::memory::Tensor;
use souk_onnx as onnx;

use crate::common::{Market, floats};
use crate::hand::Hand;
use crate::seller::{Seller, until};

/// Samples of one channel.
const SIGNAL: [f32; 6] = [1.0, 9.0, 2.0, 3.0, -7.0, 4.0];

/// Gives back twice what it is given.
const DOUBLE: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) { y[at.x] = x[at.x] + x[at.x]; }";

/// The example's graph: a kernel in WebAssembly between two other nodes.
fn example() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../devices/kernels/median.onnx");
    std::fs::read(path).expect("the example is there")
}

/// The same graph with another kernel in its middle, which doubles.
fn doubling() -> Vec<u8> {
    let mut model = onnx::decode_model(example().into()).expect("the example is a model");
    let graph = model.graph.as_mut().expect("a model has a graph");
    graph.node[1].op_type = Some("Wgsl".to_owned());
    graph.initializer[0].dims = vec![DOUBLE.len() as i64];
    graph.initializer[0].raw_data = Some(DOUBLE.as_bytes().to_vec().into());
    onnx::encode_model(&model).to_vec()
}

/// Sends a graph through the market.
fn submit(market: &Market, model: &[u8], options: &[&str]) -> crate::common::Ran {
    let path = market.path("kernel.onnx");
    std::fs::write(&path, model).expect("a file is written");
    let signal = Tensor::from_vec([1, SIGNAL.len()], SIGNAL.to_vec());
    let signal = signal.expect("as many values as the shape has");
    let input = format!("x={}", market.write("signal.npy", &signal));
    let out = market.path("out");
    let mut words = vec!["submit", &path, "-i", &input, "-o", &out];
    words.extend_from_slice(options);
    market.souk(&words)
}

fn refused_for(market: &Market, model: &[u8], language: &str) {
    let refused = submit(market, model, &[]);
    assert_ne!(refused.code, 0);
    let said = format!("runs no kernels in {language}");
    assert!(refused.stdout.contains(&said), "{}", refused.stdout);
    market.assert_escrow_returns();
}

/// Has every provider of the market refuse kernels in WebAssembly.
fn refuse_wasm(market: &Market) {
    for number in 1..=4 {
        let limits: Value = json!({ "wasm": false });
        market.set_in_provider(&format!("provider-{number}"), &[("limits", limits)]);
    }
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_kernel_that_no_provider_runs_is_refused_before_anything_is_bought() {
    let market = Market::up();
    refused_for(&market, &doubling(), "wgsl");
    refuse_wasm(&market);
    refused_for(&market, &example(), "wasm");
}

#[test]
fn a_shader_of_the_buyers_own_runs_on_a_gpu_that_is_sold() {
    if std::env::var_os("SOUK_TEST_GPU").is_none() {
        eprintln!("SKIPPED: SOUK_TEST_GPU is not set");
        return;
    }
    let market = Market::up();
    let mut seller = Seller::init(&market, "shader");
    seller.sell_gpu("llvmpipe");
    seller.start();
    let hand = Hand::join(&market);
    until("its ask is there", || {
        hand.listing(seller.account()).is_some()
    });
    let done = submit(&market, &doubling(), &[]).done();
    let made = floats(&market.folder().join("out/y.npy"));
    assert_eq!(made, SIGNAL.map(|value| 2.0 * value));
    let device = done["plan"]["parts"][0]["device"].as_str().unwrap();
    assert!(device.contains("llvmpipe"), "{device}");
    market.assert_escrow_returns();
}

#[test]
fn a_module_of_the_buyers_own_runs_in_a_providers_process() {
    let market = Market::up();
    let done = submit(&market, &example(), &[]).done();
    // The median of each three.
    let made = floats(&market.folder().join("out/y.npy"));
    assert_eq!(made, [1.0, 2.0, 3.0, 2.0, 3.0, 4.0]);
    assert_eq!(done["receipts"].as_array().map(Vec::len), Some(1));
    market.assert_escrow_returns();
}
