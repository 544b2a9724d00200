//! Tests jobs in a market of real processes, by their receipts, the bytes moved, and the balances.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Market, digits, floats};
use serde_json::Value;

/// The sums over all accounts.
fn totals(market: &Market) -> Value {
    market.souk(&["balance"]).done()["totals"].clone()
}

/// Asserts that nothing stays in escrow once the grace of leases that were ended is over.
fn assert_escrow_returns(market: &Market) {
    let begin = Instant::now();
    while totals(market)["escrow"] != 0 {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "{}",
            totals(market)
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn two_parts_run_on_two_providers_and_give_what_one_gives() {
    let market = Market::up();
    let before = totals(&market);
    let cut = market
        .submit_digits("cut", &["--min-providers", "2"])
        .done();
    let whole = market
        .submit_digits("whole", &["--max-providers", "1"])
        .done();

    let receipts = cut["receipts"].as_array().unwrap();
    let body = |place: usize| &receipts[place]["body"];
    let providers: BTreeSet<&str> = (0..receipts.len())
        .map(|place| body(place)["provider"].as_str().unwrap())
        .collect();
    assert_eq!(
        (receipts.len(), providers.len()),
        (2, 2),
        "two leases, two providers"
    );
    assert_eq!(whole["receipts"].as_array().unwrap().len(), 1);

    // What one provider made is what the other read, and it came from that provider itself.
    let maker_of = |place: usize| 1 - place;
    let consumer = (0..2)
        .find(|place| {
            let moved = cut["transfers"][*place].as_array().unwrap();
            moved
                .iter()
                .any(|moved| moved["from"] == body(maker_of(*place))["provider"])
        })
        .expect("one provider received from the other");
    let maker = maker_of(consumer);
    let made = body(maker)["outputs"].as_array().unwrap();
    let read = body(consumer)["inputs"].as_array().unwrap();
    let crossed: Vec<&Value> = made.iter().filter(|id| read.contains(id)).collect();
    assert!(!crossed.is_empty(), "a tensor's id is in both receipts");
    let moved = cut["transfers"][consumer].as_array().unwrap();
    let direct = moved
        .iter()
        .filter(|moved| moved["from"] == body(maker)["provider"]);
    let bytes: u64 = direct.map(|moved| moved["bytes"].as_u64().unwrap()).sum();
    assert!(
        bytes > 360 * 4,
        "{bytes} bytes are more than a float an image"
    );

    let (a, b) = (market.folder().join("cut"), market.folder().join("whole"));
    let (a, b) = (floats(&a.join("logits.npy")), floats(&b.join("logits.npy")));
    assert_eq!(a.len(), 360 * 10);
    assert!(
        a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5),
        "cut and whole agree"
    );

    let after = totals(&market);
    assert_eq!(before["deposits"], after["deposits"]);
    assert_eq!(after["escrow"], 0, "nothing stays in escrow");
    let held = |sums: &Value| {
        let part = |name: &str| sums[name].as_u64().unwrap();
        part("available") + part("escrow") + part("fees")
    };
    assert_eq!(held(&before), held(&after), "no credit is made or lost");
}

#[test]
fn a_receipt_verifies_with_no_node_running_and_a_changed_one_does_not() {
    let market = Market::up();
    let done = market.submit_digits("out", &[]).done();
    let file = done["receipt_files"][0].as_str().unwrap().to_owned();
    let proof = market.folder().join("receipt.tlog-proof");
    let proof = proof.to_string_lossy().into_owned();
    let certified = market.souk(&["receipt", "verify", &file, "--certified", "-o", &proof]);
    let certified = certified.done();
    let balance = market.folder().join("own.account-proof");
    let balance = balance.to_string_lossy().into_owned();
    let proven = market.souk(&["account", "prove", "-o", &balance]).done();
    let shown = market.souk(&["account", "show"]).done();
    let nobody = "77".repeat(32);
    let absent = market.souk(&["account", "prove", &nobody]).done();
    assert_eq!(absent["certified"]["balances"], Value::Null);
    market.souk(&["testnet", "down"]).done();
    check_balance_proof(&market, &balance, &proven, &shown);
    let offline = market.souk(&["receipt", "verify", &file, "--proof", &proof]);
    assert_eq!(offline.done()["settled"], certified["settled"]);
    assert_eq!(
        certified["settled"]["validators"],
        certified["settled"]["signers"].as_array().unwrap().len()
    );
    let text = fs::read_to_string(&proof)
        .unwrap()
        .replace("index ", "index 1");
    fs::write(&proof, text).unwrap();
    let refused = market.souk(&["receipt", "verify", &file, "--proof", &proof]);
    assert_eq!(refused.code, 7);
    assert!(refused.stdout.contains("path"), "{}", refused.stdout);
    assert_eq!(
        market.souk(&["receipt", "verify", &file]).done()["valid"],
        true
    );

    let mut receipt: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let lease = receipt["body"]["lease"].as_u64().unwrap();
    receipt["body"]["lease"] = (lease + 1).into();
    let forged = market.folder().join("forged.json");
    fs::write(&forged, receipt.to_string()).unwrap();
    let refused = market.souk(&["receipt", "verify", &forged.to_string_lossy()]);
    assert_eq!(refused.code, 7);
    assert!(refused.stdout.contains("signature"), "{}", refused.stdout);
}

/// The saved proof of a balance holds while no node runs, and a changed one does not.
fn check_balance_proof(market: &Market, proof: &str, proven: &Value, shown: &Value) {
    let available = &proven["certified"]["balances"]["available"];
    assert_eq!(available, &shown["account"]["available"]);
    let offline = market.souk(&["account", "verify", proof]).done();
    assert_eq!(offline["certified"], proven["certified"]);
    let other = ["account", "verify", proof, "--account", &"77".repeat(32)];
    assert_eq!(market.souk(&other).code, 7);
    let text = fs::read_to_string(proof).expect("the proof is there");
    fs::write(proof, text.replace("\nstate ", "\nstate A")).expect("it is ours to write");
    assert_eq!(market.souk(&["account", "verify", proof]).code, 7);
}

#[test]
fn weights_a_provider_holds_are_not_sent_again() {
    let market = Market::up();
    // By one name, or what the first job saw of a busy machine might choose another provider.
    let arguments = ["--max-providers", "1", "--device", "H100"];
    let sent = |job: &Value, what: &str| {
        let moved = job["transfers"][0].as_array().unwrap().clone();
        let matching = moved.iter().filter(|moved| moved["what"] == what);
        matching
            .map(|moved| moved["bytes"].as_u64().unwrap())
            .sum::<u64>()
    };
    let first = market.submit_digits("first", &arguments).done();
    let second = market.submit_digits("second", &arguments).done();
    assert_eq!(
        first["receipts"][0]["body"]["provider"],
        second["receipts"][0]["body"]["provider"]
    );
    assert!(sent(&first, "weights") > 100_000);
    assert_eq!(sent(&second, "weights"), 0);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn killing_the_leader_stops_no_job_and_it_catches_up() {
    let market = Market::replicated();
    let status = market.souk(&["testnet", "status"]).done();
    let leader = status["validators"][0]["leader"].as_u64().unwrap();
    let victims = market.processes(&format!("validator-{leader} "));
    assert_eq!(victims.len(), 1);
    let submitting = std::thread::scope(|scope| {
        let jobs = scope.spawn(|| {
            let job = |n| market.submit_digits(&format!("out-{n}"), &["--min-providers", "2"]);
            (0..4).map(|n| job(n).code).collect::<Vec<_>>()
        });
        std::thread::sleep(Duration::from_millis(150));
        let killed = Command::new("kill")
            .args(["-9", &victims[0].to_string()])
            .status()
            .unwrap();
        assert!(killed.success());
        jobs.join().unwrap()
    });
    assert_eq!(submitting, [0, 0, 0, 0], "every job is done");

    // The supervisor starts it again; it must come to hold what the others hold.
    let begin = Instant::now();
    loop {
        let status = market.souk(&["testnet", "status"]).done();
        let validators = status["validators"].as_array().unwrap();
        let state = |v: &Value| (v["applied"].clone(), v["digest"].clone());
        let caught_up = validators.iter().all(|v| v["digest"].is_string())
            && validators.iter().all(|v| state(v) == state(&validators[0]));
        if caught_up {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{status}");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_escrow_returns(&market);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_provider_that_dies_is_done_without() {
    let market = Market::up();
    let plan = market
        .submit_digits("first", &["--max-providers", "1"])
        .done();
    let model = digits("digits.onnx");
    let victim = plan["receipts"][0]["body"]["provider"].clone();
    let book = market.souk(&["book"]).done();
    let place = book
        .as_array()
        .unwrap()
        .iter()
        .position(|ask| ask["provider"] == victim);
    assert!(
        place.is_some(),
        "its ask is back in the book after {}",
        model.display()
    );
    // Its ask stays in the book when it is killed: the job is bought from it and must move on.
    for id in market.processes("provider-2 ") {
        Command::new("kill")
            .args(["-9", &id.to_string()])
            .status()
            .unwrap();
    }
    let done = market
        .submit_digits("second", &["--max-providers", "1"])
        .done();
    assert_eq!(done["receipts"].as_array().unwrap().len(), 1);
    let after = market.folder().join("second/logits.npy");
    assert_escrow_returns(&market);
    assert_eq!(
        floats(&after),
        floats(&market.folder().join("first/logits.npy"))
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn outputs_and_inputs_may_be_safetensors() {
    let market = Market::up();
    let done = market
        .submit_digits("out", &["--format", "safetensors"])
        .done();
    let file = done["files"][0].as_str().unwrap();
    assert!(file.ends_with("outputs.safetensors"), "{file}");
    // What a job wrote is read as an input: the images under their own name.
    let bytes = fs::read(digits("images.npy")).unwrap();
    let images = souk_node::memory::npy::read(&bytes.into()).unwrap();
    let all = [("images".to_owned(), images)].into();
    let packed = souk_node::memory::safetensors::write(&all).unwrap();
    fs::write(market.folder().join("in.safetensors"), packed).unwrap();
    let model = digits("digits.onnx").to_string_lossy().into_owned();
    let (input, out) = (market.path("in.safetensors"), market.path("again"));
    let again = market
        .souk(&["submit", &model, "-i", &input, "-o", &out])
        .done();
    assert_eq!(
        again["outputs"]["logits"]["id"],
        done["outputs"]["logits"]["id"]
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn many_buyers_at_once_wait_for_each_other() {
    let market = Market::up();
    let codes = std::thread::scope(|scope| {
        let submit = |n: u32| {
            market
                .submit_digits(&format!("out-{n}"), &["--wait", "60"])
                .code
        };
        let jobs: Vec<_> = (0..6).map(|n| scope.spawn(move || submit(n))).collect();
        jobs.into_iter()
            .map(|job| job.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(codes, [0; 6]);
    assert_escrow_returns(&market);
}
