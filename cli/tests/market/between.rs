//! Tests jobs of three parts in which one provider runs the first and the last part, and another
//! the part between: which tensors go from provider to provider, and which results are kept if the
//! middle part fails or its provider takes no tensor.

use std::process::Command;

use serde_json::{Value, json};
use souk_node::market::Credits;
use souk_node::memory::{DType, Tensor};
use souk_onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode_model,
    tensor_to_proto,
};

use crate::common::{Market, SOUK, floats, kill};
use crate::hand::Hand;

/// Rows and columns of what goes through.
const ROWS: usize = 64;
const SIDE: usize = 512;

/// Steps before and after the products: cheap to start on a slow device, dear on a fast one.
const STEPS: [&str; 8] = ["Neg", "Abs", "Tanh", "Relu", "Neg", "Abs", "Tanh", "Relu"];

/// Products between: the other way round.
const PRODUCTS: usize = 4;

/// Devices and prices under which the cheapest plan goes to and fro.
const SOLD: [(&str, &str, u64); 4] = [
    ("provider-1", "sifive-p550", 1_000),
    ("provider-2", "nvidia-h100-sxm", 100_000),
    ("provider-3", "nvidia-h100-sxm", 120_000),
    ("provider-4", "sifive-p550", 1_200),
];

/// The notice of a lease that another buyer takes over.
const NOTICE_SECONDS: u64 = 2;

/// Light steps, heavy products, light steps and then so many additions, each of a weight of its
/// own.
fn model(additions: usize) -> Vec<u8> {
    let weight = vec![0.01_f32; SIDE * SIDE];
    let weight = Tensor::from_vec([SIDE, SIDE], weight).expect("a square is full");
    let mut weights = vec![tensor_to_proto("w", &weight)];
    let mut nodes: Vec<NodeProto> = Vec::new();
    let products = std::iter::repeat_n("MatMul", PRODUCTS);
    let additions = std::iter::repeat_n("Add", additions);
    for operator in STEPS
        .into_iter()
        .chain(products)
        .chain(STEPS)
        .chain(additions)
    {
        let last = nodes.last().map_or("x", |node| node.output[0].as_str());
        let mut input = vec![last.to_owned()];
        input.extend((operator == "MatMul").then(|| "w".to_owned()));
        if operator == "Add" {
            let name = format!("b{}", nodes.len());
            let added = vec![nodes.len() as f32; ROWS * SIDE];
            let added = Tensor::from_vec([ROWS, SIDE], added).expect("as many as it says");
            weights.push(tensor_to_proto(&name, &added));
            input.push(name);
        }
        let output = vec![format!("v{}", nodes.len())];
        nodes.push(NodeProto {
            op_type: Some(operator.to_owned()),
            input,
            output,
            ..NodeProto::default()
        });
    }
    let port = |name: &str| {
        let dims = [ROWS, SIDE].map(|size| Dimension::new_fixed(size as i64));
        ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), Some(dims.to_vec()))
    };
    let last = nodes.last().expect("there are steps").output[0].clone();
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            name: Some("to and fro".to_owned()),
            input: vec![port("x")],
            output: vec![port(&last)],
            initializer: weights,
            node: nodes,
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    };
    encode_model(&model).to_vec()
}

/// A market in which the model's cheapest plan has three parts on two providers.
fn market() -> Market {
    market_for(0)
}

/// The same of a model with additions at its end.
fn market_for(additions: usize) -> Market {
    let market = Market::up();
    market.set_in_providers(SOLD.map(|(name, profile, price)| {
        let device = json!({ "emulated": { "profile": profile } });
        (name, vec![("device", device), ("price", price.into())])
    }));
    std::fs::write(market.folder().join("model.onnx"), model(additions))
        .expect("a file is written");
    let rows = (0..ROWS * SIDE).map(|index| (index % 7) as f32 / 7.0);
    let rows = Tensor::from_vec([ROWS, SIDE], rows.collect()).expect("as many as it says");
    market.write("x.npy", &rows);
    market
}

fn submit(market: &Market, out: &str, more: &[&str]) -> Value {
    let input = format!("x={}", market.path("x.npy"));
    let (model, out) = (market.path("model.onnx"), market.path(out));
    let words = ["submit", &model, "-i", &input, "-o", &out];
    let cheapest = ["--prefer", "cheapest"];
    market.souk(&[&words[..], &cheapest, more].concat()).done()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().expect("a list").clone()
}

fn output(market: &Market, out: &str) -> Vec<f32> {
    let files = std::fs::read_dir(market.folder().join(out)).expect("outputs are written");
    let paths = files.map(|file| file.expect("the folder can be read").path());
    let mut arrays = paths.filter(|path| path.extension().is_some_and(|it| it == "npy"));
    floats(&arrays.next().expect("there is one output"))
}

/// The accounts of a plan's three parts, the first of which runs the last too.
fn to_and_fro(market: &Market, job: &Value) -> (Value, Value) {
    let parts = list(&job["plan"]["parts"]);
    let planned: Vec<&Value> = parts.iter().map(|part| &part["provider"]).collect();
    assert_eq!(planned.len(), 3, "{}", job["plan"]);
    assert_eq!(planned[0], planned[2], "the first runs the last part too");
    assert_eq!(*planned[0], *market.account_of("provider-1"));
    assert_eq!(*planned[1], *market.account_of("provider-2"));
    (planned[0].clone(), planned[1].clone())
}

/// Asserts that the first part was run once, billed alone, and read by what was bought afterwards
/// of others than `failed`.
fn assert_first_part_kept(first: &Value, again: &Value, maker: &Value, failed: &Value) {
    let made = made_first(first, again, maker);
    let bodies = list(&again["receipts"])
        .into_iter()
        .map(|receipt| receipt["body"].clone());
    let rest: Vec<Value> = bodies.filter(|body| !made.contains(body)).collect();
    assert_eq!(made.len(), 1, "the input was read by one part, once");
    assert_eq!(made[0]["provider"], *maker);
    let crossed = list(&made[0]["outputs"]);
    assert_eq!(crossed.len(), 1, "the first part and no other was billed");
    let reads = |body: &Value| list(&body["inputs"]).contains(&crossed[0]);
    assert!(rest.iter().any(reads), "what it gave was read by the rest");
    let of_others = |body: &Value| body["job"] != made[0]["job"] && body["provider"] != *failed;
    assert!(rest.iter().all(of_others), "the rest was bought as such");
}

/// What was billed for the part that reads what the first part of `first` read.
fn made_first(first: &Value, again: &Value, maker: &Value) -> Vec<Value> {
    let given = list(&first["receipts"])
        .iter()
        .find(|receipt| receipt["body"]["provider"] == *maker)
        .map(|receipt| list(&receipt["body"]["inputs"])[0].clone())
        .expect("the first part has a receipt");
    let receipts = list(&again["receipts"]).into_iter();
    let bodies = receipts.map(|receipt| receipt["body"].clone());
    bodies
        .filter(|body| list(&body["inputs"]).contains(&given))
        .collect()
}

/// What the trace of a job says happened on the device that began first: name, category, start and
/// end.
fn first_device(trace: &str) -> Vec<(String, String, u64, u64)> {
    let text = std::fs::read_to_string(trace).expect("a trace was written");
    let trace: Value = serde_json::from_str(&text).expect("a trace is JSON");
    let events = list(&trace["traceEvents"]);
    let spans = || events.iter().filter(|event| event["ph"] == "X");
    let start = |event: &Value| event["ts"].as_u64().expect("a time");
    let computing = spans().filter(|event| event["cat"] == "compute");
    let first = computing.min_by_key(|event| start(event));
    let device = first.expect("something was computed")["pid"].clone();
    let told = |event: &Value| {
        let text = |name: &str| event[name].as_str().expect("a text").to_owned();
        let length = event["dur"].as_u64().expect("a time");
        let start = start(event);
        (text("name"), text("cat"), start, start + length)
    };
    let own = spans().filter(|event| event["pid"] == device);
    own.map(told).collect()
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn what_a_later_part_wants_comes_while_the_first_one_runs() {
    // 2 MiB of weights for the last part, beside the 1 MiB that the part between waits for.
    let market = market_for(16);
    let trace = market.path("trace.json");
    let slowly = ["--upload-limit", "384KiB", "--trace", &trace];
    let job = submit(&market, "out", &slowly);
    let parts = list(&job["plan"]["parts"]);
    let by = |part: &Value| part["provider"].clone();
    let ends = (by(&parts[0]), by(parts.last().expect("a plan has parts")));
    assert_eq!(ends.0, ends.1, "the first runs the last part too");
    assert!(parts.iter().any(|part| by(part) != ends.0), "but not all");
    let spans = first_device(&trace);
    let of = |kind: &str| {
        let spans = spans.iter().filter(|(_, category, ..)| category == kind);
        let mut times: Vec<(u64, u64)> = spans.map(|(.., start, end)| (*start, *end)).collect();
        times.sort_unstable();
        times
    };
    let (computed, moved) = (of("compute"), of("transfer-in"));
    let weights = spans.iter().find(|(name, ..)| name == "weights");
    let (.., asked, came) = weights.expect("the last part has weights");
    assert!(
        *came > computed[0].0,
        "the first part did not wait for them"
    );
    assert!(moved[0].1 <= *asked, "what it needs came before: {spans:?}");
    let last = computed.last().expect("it ran several parts");
    assert!(last.0 >= *came, "and the last part had them");
    // What comes late is right: the same in one piece.
    let alone = ["--max-providers", "1"];
    submit(&market, "alone", &alone);
    let (parted, whole) = (output(&market, "out"), output(&market, "alone"));
    assert!(
        parted
            .iter()
            .zip(&whole)
            .all(|(a, b)| (a - b).abs() <= 1e-3)
    );
    market.assert_escrow_returns();
}

/// Who signed for a job.
fn providers(job: &Value) -> Vec<String> {
    let receipts = list(&job["receipts"]);
    let provider = |receipt: &Value| receipt["body"]["provider"].to_string();
    let mut providers: Vec<String> = receipts.iter().map(provider).collect();
    providers.sort();
    providers
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_tensor_that_was_not_taken_goes_through_the_buyer() {
    let market = market();
    let first = submit(&market, "first", &[]);
    to_and_fro(&market, &first);
    market.make_faulty("provider-2", "deaf");
    let again = submit(&market, "again", &[]);
    assert_eq!(providers(&again), providers(&first), "nobody failed");
    assert_eq!(output(&market, "again"), output(&market, "first"));
    market.assert_escrow_returns();
}

/// Requests of a stream, and how many of them are under way at a time.
const REQUESTS: usize = 4;

/// Writes requests, no two alike, and streams them; what it printed.
fn stream(market: &Market, out: &str, more: &[&str]) -> Value {
    std::fs::create_dir_all(market.folder().join("requests")).expect("a folder is made");
    for number in 0..REQUESTS {
        let rows = (0..ROWS * SIDE).map(|index| ((index + number) % 7) as f32 / 7.0);
        let rows = Tensor::from_vec([ROWS, SIDE], rows.collect()).expect("as many as it says");
        market.write(&format!("requests/{number:03}.npy"), &rows);
    }
    let (model, out) = (market.path("model.onnx"), market.path(out));
    let requests = format!("x={}", market.path("requests"));
    let words = ["submit", &model, "--stream", &requests, "-o", &out];
    let cheapest = ["--prefer", "cheapest"];
    market.souk(&[&words[..], &cheapest, more].concat()).done()
}

/// Asserts that two streams gave the same answers, but for rounding.
fn assert_same_answers(market: &Market, one: &str, other: &str) {
    for number in 0..REQUESTS {
        let [a, b] = [one, other].map(|out| output(market, &format!("{out}/{number:03}")));
        assert!(
            a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-3),
            "{number}"
        );
    }
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn what_later_parts_of_a_stream_want_comes_while_its_first_requests_run() {
    let market = market_for(16);
    let trace = market.path("trace.json");
    let slowly = ["--upload-limit", "384KiB", "--trace", &trace];
    let done = stream(&market, "out", &slowly);
    let parts = list(&done["plan"]["parts"]);
    let by = |part: &Value| part["provider"].clone();
    let ends = (by(&parts[0]), by(parts.last().expect("a plan has parts")));
    assert_eq!(ends.0, ends.1, "the first runs the last part too");
    assert!(parts.iter().any(|part| by(part) != ends.0), "but not all");
    let spans = first_device(&trace);
    let computed = spans.iter().filter(|(_, kind, ..)| kind == "compute");
    let mut computed: Vec<(u64, u64)> = computed.map(|(.., start, end)| (*start, *end)).collect();
    computed.sort_unstable();
    let weights = spans
        .iter()
        .filter(|(name, ..)| name.starts_with("weights"));
    let came = weights.map(|(.., end)| *end).max();
    let came = came.expect("the last part has weights");
    assert!(computed[0].0 < came, "the first part did not wait for them");
    let last = computed.last().expect("it ran several parts");
    assert!(last.0 >= came, "and the last part had them");
    // What comes late is right: the same in one piece.
    stream(&market, "alone", &["--max-providers", "1"]);
    assert_same_answers(&market, "out", "alone");
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_tensor_of_a_stream_that_was_not_taken_goes_through_the_buyer() {
    let market = market();
    let first = stream(&market, "first", &[]);
    market.make_faulty("provider-2", "deaf");
    let again = stream(&market, "again", &[]);
    assert_eq!(providers(&again), providers(&first), "nobody failed");
    assert_same_answers(&market, "again", "first");
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn who_takes_no_tensor_of_a_stream_is_done_without_and_not_paid() {
    let market = market();
    stream(&market, "first", &[]);
    let shut = market.account_of("provider-2");
    market.make_faulty("provider-2", "shut");
    let again = stream(&market, "again", &[]);
    assert_same_answers(&market, "again", "first");
    let receipts = list(&again["receipts"]);
    let mut bodies = receipts.iter().map(|receipt| &receipt["body"]);
    assert!(bodies.all(|body| body["provider"] != shut), "{again}");
    // Who ran the parts before is not refused what that costs.
    let accounts = list(&again["after"]["accounts"]);
    let disputed = |account: &Value| account["reputation"]["disputed"].as_u64();
    assert_eq!(
        accounts.iter().filter_map(disputed).sum::<u64>(),
        0,
        "{again}"
    );
    market.assert_escrow_returns();
}

#[test]
fn who_takes_no_tensor_is_done_without_and_the_buyer_says_why() {
    let market = market();
    let first = submit(&market, "first", &[]);
    to_and_fro(&market, &first);
    market.make_faulty("provider-2", "shut");
    let input = format!("x={}", market.path("x.npy"));
    let (model, out) = (market.path("model.onnx"), market.path("again"));
    let again = Command::new(SOUK)
        .args(["--dir", &market.path("net"), "submit", &model])
        .args(["-i", &input, "-o", &out, "--prefer", "cheapest"])
        .output()
        .expect("the binary runs");
    let told = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success(), "{told}");
    // By its own provider, at once, and not since its lease was over.
    let why = told.lines().find(|line| line.contains("continues without"));
    let why = why.unwrap_or_else(|| panic!("{told}"));
    assert!(why.contains("it accepts v7 neither from"), "{why}");
    assert!(why.contains("it does not wait for the tensor"), "{why}");
    assert!(why.contains("1 value computed so far: kept"), "{why}");
    assert_eq!(output(&market, "again"), output(&market, "first"));
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_part_before_the_one_that_failed_is_kept_by_its_provider() {
    let market = market();
    let first = submit(&market, "first", &[]);
    let (maker, failed) = to_and_fro(&market, &first);
    market.make_faulty("provider-2", "die");
    let again = submit(&market, "again", &[]);
    assert_first_part_kept(&first, &again, &maker, &failed);
    assert_eq!(output(&market, "again"), output(&market, "first"));
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_provider_that_takes_its_device_back_hands_over_what_is_done() {
    let market = market();
    let first = submit(&market, "first", &["--spot"]);
    let (maker, between) = to_and_fro(&market, &first);
    // The part between is not done before the first provider is stopped.
    market.make_faulty("provider-2", "stall");
    let again = std::thread::scope(|scope| {
        let job = scope.spawn(|| submit(&market, "again", &["--spot"]));
        market.until(|| runs_second(&market, &between));
        for process in market.processes("provider-1 ") {
            kill(process, "-TERM");
        }
        job.join().expect("the job is done")
    });
    assert_first_part_kept(&first, &again, &maker, &maker);
    assert_eq!(output(&market, "again"), output(&market, "first"));
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn notice_alone_ends_a_lease_with_what_is_done() {
    let market = market();
    // Less than a buyer waits for who stalls.
    let limits = json!({ "notice_seconds": NOTICE_SECONDS });
    market.set_in_provider("provider-1", &[("limits", limits)]);
    let first = submit(&market, "first", &["--spot"]);
    let (maker, between) = to_and_fro(&market, &first);
    // The part between is not done before another buyer has taken the first provider's device.
    market.make_faulty("provider-2", "stall");
    let key = |name: &str| market.account_key(name);
    let rival = Hand::stranger(&market, "rival", Credits(10_000_000));
    let again = std::thread::scope(|scope| {
        let job = scope.spawn(|| submit(&market, "again", &["--spot"]));
        let sold = || rival.leases_of(key("provider-1"));
        market.until(|| {
            let open = sold();
            open.iter().any(|lease| lease.is_running()) && runs_second(&market, &between)
        });
        let lease = sold().into_iter().find(|lease| lease.is_running());
        rival.displace(&lease.expect("it runs"), &[key("provider-4")]);
        job.join().expect("the job is done")
    });
    let failed = Value::from(market.account_of("provider-2"));
    assert_first_part_kept(&first, &again, &maker, &failed);
    assert_eq!(output(&market, "again"), output(&market, "first"));
    market.assert_escrow_returns();
}

/// Whether the second job of this market has come to the part of a provider, which waits for what
/// the one before made.
fn runs_second(market: &Market, provider: &Value) -> bool {
    let jobs = list(&market.souk(&["job", "list"]).done());
    let Some(name) = jobs.get(1).and_then(|job| job["name"].as_str()) else {
        return false;
    };
    let logs = market.souk(&["job", "logs", name]);
    let events = if logs.code == 0 {
        list(&logs.json())
    } else {
        Vec::new()
    };
    let mut running = events.iter().filter(|told| told["event"] == "running");
    running.any(|running| running["provider"] == *provider)
}
