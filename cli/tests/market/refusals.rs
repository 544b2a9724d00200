//! Tests the answers to wrong input: one line with the cause, a hint, a documented exit code, and
//! no credits left in escrow.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use crate::common::{Market, SOUK, digits, souk};
use serde_json::Value;
use souk_node::memory::{DType, Tensor};
use souk_onnx::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode_model,
    tensor_to_proto,
};

/// Submits the digits model with these inputs and expects a refusal.
fn refused(market: &Market, model: &str, inputs: &[&str], more: &[&str]) -> (i32, String) {
    let out = market.path("out");
    let mut arguments = vec!["submit", model, "-o", &out];
    for input in inputs {
        arguments.extend(["-i", input]);
    }
    arguments.extend_from_slice(more);
    let ran = market.souk(&arguments);
    let error: Value = ran.json()["error"].clone();
    let cause = error["cause"].as_str().unwrap_or_default().to_owned();
    assert!(!cause.is_empty() && !cause.contains('\n'), "{}", ran.stdout);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert_eq!(error["exit_code"], ran.code);
    (ran.code, cause)
}

/// Asserts a refusal by its exit code and by words of its cause.
macro_rules! assert_refused {
    ($refusal:expr, $code:literal, $($word:expr),+) => {
        let (code, cause) = $refusal;
        assert_eq!(code, $code, "{cause}");
        $(assert!(cause.contains($word), "\"{cause}\" says {:?}", $word);)+
    };
}

#[test]
fn every_bad_input_is_named() {
    let market = Market::up();
    let model = digits("digits.onnx").to_string_lossy().into_owned();
    let images = format!("images={}", digits("images.npy").display());
    let images = images.as_str();
    let float = |dims: &[usize]| {
        let count = dims.iter().product();
        Tensor::from_vec(dims.to_vec(), vec![0.0_f32; count]).unwrap()
    };

    let nothing = market.path("nothing.onnx");
    assert_refused!(
        refused(&market, &nothing, &[images], &[]),
        3,
        "nothing.onnx"
    );

    let text = market.path("text.onnx");
    fs::write(&text, "this is no model").unwrap();
    assert_refused!(refused(&market, &text, &[images], &[]), 3, "ONNX");

    let half = market.path("half.onnx");
    let whole = fs::read(&model).unwrap();
    fs::write(&half, &whole[..whole.len() / 2]).unwrap();
    assert_refused!(refused(&market, &half, &[images], &[]), 3, "");

    let wrong = images.replace("images=", "imagez=");
    assert_refused!(
        refused(&market, &model, &[&wrong], &[]),
        3,
        "imagez",
        "images"
    );
    assert_refused!(refused(&market, &model, &[], &[]), 3, "images");
    assert_refused!(refused(&market, &model, &["images"], &[]), 3, "images");

    let ints = Tensor::from_vec([1, 1, 8, 8], vec![0_i64; 64]).unwrap();
    let ints = format!("images={}", market.write("ints.npy", &ints));
    assert_refused!(refused(&market, &model, &[&ints], &[]), 3, "images", "i64");

    let flat = format!("images={}", market.write("flat.npy", &float(&[64])));
    assert_refused!(
        refused(&market, &model, &[&flat], &[]),
        3,
        "images",
        "shape"
    );

    let cut = market.write("cut.npy", &float(&[2, 1, 8, 8]));
    let bytes = fs::read(&cut).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 10]).unwrap();
    let cut = format!("images={cut}");
    assert_refused!(refused(&market, &model, &[&cut], &[]), 3, "cut.npy");

    assert_refused!(
        refused(&market, &model, &[images], &["--budget", "0.000001"]),
        9,
        "0.000001",
        "cheapest"
    );
    assert_refused!(
        refused(&market, &model, &[images], &["--budget", "0.001"]),
        9,
        "0.001"
    );
    assert_refused!(
        refused(&market, &model, &[images], &["--max-price", "0.0001"]),
        4,
        "4 on offer",
        "EPYC",
        "0.0001"
    );
    assert_refused!(
        refused(
            &market,
            &model,
            &[images],
            &["--min-providers", "9", "--wait", "0"]
        ),
        4,
        "9"
    );
    assert_refused!(
        refused(&market, &model, &[images], &["--budget", "-1"]),
        3,
        "-1"
    );

    let balance = market.souk(&["balance"]).done();
    assert_eq!(
        balance["totals"]["escrow"], 0,
        "no refusal leaves escrow behind"
    );
}

/// A model that takes rows of a table of ten by what its input holds.
fn table() -> Vec<u8> {
    let rows = Tensor::from_vec([10, 4], vec![0.5_f32; 40]).expect("ten rows of four");
    let declared =
        |name: &str, dtype: DType| ValueInfoProto::new_tensor(name, dtype.onnx_code(), None);
    let graph = GraphProto {
        node: vec![NodeProto::for_operator("Gather", &["table", "ids"], "y")],
        name: Some("table".to_owned()),
        input: vec![declared("ids", DType::I64)],
        output: vec![declared("y", DType::F32)],
        initializer: vec![tensor_to_proto("table", &rows)],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto {
        domain: None,
        version: Some(18),
    };
    let model = ModelProto {
        ir_version: Some(10),
        opset_import: vec![opset],
        graph: Some(graph),
        ..ModelProto::default()
    };
    encode_model(&model).to_vec()
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn an_index_past_the_end_is_refused_before_anything_is_bought() {
    let market = Market::up();
    let model = market.path("table.onnx");
    fs::write(&model, table()).unwrap();
    let before = market.souk(&["balance"]).done();
    for bad in [10, -11, 999_999] {
        let ids = Tensor::from_vec([3], vec![1, bad, 9_i64]).unwrap();
        let ids = format!("ids={}", market.write("ids.npy", &ids));
        let bad = format!("index {bad}");
        assert_refused!(
            refused(&market, &model, &[&ids], &[]),
            3,
            "ids",
            &bad,
            "10 places"
        );
    }
    fs::create_dir(market.folder().join("requests")).unwrap();
    for (number, last) in [(0, 9_i64), (1, 10)] {
        let ids = Tensor::from_vec([2], vec![1, last]).unwrap();
        market.write(&format!("requests/{number}.npy"), &ids);
    }
    let stream = format!("ids={}", market.path("requests"));
    let more = ["--stream", &stream];
    assert_refused!(refused(&market, &model, &[], &more), 3, "ids", "index 10");
    assert_eq!(
        market.souk(&["balance"]).done(),
        before,
        "nobody is bought from or blamed"
    );
    assert_eq!(
        market.souk(&["job", "list"]).done(),
        Value::Array(Vec::new())
    );
    let ids = Tensor::from_vec([2], vec![-10_i64, 9]).unwrap();
    let ids = format!("ids={}", market.write("ids.npy", &ids));
    let out = market.path("out");
    market
        .souk(&["submit", &model, "-i", &ids, "-o", &out])
        .done();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn an_empty_batch_runs_or_is_refused_by_name() {
    let market = Market::up();
    let model = digits("digits.onnx").to_string_lossy().into_owned();
    let none = Tensor::from_vec([0, 1, 8, 8], Vec::<f32>::new()).unwrap();
    let none = format!("images={}", market.write("none.npy", &none));
    let out = market.path("out");
    let ran = market.souk(&["submit", &model, "-i", &none, "-o", &out]);
    let answer = ran.json();
    if ran.code == 0 {
        assert_eq!(
            answer["outputs"]["logits"]["shape"],
            serde_json::json!([0, 10])
        );
    } else {
        assert!([3, 4, 6].contains(&ran.code), "{}", ran.stdout);
        assert!(
            answer["error"]["cause"]
                .as_str()
                .is_some_and(|cause| !cause.is_empty())
        );
    }
}

#[test]
fn an_operator_no_device_runs_is_named_with_its_node() {
    let market = Market::up();
    // Relu's name, as often as it stands in the file, is made one of no operator.
    let mut model = fs::read(digits("digits.onnx")).unwrap();
    let mut at = 0;
    while let Some(found) = model[at..].windows(6).position(|w| w == b"\x22\x04Relu") {
        model[at + found + 2..at + found + 6].copy_from_slice(b"Rezu");
        at += found + 6;
    }
    assert!(at > 0, "the model has a Relu");
    let path = market.path("rezu.onnx");
    fs::write(&path, model).unwrap();
    let images = format!("images={}", digits("images.npy").display());
    assert_refused!(refused(&market, &path, &[&images], &[]), 4, "Rezu", "node");
}

#[test]
fn a_market_that_is_not_there_is_said_to_be_so() {
    let folder = tempfile::tempdir().unwrap();
    let ran = souk(folder.path(), &["book"]);
    assert_eq!(
        (ran.code, ran.json()["error"]["kind"].as_str()),
        (8, Some("state"))
    );
    let ran = souk(folder.path(), &["testnet", "down"]);
    assert_eq!(ran.code, 8);
    assert!(
        ran.stdout.contains("no testnet is running"),
        "{}",
        ran.stdout
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn without_validators_the_market_is_unreachable() {
    let market = Market::up();
    market.souk(&["testnet", "down"]).done();
    let ran = market.souk(&["book"]);
    assert_eq!(ran.code, 5, "{}", ran.stdout);
    assert!(ran.stdout.contains("validators"), "{}", ran.stdout);
}

#[test]
fn a_folder_holds_one_testnet_at_a_time_and_resumes() {
    let market = Market::up();
    let second = market.souk(&["testnet", "up"]);
    assert_eq!(second.code, 8);
    assert!(
        second.stdout.contains("already running"),
        "{}",
        second.stdout
    );

    let done = market.submit_digits("out", &[]).done();
    market.souk(&["testnet", "down"]).done();
    assert!(market.processes("").is_empty(), "no process is left");
    market.souk(&["testnet", "up", "--detach"]).done();
    // A provider that was too slow keeps the escrow of its lease until the market closes it.
    market.assert_escrow_returns();
    let after = market.souk(&["balance"]).done();
    let paid: u64 = done["receipts"][0]["body"]["amount"].as_u64().unwrap();
    let buyer = after["accounts"]
        .as_array()
        .unwrap()
        .iter()
        .find(|a| a["name"] == "buyer");
    let left = buyer.unwrap()["available"].as_u64().unwrap();
    assert_eq!(
        left,
        100_000_000 - paid,
        "what was paid stays paid over a restart"
    );
}

#[test]
fn a_folder_of_another_version_is_refused_by_number() {
    let market = Market::with_one_provider();
    market.souk(&["testnet", "down"]).done();
    let file = market.folder().join("net/market.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("\"format\": 2", "\"format\": 1", 1)).unwrap();
    let ran = market.souk(&["testnet", "up"]);
    assert_eq!(ran.code, 8, "{}", ran.stdout);
    assert!(
        ran.stdout
            .contains("has format 1, this souk reads format 2"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_port_in_use_is_named() {
    let market = Market::with_one_provider();
    market.souk(&["testnet", "down"]).done();
    let file = market.folder().join("net/validator-1/validator.json");
    let text = fs::read_to_string(&file).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    let port = config["listen"]
        .as_str()
        .unwrap()
        .rsplit('/')
        .next()
        .unwrap();
    let _taken = TcpListener::bind(("127.0.0.1", port.parse().unwrap())).unwrap();
    let ran = market.souk(&["testnet", "up"]);
    assert_eq!(ran.code, 5, "{}", ran.stdout);
    assert!(
        ran.stdout.contains("in use") && ran.stdout.contains(port),
        "{}",
        ran.stdout
    );
    assert!(
        market.processes("").is_empty(),
        "the nodes that did start are stopped again"
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn logs_that_cannot_be_written_stop_nothing() {
    let market = Market::up();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let asked = Command::new(SOUK)
        .args(["--dir", &market.path("net"), "--json", "balance"])
        .env("SOUK_LOG", "trace")
        .stderr(full)
        .output()
        .unwrap();
    assert!(asked.status.success(), "{:?}", asked.status);
    let answer: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!(answer["totals"]["escrow"], 0);
}
