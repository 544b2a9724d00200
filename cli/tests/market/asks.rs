//! Tests that jobs are planned by the operators and types that asks (providers' offers) state and
//! not by what this machine could compile, and that an operator that a device refuses when it
//! compiles is planned around from then on. Also: the memory that planning a model of 10 GB takes.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use souk_node::memory::{DType, Tensor};
use souk_onnx::{
    self as onnx, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, ValueInfoProto,
};

use crate::common::{Market, Ran, SOUK, digits};

/// A matrix product's side, and how many of them make the model that no small machine holds.
const SIDE: usize = 8_192;
const PRODUCTS: usize = 40;

/// What planning it may hold, and what it may read: each weight once, to be named, and a little.
const PLAN_BYTES_MAX: u64 = 200 << 20;
const READ_BYTES_BESIDE: u64 = 64 << 20;

/// A model of these nodes from `x` to `y`.
fn model(nodes: Vec<NodeProto>, dtype: DType, weights: Vec<TensorProto>, side: usize) -> Vec<u8> {
    let port = |name: &str| {
        let dims = [1, side as i64].map(Dimension::new_fixed).to_vec();
        ValueInfoProto::new_tensor(name, dtype.onnx_code(), Some(dims))
    };
    let graph = GraphProto {
        name: Some("asked".to_owned()),
        node: nodes,
        input: vec![port("x")],
        output: vec![port("y")],
        initializer: weights,
        ..GraphProto::default()
    };
    let opset = |domain: Option<&str>, version| OperatorSetIdProto {
        domain: domain.map(str::to_owned),
        version: Some(version),
    };
    onnx::encode_model(&ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset(None, 17), opset(Some("com.example"), 1)],
        graph: Some(graph),
        ..ModelProto::default()
    })
    .to_vec()
}

/// Plans or submits a model of one input.
fn with(market: &Market, command: &str, model: &[u8], input: &Tensor, more: &[&str]) -> Ran {
    let path = market.path("asked.onnx");
    fs::write(&path, model).expect("a model is written");
    let input = format!("x={}", market.write("x.npy", input));
    let arguments = [command, &path, "-i", &input];
    market.souk(&[&arguments[..], more].concat())
}

/// Has providers run these operators alone.
fn run_only(market: &Market, names: [&str; 3], operators: &[&str]) {
    let limits = json!({ "operators": operators });
    let entry = || vec![("limits", limits.clone())];
    market.set_in_providers(names.map(|name| (name, entry())));
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn who_runs_an_operator_is_counted_before_anything_is_bought() {
    let market = Market::up();
    let fold = NodeProto {
        domain: Some("com.example".to_owned()),
        ..NodeProto::for_operator("Fold", &["x"], "y")
    };
    let input = Tensor::from_vec([1, 4], vec![0.0_f32; 4]).expect("as many as it has");
    let folding = model(vec![fold], DType::F32, Vec::new(), 4);
    for command in ["plan", "submit"] {
        let more: &[&str] = match command {
            "submit" => &["-o", "out"],
            _ => &[],
        };
        let refused = with(&market, command, &folding, &input, more);
        let error = refused.json()["error"].clone();
        let said = "no provider runs com.example.Fold of node \"Fold_1\" (0 of 4 asks)";
        assert_eq!(
            (&error["cause"], &error["exit_code"]),
            (&json!(said), &json!(4))
        );
    }

    // Three run one of the model's operators: they are no help where none may be cut off.
    run_only(
        &market,
        ["provider-1", "provider-2", "provider-3"],
        &["Relu"],
    );
    let images = format!("images={}", digits("images.npy").display());
    let digits = digits("digits.onnx").to_string_lossy().into_owned();
    let arguments = ["plan", &digits, "-i", &images, "--max-providers", "1"];
    let planned = market.souk(&arguments).done();
    let fourth = market.account_of("provider-4");
    assert_eq!(planned["parts"][0]["provider"], json!(fourth), "{planned}");
    let lacks = planned["not_eligible"].as_array().expect("a list");
    let lack = lacks.iter().find(|lack| lack["cause"] == "operators");
    let lack = lack.unwrap_or_else(|| panic!("{planned}"));
    assert_eq!(lack["asks"], 3);
    assert!(
        lack["examples"][0]
            .as_str()
            .is_some_and(|it| it.contains("runs no "))
    );
    let scarce = planned["scarce_operators"].as_array().expect("a list");
    assert!(
        scarce.contains(&json!({ "operator": "Gemm", "asks": 1 })),
        "{planned}"
    );
    assert!(
        scarce.iter().all(|it| it["operator"] != "Relu"),
        "{planned}"
    );
}

/// A product in 64-bit floats, which a tensor processor does not compute in.
fn doubles() -> (Vec<u8>, Tensor) {
    let nodes = vec![NodeProto::for_operator("Add", &["x", "x"], "y")];
    let input = Tensor::from_vec([1, 4], vec![1.0_f64; 4]).expect("as many as it has");
    (model(nodes, DType::F64, Vec::new(), 4), input)
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn what_a_device_refuses_when_it_compiles_is_planned_around_from_then_on() {
    let market = Market::up();
    let tensor = json!({ "emulated": { "profile": "google-tpu-v5p" } });
    market.set_in_provider("provider-2", &[("device", tensor), ("price", json!(1))]);
    let refuser = market.account_of("provider-2");
    let (model, input) = doubles();
    let out = market.path("out");
    let more = ["-o", &out, "--prefer", "cheapest", "--budget", "1"];
    let done = with(&market, "submit", &model, &input, &more).done();
    assert_eq!(
        done["plan"]["parts"][0]["provider"],
        json!(refuser),
        "{done}"
    );
    let told = done["receipts"].to_string();
    assert!(!told.contains(&refuser), "another ran it: {told}");
    let jobs = market.souk(&["job", "list"]).done();
    let job = jobs[0]["name"].as_str().expect("it has a name");
    let explained = market.souk(&["job", "explain", job]).done();
    let wrong = explained["went_wrong"].to_string();
    assert!(
        wrong.contains("operator Add"),
        "the buyer is told: {explained}"
    );

    // Its ask says so, over a restart as well.
    let plans_around = || {
        let planned = with(&market, "plan", &model, &input, &["--prefer", "cheapest"]).done();
        let lacks = planned["not_eligible"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        lacks
            .iter()
            .any(|lack| lack["cause"] == "refused" && lack["asks"] == 1)
            && planned["parts"][0]["provider"] != json!(refuser)
    };
    market.until(plans_around);
    market.set_in_provider("provider-2", &[("price", json!(2))]);
    market.until(plans_around);
    // What it does run, it is still bought for.
    let digits = market
        .submit_few("digits", &["--prefer", "cheapest"])
        .done();
    assert_eq!(digits["plan"]["parts"][0]["provider"], json!(refuser));
    market.assert_escrow_returns();
}

/// A model of 10 GB: its weights lie in a file without blocks.
fn huge(folder: &Path) -> Vec<u8> {
    let bytes = SIDE * SIDE * 4;
    let weights = File::create(folder.join("weights.bin")).expect("a file is made");
    weights
        .set_len((PRODUCTS * bytes) as u64)
        .expect("it may be sparse");
    let entry = |key: &str, value: String| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value),
    };
    let weight = |layer: usize| TensorProto {
        name: Some(format!("w{layer}")),
        data_type: Some(DType::F32.onnx_code()),
        dims: vec![SIDE as i64; 2],
        data_location: Some(1),
        external_data: vec![
            entry("location", "weights.bin".to_owned()),
            entry("offset", (layer * bytes).to_string()),
            entry("length", bytes.to_string()),
        ],
        ..TensorProto::default()
    };
    let between = |layer: usize| match layer {
        0 => "x".to_owned(),
        PRODUCTS => "y".to_owned(),
        layer => format!("h{layer}"),
    };
    let product = |layer: usize| {
        let inputs = [between(layer), format!("w{layer}")];
        NodeProto::for_operator("MatMul", &[&inputs[0], &inputs[1]], &between(layer + 1))
    };
    let nodes = (0..PRODUCTS).map(product).collect();
    model(nodes, DType::F32, (0..PRODUCTS).map(weight).collect(), SIDE)
}

/// The most that a process held, and what it read, once it ended.
#[cfg(target_os = "linux")]
fn watched(command: &mut Command) -> (Value, u64, u64) {
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let process = format!("/proc/{}", child.id());
    let (mut held, mut read) = (0, 0);
    let number = |text: &str, name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let digits = line.map(|it| it.chars().filter(char::is_ascii_digit).collect::<String>());
        digits.and_then(|it| it.parse().ok()).unwrap_or(0)
    };
    while child.try_wait().expect("it can be asked").is_none() {
        let status = fs::read_to_string(format!("{process}/status")).unwrap_or_default();
        held = held.max(number(&status, "VmHWM:") << 10);
        let io = fs::read_to_string(format!("{process}/io")).unwrap_or_default();
        read = read.max(number(&io, "rchar:"));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("it ended");
    let said = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    (said, held, read)
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "long: .ci/long runs it"]
fn a_model_of_ten_gigabytes_is_planned_in_little_memory_and_read_once() {
    let market = Market::up();
    // A card that has room for it.
    let card = json!({ "emulated": { "profile": "amd-mi300x" } });
    market.set_in_provider("provider-2", &[("device", card)]);
    let path = market.path("huge.onnx");
    fs::write(&path, huge(market.folder())).expect("a model is written");
    let input = Tensor::from_vec([1, SIDE], vec![0.0_f32; SIDE]).expect("as many as it has");
    let input = format!("x={}", market.write("x.npy", &input));
    let mut command = Command::new(SOUK);
    command.arg("--dir").arg(market.path("net"));
    command.args(["--output", "json", "plan", &path, "-i", &input]);
    let (planned, held, read) = watched(&mut command);
    let weights = (PRODUCTS * SIDE * SIDE * 4) as u64;
    assert!(weights > 10_000_000_000);
    assert_eq!(
        planned["parts"].as_array().map(Vec::len),
        Some(1),
        "{planned}"
    );
    assert!(held > 0 && held <= PLAN_BYTES_MAX, "{held} bytes at most");
    assert!(
        read >= weights && read < weights + READ_BYTES_BESIDE,
        "{read} bytes read"
    );
}

/// What a submission of the digits model says to a person.
fn told(market: &Market) -> String {
    let images = format!("images={}", digits("images.npy").display());
    let out = market.path("out");
    let mut command = Command::new(SOUK);
    command.arg("--dir").arg(market.path("net")).arg("submit");
    command
        .arg(digits("digits.onnx"))
        .args(["-i", &images, "-o", &out]);
    let ran = command
        .args(["--device", "H100"])
        .output()
        .expect("it runs");
    assert!(ran.status.success());
    [ran.stdout, ran.stderr]
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .concat()
}

#[test]
fn each_line_that_names_an_emulated_device_says_so() {
    let market = Market::up();
    let text = told(&market);
    let names = ["H100", "M3 Max", "EPYC 9654"];
    let bare = text.lines().filter(|line| {
        let named: usize = names.iter().map(|name| line.matches(name).count()).sum();
        named > line.matches("emulated").count()
    });
    assert_eq!(bare.collect::<Vec<_>>(), Vec::<&str>::new(), "{text}");
    assert!(text.contains("H100 SXM5 (emulated)"), "{text}");
    let of_devices = text.lines().skip_while(|line| *line != "devices");
    let device = of_devices.skip(1).find(|line| line.contains("busy "));
    let device = device.unwrap_or_else(|| panic!("no device is told: {text}"));
    assert!(device.contains("(emulated)"), "{device}");
}
