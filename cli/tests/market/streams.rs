//! Tests streams: many requests that pass through several provider processes one after another. It
//! checks answers, receipts and traces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use souk_node::market::{CloseReason, Credits, Lease, LeaseState};
use souk_node::memory::{DType, Tensor};
use souk_onnx as onnx;
use souk_onnx::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, tensor_to_proto,
};

use crate::common::{IMAGES, Market, SOUK, digits, floats, images, kill, souk};
use crate::gate::Gate;
use crate::hand::Hand;

/// Writes so many requests, no two alike, and returns their folder.
fn requests(market: &Market, count: usize) -> String {
    fs::create_dir_all(market.path("requests")).expect("a folder is made");
    for number in 0..count {
        market.write(
            &format!("requests/{number:03}.npy"),
            &images(number * 5, IMAGES),
        );
    }
    market.path("requests")
}

fn model() -> String {
    digits("digits.onnx").to_string_lossy().into_owned()
}

/// Two providers that really compute, with a thread each.
fn make_two_real(market: &Market) {
    let real = vec![("device", json!({ "cpu": { "threads": 1 } }))];
    market.set_in_providers([("provider-1", real.clone()), ("provider-2", real)]);
}

/// What the model gives for a request by itself.
fn alone(market: &Market, number: usize, more: &[&str]) -> Vec<f32> {
    let (model, input) = (model(), market.path(&format!("requests/{number:03}.npy")));
    let (input, out) = (format!("images={input}"), market.path("alone"));
    let mut arguments = vec!["submit", &model, "-i", &input, "-o", &out];
    arguments.extend_from_slice(more);
    market.souk(&arguments).done();
    floats(&market.folder().join("alone/logits.npy"))
}

fn assert_same(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), IMAGES * 10);
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5));
}

/// A stretch of a trace.
struct Stretch {
    process: u64,
    category: String,
    name: String,
    time: (u64, u64),
}

fn stretches(trace: &Path) -> Vec<Stretch> {
    let text = fs::read_to_string(trace).expect("a trace was written");
    let trace: Value = serde_json::from_str(&text).expect("a trace is JSON");
    let events = trace["traceEvents"].as_array().expect("a list of events");
    let events = events.iter().filter(|event| event["ph"] == "X");
    let stretch = |event: &Value| {
        let number = |name: &str| event[name].as_u64().expect("a number");
        let text = |name: &str| event[name].as_str().expect("a text").to_owned();
        let (start, length) = (number("ts"), number("dur"));
        Stretch {
            process: number("pid"),
            category: text("cat"),
            name: text("name"),
            time: (start, start + length),
        }
    };
    events.map(stretch).collect()
}

/// Stretches of time by process of a trace and category.
fn spans(trace: &Path) -> BTreeMap<(u64, String), Vec<(u64, u64)>> {
    let mut spans = BTreeMap::<_, Vec<(u64, u64)>>::new();
    for stretch in stretches(trace) {
        let key = (stretch.process, stretch.category);
        spans.entry(key).or_default().push(stretch.time);
    }
    spans
}

/// How long stretches of both lists ran at once; those of one list follow each other.
fn overlap(a: &[(u64, u64)], b: &[(u64, u64)]) -> u64 {
    let common = |a: &(u64, u64), b: &(u64, u64)| a.1.min(b.1).saturating_sub(a.0.max(b.0));
    a.iter()
        .map(|a| b.iter().map(|b| common(a, b)).sum::<u64>())
        .sum()
}

#[test]
fn a_stream_keeps_two_providers_at_work_and_answers_in_order() {
    const COUNT: usize = 12;
    let market = Market::up();
    make_two_real(&market);
    // Requests so large that devices compute for longer than tensors travel, and so small that a
    // busy machine answers all of them within the leases that an idle one was measured for.
    let means = Means::write(&market, COUNT);
    let (out, trace) = (market.path("out"), market.path("trace.json"));
    let mut arguments = means.submit(&out);
    arguments.extend(["--trace", &trace, "--real", "--wait", "30"]);
    arguments.extend(["--min-providers", "2"]);
    let done = market.souk(&arguments).done();
    means.assert_answered(&market, &done);

    // One receipt a lease names every request, and its sum is what was paid.
    let receipts = done["receipts"].as_array().unwrap();
    assert_eq!(receipts.len(), 2);
    for receipt in receipts {
        let body = &receipt["body"];
        // As many for each request as the plan's cut has tensors.
        for tensors in ["outputs", "inputs"] {
            let named = body[tensors].as_array().unwrap().len();
            assert!(named >= COUNT && named % COUNT == 0, "{named} {tensors}");
        }
    }
    let paid: u64 = receipts
        .iter()
        .map(|receipt| receipt["body"]["amount"].as_u64().unwrap())
        .sum();
    let available = |when: &str| {
        let accounts = done[when]["accounts"].as_array().unwrap();
        let buyer = &receipts[0]["body"]["buyer"];
        let buyer = accounts.iter().find(|account| account["account"] == *buyer);
        buyer.unwrap()["available"].as_u64().unwrap()
    };
    assert_eq!(available("before") - available("after"), paid);
    market.assert_escrow_returns();

    let spans = spans(Path::new(&trace));
    let computing: Vec<_> = spans
        .iter()
        .filter(|((_, kind), _)| kind == "compute")
        .collect();
    assert_eq!(computing.len(), 2, "two devices computed");
    let busy = |spans: &[(u64, u64)]| spans.iter().map(|(from, to)| to - from).sum::<u64>();
    let (a, b) = (computing[0].1, computing[1].1);
    // Once for each request and part: the plan may come back to a provider.
    let parts = done["plan"]["parts"].as_array().unwrap().len();
    assert_eq!(a.len() + b.len(), parts * COUNT);
    assert!(a.len() % COUNT == 0 && b.len() % COUNT == 0, "{}", a.len());
    let (both, least) = (overlap(a, b), busy(a).min(busy(b)));
    assert!(both * 4 >= least, "of {least} us only {both} were at once");
    // The one that holds up the other has what it does next before it ends what it does.
    let most = computing.iter().max_by_key(|(_, spans)| busy(spans));
    let ((device, _), computed) = most.expect("two of them");
    let moving = &spans[&(*device, "transfer-in".to_owned())];
    let hidden = overlap(moving, computed);
    assert!(hidden > 0, "nothing came to it while it computed");
}

/// How fast an emulated group is beside its profile, and the rows of its requests: far more time
/// than this machine takes to compute their answers, on a busy day too.
const TEAM_SPEED: f64 = 0.015;
const TEAM_ROWS: usize = 8;

/// Has one provider, which sells two devices as one and keeps jobs apart so, answer a stream.
fn assert_a_team_streams(isolation: &str) {
    const COUNT: usize = 12;
    let market = Market::up();
    let device = json!({ "emulated": { "profile": "sifive-p550", "speed": TEAM_SPEED } });
    let group = json!({ "group": [device, device] });
    market.set_in_provider(
        "provider-1",
        &[("device", group), ("isolation", isolation.into())],
    );
    let means = Means::with_rows(&market, COUNT, TEAM_ROWS);
    let (out, trace) = (market.path("out"), market.path("trace.json"));
    let others = ["provider-2", "provider-3", "provider-4"];
    let others = others.map(|name| market.account_of(name));
    let elsewhere: Vec<&str> = others
        .iter()
        .flat_map(|other| ["--exclude", other])
        .collect();
    let mut arguments = means.submit(&out);
    arguments.extend(["--trace", &trace, "--wait", "30"]);
    arguments.extend(&elsewhere);
    let done = market.souk(&arguments).done();

    means.assert_answered(&market, &done);
    for number in [0, COUNT - 1] {
        let input = format!("x={}", market.path(&format!("requests/{number:03}.npy")));
        let (model, out) = (&means.model, market.path("alone"));
        let single = ["submit", model, "-i", &input, "-o", &out];
        market.souk(&[&single[..], &elsewhere].concat()).done();
        let streamed = market.folder().join(format!("out/{number:03}/y.npy"));
        let alone = market.folder().join("alone/y.npy");
        assert_eq!(floats(&streamed), floats(&alone), "request {number}");
    }

    let receipts = done["receipts"].as_array().expect("a list");
    let [receipt] = &receipts[..] else {
        panic!("one lease: {receipts:?}");
    };
    let body = &receipt["body"];
    for tensors in ["outputs", "inputs"] {
        assert_eq!(
            body[tensors].as_array().map(Vec::len),
            Some(COUNT),
            "{tensors}"
        );
    }
    let mut stretches = stretches(Path::new(&trace));
    stretches.retain(|stretch| stretch.category == "compute");
    // The sum of all requests is the time in which a device was at work, each moment once.
    stretches.sort_by_key(|stretch| stretch.time);
    let (mut at_work, mut reached) = (0, 0);
    for &Stretch {
        time: (from, to), ..
    } in &stretches
    {
        at_work += to.saturating_sub(from.max(reached));
        reached = reached.max(to);
    }
    assert_eq!(body["usage"], at_work);
    market.assert_escrow_returns();

    let devices: BTreeSet<u64> = stretches.iter().map(|stretch| stretch.process).collect();
    assert_eq!(devices.len(), 2, "two devices of one provider computed");
    assert_eq!(
        stretches.len(),
        2 * COUNT,
        "a stage of each request on each"
    );
    let request = |stretch: &Stretch| {
        let words: Vec<String> = stretch.name.split(", ").map(str::to_owned).collect();
        let named = words.iter().find(|word| word.starts_with("request "));
        named.expect("it says which").clone()
    };
    let at_once = |one: &Stretch, other: &Stretch| {
        let time = overlap(&[one.time], &[other.time]);
        assert!(one.process != other.process || time == 0, "one at a time");
        time > 0 && request(one) != request(other)
    };
    let pairs = stretches.iter().enumerate();
    let pairs =
        pairs.flat_map(|(index, one)| stretches[index + 1..].iter().map(move |it| (one, it)));
    let pairs = pairs.filter(|(one, other)| at_once(one, other)).count();
    // How many depends on how busy this machine is: a device's next stage may begin late.
    assert!(pairs > 0, "no two requests were at work at once");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_group_in_a_sandbox_is_at_several_requests_of_a_stream() {
    assert_a_team_streams("process");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_team_in_its_providers_process_is_at_several_requests_of_a_stream() {
    assert_a_team_streams("none");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_process_that_crashes_at_several_requests_is_done_without() {
    const COUNT: usize = 12;
    const RUNS: usize = 5;
    let market = Market::up();
    let slow = json!({ "emulated": { "profile": "sifive-p550" } });
    let group = json!({ "group": [slow, slow] });
    let fault = [("fault", "crash".into()), ("fault_after", RUNS.into())];
    let cheap = [("device", group), ("price", json!(1_000))];
    market.set_in_provider("provider-1", &[&cheap[..], &fault[..]].concat());
    let dear = [("device", slow), ("price", json!(100_000))];
    market.set_in_provider("provider-4", &dear);
    let [crashes, goes_on] = ["provider-1", "provider-4"].map(|name| market.account_of(name));
    let means = Means::write(&market, COUNT);
    let out = market.path("out");
    let mut arguments = means.submit(&out);
    arguments.extend([
        "--prefer",
        "cheapest",
        "--max-providers",
        "1",
        "--wait",
        "30",
    ]);
    let others = ["provider-2", "provider-3"].map(|name| market.account_of(name));
    arguments.extend(others.iter().flat_map(|other| ["--exclude", other]));
    let done = market.souk(&arguments).done();

    means.assert_answered(&market, &done);
    assert_eq!(done["plan"]["parts"][0]["provider"], crashes);
    let receipts = done["receipts"].as_array().unwrap();
    let bodies: Vec<&Value> = receipts.iter().map(|receipt| &receipt["body"]).collect();
    assert!(bodies.iter().all(|body| body["provider"] == goes_on));
    let made = bodies
        .iter()
        .map(|body| body["outputs"].as_array().unwrap().len());
    // Those that were at work with the one that crashed are answered by nobody else before.
    assert!((COUNT - RUNS..=COUNT).contains(&made.sum::<usize>()));
    market.assert_escrow_returns();
}

/// Devices that deliver their figures, so that their plans are the same on any machine.
const EMULATED: [&str; 6] = [
    "--device",
    "H100",
    "--device",
    "M3",
    "--device",
    "EPYC 9654",
];

/// Submits a stream of the model over two providers and leaves it running.
fn spawn_stream(market: &Market, folder: &str, more: &[&str]) -> Child {
    Command::new(SOUK)
        .args(["--dir", &market.path("net"), "--json", "submit", &model()])
        .args(["--stream", &format!("images={folder}")])
        .args(EMULATED)
        .args(["-o", &market.path("out"), "--min-providers", "2"])
        .args(["--wait", "30"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

/// Has the provider with the first part of a line of two play a fault after some runs; its account.
fn make_first_faulty(market: &Market, folder: &str, fault: &str, after: usize) -> String {
    let ended = spawn_stream(market, folder, &[]).wait_with_output();
    let ended: Value = serde_json::from_slice(&ended.expect("it ends").stdout).expect("JSON");
    fs::remove_dir_all(market.path("out")).expect("its answers are removed");
    let first = ended["plan"]["parts"][0]["provider"].as_str();
    let first = first.expect("a plan has parts").to_owned();
    let mut names = (1..=4).map(|number| format!("provider-{number}"));
    let name = names.find(|name| market.account_of(name) == first);
    let entries = [("fault", fault.into()), ("fault_after", after.into())];
    market.set_in_provider(&name.expect("it is one of the testnet's"), &entries);
    first
}

/// The file with the answer to a request.
fn answer(market: &Market, number: usize) -> PathBuf {
    market.folder().join(format!("out/{number:03}/logits.npy"))
}

#[test]
fn a_stream_outlives_a_provider_that_dies_in_the_middle() {
    const COUNT: usize = 24;
    const RUNS: usize = 6;
    const WINDOW: usize = 4;
    let market = Market::up();
    let folder = requests(&market, COUNT);
    let dead = make_first_faulty(&market, &folder, "die", RUNS);
    let window = WINDOW.to_string();
    let running = spawn_stream(&market, &folder, &["--window", &window]);
    let ended = running.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&ended.stdout);
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{text} {told}");
    let done: Value = serde_json::from_str(&text).expect("one JSON value");
    assert_eq!(done["answers"].as_array().unwrap().len(), COUNT);
    let bodies = || done["receipts"].as_array().unwrap().iter();
    let bodies = || bodies().map(|receipt| &receipt["body"]);
    assert!(
        bodies().all(|body| body["provider"] != dead),
        "who died in the middle of its lease signed nothing"
    );
    let first = bodies().find(|body| body["job"] == done["job"]);
    let outlived = first.expect("who was on the line with it is paid for what it did");
    // The end of the line makes one tensor for each request, its beginning reads one; and where the
    // dead one was the end, the beginning was ahead of it by the window at most.
    let named = ["outputs", "inputs"].map(|named| outlived[named].as_array().unwrap().len());
    let made = named.into_iter().min().unwrap();
    assert!(
        (1..=RUNS + WINDOW).contains(&made),
        "{named:?} {}",
        done["plan"]
    );
    assert!(
        bodies().any(|body| body["job"] != done["job"]),
        "and who took over"
    );
    for number in [0, RUNS, COUNT - 1] {
        let other = ["--max-providers", "1", "--exclude", &dead];
        let alone = alone(&market, number, &other);
        assert_same(&floats(&answer(&market, number)), &alone);
    }
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_stream_whose_buyer_was_killed_goes_on_where_it_was() {
    const COUNT: usize = 20;
    const RUNS: usize = 10;
    let market = Market::up();
    let folder = requests(&market, COUNT);
    // It answers ten requests and is at work on the next one for ever: the middle of the stream.
    let stalled = make_first_faulty(&market, &folder, "stall", RUNS);
    let mut buyer = spawn_stream(&market, &folder, &["--window", "2", "--budget", "100"]);
    let length = |number| fs::metadata(answer(&market, number)).map_or(0, |file| file.len());
    market.until(|| length(RUNS - 1) > 0 && length(RUNS - 1) == length(0));
    kill(buyer.id(), "-9");
    buyer.wait().expect("it was killed");
    assert!(!answer(&market, RUNS).exists());

    // One answer was torn, one is gone, and one request is another one now.
    let torn = fs::read(answer(&market, 3)).unwrap();
    fs::write(answer(&market, 3), &torn[..torn.len() - 4]).unwrap();
    fs::remove_file(answer(&market, 4)).unwrap();
    market.write("requests/005.npy", &images(77, IMAGES));
    let written = |number| fs::metadata(answer(&market, number)).and_then(|file| file.modified());
    let before = written(0).unwrap();

    let jobs = market.souk(&["job", "list"]).done();
    let job = jobs.as_array().unwrap().last().unwrap().clone();
    assert_eq!(job["state"], "running");
    let name = job["name"].as_str().unwrap();
    let status = market.souk(&["job", "status", name]).done();
    assert_eq!(status["requests_answered"], RUNS);
    let done = market.souk(&["job", "resume", name]).done();
    assert_eq!(done["answers"].as_array().unwrap().len(), COUNT);
    assert_eq!(done["asked"], COUNT - RUNS + 3);
    assert_eq!(written(0).unwrap(), before, "it was not asked again");
    for number in [0, 3, 4, 5, RUNS, COUNT - 1] {
        let other = ["--max-providers", "1", "--exclude", &stalled];
        let alone = alone(&market, number, &other);
        assert_same(&floats(&answer(&market, number)), &alone);
    }

    // What was done before the kill is paid for by a receipt, but for the one that never ended.
    let receipts = done["receipts"].as_array().unwrap();
    let first = receipts.iter().map(|receipt| &receipt["body"]);
    let first: Vec<&Value> = first.filter(|body| body["job"] == done["job"]).collect();
    assert_eq!(first.len(), 1, "{receipts:?}");
    assert_ne!(first[0]["provider"], stalled);
    market.assert_escrow_returns();
    let status = market.souk(&["job", "status", name]).done();
    assert_eq!(status["job"]["state"], "done");
    let spent = status["spent"].as_u64().unwrap();
    let amounts = receipts.iter().map(|receipt| &receipt["body"]["amount"]);
    let signed: u64 = amounts.map(|amount| amount.as_u64().unwrap()).sum();
    assert!((signed..=100_000_000).contains(&spent), "{signed} {spent}");
    let again = market.souk(&["job", "resume", name]);
    assert_eq!(again.code, 8, "{}", again.stdout);
}

/// Micro-credits in escrow of each purchase that a command told of, in order.
fn held(text: &str) -> Vec<u64> {
    let told = text
        .lines()
        .filter(|line| line.contains("credits are held until settled"));
    let credits = told.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let place = words.iter().position(|word| *word == "credits");
        let credits = words[place.expect("it names them") - 1];
        (credits.parse::<f64>().expect("a number") * 1e6).round() as u64
    });
    credits.collect()
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_resumed_stream_holds_no_more_than_its_budget_less_what_was_spent_before() {
    const COUNT: usize = 20;
    const RUNS: usize = 10;
    let market = Market::up();
    let folder = requests(&market, COUNT);
    let in_text = |arguments: &[&str]| {
        let ran = Command::new(SOUK)
            .args(["--dir", &market.path("net")])
            .args(arguments)
            .output();
        let ran = ran.expect("the binary runs");
        let text = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{text}");
        text
    };
    // Leases hold less than they would like to, and as much as the budget has.
    let stream = format!("images={folder}");
    let (model, out) = (model(), market.path("free"));
    let words = ["submit", &model, "--stream", &stream, "-o", &out];
    let two = ["--min-providers", "2"];
    let free = in_text(&[&words[..], &EMULATED, &two].concat());
    let budget = held(&free)[0] * 7 / 10;
    make_first_faulty(&market, &folder, "stall", RUNS);
    let credits = format!("{:.6}", budget as f64 / 1e6);
    let mut buyer = spawn_stream(&market, &folder, &["--window", "2", "--budget", &credits]);
    let length = |number| fs::metadata(answer(&market, number)).map_or(0, |file| file.len());
    market.until(|| length(RUNS - 1) > 0 && length(RUNS - 1) == length(0));
    kill(buyer.id(), "-9");
    buyer.wait().expect("it was killed");

    let jobs = market.souk(&["job", "list"]).done();
    let job = jobs.as_array().unwrap().last().unwrap().clone();
    let name = job["name"].as_str().unwrap();
    let text = in_text(&["job", "resume", name]);
    let later = held(&text);
    assert!(!later.is_empty(), "{text}");
    let status = market.souk(&["job", "status", name]).done();
    let all = status["spent"].as_u64().unwrap();
    let before = status["job"]["receipts"].as_array().unwrap().iter();
    let before = before.map(|receipt| &receipt["body"]);
    let first = before.filter(|body| body["job"] == status["job"]["id"]);
    let before: u64 = first.map(|body| body["amount"].as_u64().unwrap()).sum();
    assert!(before > 0, "{status}");
    let most = later.iter().max().copied().unwrap_or(0);
    assert!(
        most + before <= budget,
        "{before} were spent of {budget}, then {most} held"
    );
    assert!(all <= budget);
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_verified_stream_whose_buyer_was_killed_pays_both_that_agree() {
    const COUNT: usize = 100;
    let market = Market::up();
    let folder = requests(&market, COUNT);
    let stream = format!("images={folder}");
    let mut buyer = Command::new(SOUK)
        .args(["--dir", &market.path("net"), "--json", "submit", &model()])
        .args(["--stream", &stream, "-o", &market.path("out")])
        .args(["--verify", "2", "--max-providers", "1", "--window", "1"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary runs");
    market.until(|| answer(&market, 3).exists());
    kill(buyer.id(), "-9");
    buyer.wait().expect("it was killed");
    assert!(!answer(&market, COUNT - 1).exists(), "it was in the middle");

    let jobs = market.souk(&["job", "list"]).done();
    let job = jobs.as_array().unwrap().last().unwrap().clone();
    let name = job["name"].as_str().unwrap();
    let done = market.souk(&["job", "resume", name]).done();
    assert_eq!(done["answers"].as_array().unwrap().len(), COUNT);
    let receipts = done["receipts"].as_array().unwrap();
    let bodies = receipts.iter().map(|receipt| &receipt["body"]);
    let before: Vec<&Value> = bodies.filter(|body| body["job"] == done["job"]).collect();
    assert_eq!(before.len(), 2, "{receipts:?}");
    assert_ne!(before[0]["provider"], before[1]["provider"]);
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn who_lies_in_the_middle_of_a_stream_is_found_by_two_others_and_not_paid() {
    const COUNT: usize = 10;
    const RUNS: usize = 4;
    let market = Market::up();
    let (folder, model) = (requests(&market, COUNT), model());
    let stream = format!("images={folder}");
    let verified = |out: &str| {
        let out = market.path(out);
        let arguments = [
            "submit", &model, "--stream", &stream, "-o", &out, "--verify", "2",
        ];
        let one_each = ["--max-providers", "1", "--wait", "30"];
        market
            .souk(&[&arguments[..], &one_each[..]].concat())
            .done()
    };
    let made = |done: &Value| -> Vec<(String, usize)> {
        let bodies = done["receipts"].as_array().unwrap().iter();
        let bodies = bodies.map(|receipt| &receipt["body"]);
        let provider = |body: &Value| body["provider"].as_str().unwrap().to_owned();
        let outputs = |body: &Value| body["outputs"].as_array().unwrap().len();
        bodies.map(|body| (provider(body), outputs(body))).collect()
    };
    let honest = verified("honest");
    let twice: Vec<usize> = made(&honest).into_iter().map(|(_, made)| made).collect();
    assert_eq!(twice, [COUNT; 2], "two ran each request and agreed");

    let liar = honest["plan"]["parts"][0]["provider"].as_str().unwrap();
    let names = ["provider-1", "provider-2", "provider-3", "provider-4"];
    let name = names.iter().find(|name| market.account_of(name) == liar);
    let entries = [("fault", "lie".into()), ("fault_after", RUNS.into())];
    market.set_in_provider(name.expect("it is one of the testnet's"), &entries);
    let available = || market.available(liar);
    market.assert_escrow_returns();
    let before = available();
    let done = verified("out");
    assert_eq!(done["answers"].as_array().unwrap().len(), COUNT);
    let made = made(&done);
    assert!(made.iter().all(|(provider, _)| provider != liar));
    // Who was right beside the liar, the third, whose answer to the request in question is given,
    // and two for the rest.
    let each: Vec<usize> = made.iter().map(|(_, made)| *made).collect();
    assert_eq!(each.len(), 4, "{each:?}");
    assert!(each[0] > RUNS || each[1] > RUNS, "{each:?}");
    assert!(each.contains(&1), "{each:?}");
    assert_eq!(each[2..], [COUNT - RUNS - 1; 2], "{each:?}");
    for number in [0, RUNS, COUNT - 1] {
        let other = ["--max-providers", "1", "--exclude", liar];
        let alone = alone(&market, number, &other);
        assert_same(&floats(&answer(&market, number)), &alone);
    }
    market.assert_escrow_returns();
    assert_eq!(available(), before, "a lie earns nothing");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn of_two_that_differed_before_the_buyer_was_killed_who_was_right_is_signed_for() {
    const COUNT: usize = 6;
    const RUNS: usize = 3;
    let market = Market::up();
    let (folder, model) = (requests(&market, COUNT), model());
    let stream = format!("images={folder}");
    let verified = ["--verify", "2", "--max-providers", "1", "--window", "1"];
    let honest = ["submit", &model, "--stream", &stream, "-o"];
    let out = market.path("honest");
    let honest = [&honest[..], &[out.as_str()], &verified].concat();
    let honest = market.souk(&honest).done();
    let by = |receipt: &Value| receipt["body"]["provider"].as_str().unwrap().to_owned();
    let two: Vec<String> = honest["receipts"]
        .as_array()
        .unwrap()
        .iter()
        .map(by)
        .collect();
    let (liar, right) = (&two[0], &two[1]);
    let all = ["provider-1", "provider-2", "provider-3", "provider-4"];
    let mut others = all.into_iter();
    let named = |account: &String| all.iter().find(|name| market.account_of(name) == *account);
    let entries = [("fault", "lie".into()), ("fault_after", RUNS.into())];
    market.set_in_provider(named(liar).expect("it is one of the testnet's"), &entries);
    // Whoever is asked who is right never answers, so the buyer dies while it waits for that.
    let mut free = others
        .by_ref()
        .filter(|name| !two.contains(&market.account_of(name)));
    let (third, unused) = (free.next().unwrap(), free.next().unwrap());
    market.make_faulty(third, "stall");

    let mut buyer = Command::new(SOUK)
        .args(["--dir", &market.path("net"), "--json", "submit", &model])
        .args(["--stream", &stream, "-o", &market.path("out")])
        .args(verified)
        .args(["--wait", "30", "--exclude", &market.account_of(unused)])
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let status = || {
        souk(
            &market.folder().join("net").join(third),
            &["provider", "status"],
        )
    };
    market.until(|| {
        !status().done()["open_leases"]
            .as_array()
            .unwrap()
            .is_empty()
    });
    kill(buyer.id(), "-9");
    buyer.wait().expect("it was killed");
    assert!(answer(&market, RUNS - 1).exists() && !answer(&market, RUNS).exists());

    market.set_in_provider(third, &[("fault", Value::Null)]);
    let jobs = market.souk(&["job", "list"]).done();
    let job = jobs.as_array().unwrap().last().unwrap().clone();
    let done = market
        .souk(&["job", "resume", job["name"].as_str().unwrap()])
        .done();
    assert_eq!(done["answers"].as_array().unwrap().len(), COUNT);
    let receipts = done["receipts"].as_array().unwrap();
    let first = receipts
        .iter()
        .filter(|it| it["body"]["job"] == done["job"]);
    let first: Vec<String> = first.map(by).collect();
    assert_eq!(first, std::slice::from_ref(right), "{receipts:?}");
    assert!(receipts.iter().all(|receipt| by(receipt) != *liar));
    let exact = ["--max-providers", "1", "--exclude", liar.as_str()];
    for number in [0, RUNS, COUNT - 1] {
        let alone = alone(&market, number, &exact);
        assert_same(&floats(&answer(&market, number)), &alone);
    }
    market.assert_escrow_returns();
}

#[test]
fn requests_that_differ_are_refused_before_anything_is_bought() {
    let market = Market::up();
    let (folder, model) = (requests(&market, 2), model());
    market.write("requests/002.npy", &images(0, IMAGES + 1));
    let (stream, out) = (format!("images={folder}"), market.path("out"));
    let refused = market.souk(&["submit", &model, "--stream", &stream, "-o", &out]);
    assert_eq!(refused.code, 3, "{} {}", refused.stdout, refused.stderr);
    assert!(refused.stdout.contains("002.npy"), "{}", refused.stdout);
    let empty = market.path("empty");
    fs::create_dir_all(&empty).unwrap();
    let nothing = market.souk(&["submit", &model, "--stream", &empty, "-o", &out]);
    assert_eq!(nothing.code, 3, "{} {}", nothing.stdout, nothing.stderr);
    assert_eq!(market.souk(&["balance"]).done()["totals"]["escrow"], 0);
}

/// A line of one operator, over and over: of a value with itself, or with a weight. All it computes
/// is as large as what it is given.
fn line(operator: &str, times: usize, weight: Option<&Tensor>) -> Vec<u8> {
    let name = |n: usize| match n {
        0 => "x".to_owned(),
        n if n == times => "y".to_owned(),
        n => format!("v{n}"),
    };
    let node = |n: usize| NodeProto {
        op_type: Some(operator.to_owned()),
        input: vec![name(n), weight.map_or(name(n), |_| "w".to_owned())],
        output: vec![name(n + 1)],
        ..NodeProto::default()
    };
    let value = |name: &str| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), None);
    let graph = GraphProto {
        name: Some("line".to_owned()),
        node: (0..times).map(node).collect(),
        input: vec![value("x")],
        output: vec![value("y")],
        initializer: weight
            .map(|w| tensor_to_proto("w", w))
            .into_iter()
            .collect(),
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

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_large_cut_tensor_takes_the_channel_and_else_the_stream() {
    // Every value of it has 8 MiB, so that whatever is cut is worth a direct channel.
    let market = Market::up();
    let model = market.path("doubling.onnx");
    fs::write(&model, line("Add", 6, None)).unwrap();
    let ways = |out: &str, given: f32| {
        let x = Tensor::from_vec([1 << 11, 1 << 10], vec![given; 1 << 21]).unwrap();
        let input = format!("x={}", market.write(&format!("{out}.npy"), &x));
        let out = market.path(out);
        let arguments = [
            "submit",
            &model,
            "-i",
            &input,
            "-o",
            &out,
            "--min-providers",
            "2",
        ];
        let done = market.souk(&arguments).done();
        let moved = done["transfers"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|one| one.as_array().unwrap());
        // What came from the other provider, not from the buyer.
        let cut = moved.filter(|moved| moved["bytes"].as_u64() > Some(4 << 20));
        let cut = cut.filter(|moved| moved["what"] != "x");
        let way = |moved: &Value| moved["link"]["way"].as_str().unwrap().to_owned();
        let ways: Vec<String> = cut.map(way).collect();
        (ways, floats(&Path::new(&out).join("y.npy")))
    };
    let (with, first) = ways("with", 0.5);
    assert_eq!(with, ["direct"]);
    let off = |name| (name, vec![("traffic", json!({ "direct": "off" }))]);
    market.set_in_providers(["provider-2", "provider-3", "provider-4"].map(off));
    let (without, second) = ways("without", 0.25);
    assert_eq!(without, ["stream"]);
    assert_eq!(first, vec![32.0; 1 << 21]);
    assert_eq!(second, vec![16.0; 1 << 21]);
}

/// The side of a square that requests are multiplied with, and how often.
const SIDE: usize = 1 << 10;
const PRODUCTS: usize = 8;

/// Rows of such a request.
const ROWS: usize = 64;

/// The notice of a lease that another buyer takes over: less than the rest of the stream takes.
const NOTICE_SECONDS: u64 = 2;

/// A stream of requests whose means are taken over and over: as much work as slow devices need a
/// while for.
pub struct Means {
    model: String,
    /// As `--stream` takes it.
    stream: String,
    count: usize,
}

impl Means {
    pub fn write(market: &Market, count: usize) -> Means {
        Means::with_rows(market, count, ROWS)
    }

    fn with_rows(market: &Market, count: usize, rows: usize) -> Means {
        let model = market.path("means.onnx");
        let weight = vec![1.0 / SIDE as f32; SIDE * SIDE];
        let weight = Tensor::from_vec([SIDE, SIDE], weight).expect("a square is full");
        fs::write(&model, line("MatMul", PRODUCTS, Some(&weight))).expect("a model is written");
        let folder = market.path("requests");
        fs::create_dir_all(&folder).expect("a folder is made");
        for number in 0..count {
            let x = Tensor::from_vec([rows, SIDE], vec![Means::given(number); rows * SIDE]);
            let x = x.expect("as many as it says");
            market.write(&format!("requests/{number:03}.npy"), &x);
        }
        let stream = format!("x={folder}");
        Means {
            model,
            stream,
            count,
        }
    }

    /// What a request is given, the same everywhere in its tensor: its means are that again.
    fn given(number: usize) -> f32 {
        (number % 16) as f32 / 16.0
    }

    /// The first arguments of a command.
    pub fn submit<'a>(&'a self, out: &'a str) -> Vec<&'a str> {
        let stream = ["--stream", &self.stream];
        [["submit", &self.model], stream, ["-o", out]].concat()
    }

    pub fn assert_answered(&self, market: &Market, done: &Value) {
        let answers = done["answers"].as_array().expect("a list");
        let names = answers.iter().map(|answer| answer["request"].as_str());
        let names: Vec<&str> = names.map(|name| name.expect("a text")).collect();
        let expected: Vec<String> = (0..self.count).map(|n| format!("{n:03}")).collect();
        assert_eq!(names, expected, "answers come in the order of the requests");
        for number in 0..self.count {
            let answer = floats(&market.folder().join(format!("out/{number:03}/y.npy")));
            let right = |mean: &f32| (mean - Means::given(number)).abs() < 1e-4;
            assert!(answer.iter().all(right), "{number}");
        }
    }
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn notice_ends_the_lease_of_a_stream_and_another_provider_goes_on() {
    const COUNT: usize = 60;
    const WINDOW: usize = 4;
    const HELD_AT: usize = 8;
    let market = Market::up();
    let slow = json!({ "emulated": { "profile": "sifive-p550" } });
    let limits = json!({ "notice_seconds": NOTICE_SECONDS });
    let entries = |price: u64| {
        vec![
            ("device", slow.clone()),
            ("price", json!(price)),
            ("limits", limits.clone()),
        ]
    };
    market.set_in_providers([
        ("provider-1", entries(1_000)),
        ("provider-4", entries(1_200)),
    ]);
    let means = Means::write(&market, COUNT);
    let [first, second] = ["provider-1", "provider-4"].map(|name| market.account_key(name));
    let rival = Hand::stranger(&market, "rival", Credits(10_000_000));
    let (out, window) = (market.path("out"), WINDOW.to_string());
    let mut arguments = means.submit(&out);
    arguments.extend(["--window", &window, "--spot", "--prefer", "cheapest"]);
    arguments.extend(["--device", "P550", "--max-providers", "1", "--wait", "30"]);
    // It is in its middle when the rival comes, and far from its end when the notice is over.
    let gate = Gate::at(&market, HELD_AT);
    let (done, lost) = std::thread::scope(|scope| {
        let job = scope.spawn(|| market.souk(&arguments).done());
        market.until(|| market.folder().join("out/002/y.npy").exists());
        let mut leases = rival.leases_of(first).into_iter();
        let lease = leases.find(Lease::is_running).expect("it runs");
        rival.displace(&lease, &[second]);
        gate.open();
        (job.join().expect("the stream is done"), lease.id)
    });

    means.assert_answered(&market, &done);
    // What was done is signed for, although the device went to another buyer meanwhile.
    let lost = rival.lease(lost);
    let reason = CloseReason::Receipt;
    assert!(
        matches!(lost.state, LeaseState::Closed { reason: why, .. } if why == reason),
        "{lost:?}"
    );
    let receipts = done["receipts"].as_array().unwrap();
    let made = |receipt: &Value| {
        let provider = receipt["body"]["provider"].as_str().unwrap().to_owned();
        (
            provider,
            receipt["body"]["outputs"].as_array().unwrap().len(),
        )
    };
    let made: Vec<(String, usize)> = receipts.iter().map(made).collect();
    // On a busy machine the heir needs more than one lease; by the next one the rival's second may
    // be over, and the first one for sale again.
    let ((seller, answered), heirs) = made.split_first().expect("there are receipts");
    assert_eq!(*seller, first.to_string());
    let heir = heirs.first().map(|(account, _)| account.as_str());
    assert_eq!(heir, Some(second.to_string().as_str()), "{made:?}");
    assert!((3..COUNT).contains(answered), "{answered} before the end");
    let all: usize = made.iter().map(|(_, answered)| answered).sum();
    assert!(
        (COUNT..=COUNT + WINDOW * heirs.len()).contains(&all),
        "{made:?}"
    );
    market.assert_escrow_returns();
}
