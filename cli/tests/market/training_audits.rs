//! Audits of training in a market of real processes: providers that lie, and others that run the
//! steps again.

use std::fs;

use serde_json::{Value, json};

use crate::common::{Market, Ran, digits};

/// The account of the provider that is made to lie, and the result of a run with audits.
struct Audited {
    liar: String,
    done: Value,
}

/// Trains the digits model for sixteen steps on the cheapest device.
fn train(market: &Market, out: &str, more: &[&str]) -> Ran {
    let file = |name: &str| digits(name).to_string_lossy().into_owned();
    let images = format!("images={}", file("images.npy"));
    let labels = format!("labels={}", file("labels.npy"));
    let model = file("digits.onnx");
    let settings = "--loss cross-entropy --batch 36 --lr 2e-3 --steps 16 --keep 4 --device cpu \
                    --budget 50 --prefer cheapest";
    let words = ["train", &model, "-i", &images, "--target", &labels];
    let out = ["-o", out];
    let settings: Vec<&str> = settings.split(' ').filter(|it| !it.is_empty()).collect();
    market.souk(&[&words[..], &settings, &out, more].concat())
}

/// Has the cheapest CPU play a fault after some runs. Another emulated one sells too.
fn make_cheapest_lie(market: &Market, fault: &str, well: u64) -> String {
    let cpu = || {
        (
            "device",
            json!({ "emulated": { "profile": "amd-epyc-9654" } }),
        )
    };
    let liar = vec![
        cpu(),
        ("fault", json!(fault)),
        ("fault_after", json!(well)),
        ("price", json!(1)),
    ];
    let honest = vec![cpu(), ("price", json!(2))];
    market.set_in_providers([("provider-3", liar), ("provider-4", honest)]);
    market.account_of("provider-3")
}

/// Trains with a provider that lies, once without audits and once with all steps audited.
fn train_beside_liar(fault: &str, well: u64) -> (Value, Audited, Value) {
    let market = Market::up();
    let honest = train(&market, &market.path("honest.onnx"), &[]).done();
    let liar = make_cheapest_lie(&market, fault, well);
    let believed = train(&market, &market.path("believed.onnx"), &[]).done();
    make_cheapest_lie(&market, fault, well);
    let done = train(&market, &market.path("audited.onnx"), &["--audit", "100%"]).done();
    let report = fs::read(market.folder().join("audited.json")).expect("the report is there");
    let report: Value = serde_json::from_slice(&report).expect("it is JSON");
    assert_eq!(report["audits"], done["audits"]);
    assert!(!market.folder().join("audited.onnx.run/states").exists());
    market.assert_escrow_returns();
    (honest, Audited { liar, done }, believed)
}

/// Asserts that a lie is in the result without audits, and not in that with them.
fn assert_lie_is_found((honest, audited, believed): (Value, Audited, Value)) {
    let digest = |run: &Value| run["tuned"]["blake3"].clone();
    assert_ne!(digest(&believed), digest(&honest), "the lie is believed");
    let Audited { liar, done } = audited;
    assert_eq!(digest(&done), digest(&honest), "{}", done["audits"]);
    assert_eq!(done["losses"], honest["losses"]);
    assert_eq!(done["audits"]["convicted"], json!([liar]));
    assert_eq!(done["audits"]["share"], 1_000);
    assert_eq!(done["audits"]["unaudited_steps"], 0);
}

#[test]
fn a_worker_that_leaves_out_steps_is_found_and_nothing_of_it_is_in_the_result() {
    assert_lie_is_found(train_beside_liar("skip", 0));
}

#[test]
fn a_worker_that_returns_wrong_parameters_is_found_and_none_of_them_is_in_the_result() {
    assert_lie_is_found(train_beside_liar("lie", 2));
}

#[test]
fn audits_of_honest_workers_change_no_bit() {
    let market = Market::up();
    make_cheapest_lie(&market, "skip", 1_000_000);
    let (plain, audited) = (market.path("plain.onnx"), market.path("audited.onnx"));
    let plain = train(&market, &plain, &[]).done();
    let done = train(&market, &audited, &["--audit", "100"]).done();
    assert_eq!(done["tuned"]["blake3"], plain["tuned"]["blake3"]);
    assert_eq!(plain["audits"], Value::Null);
    assert_eq!(done["audits"]["confirmed_steps"], 16);
    assert_eq!(done["audits"]["convicted"], json!([]));
    let plan = train(&market, &audited, &["--audit", "25%", "--plan"]).done();
    assert_eq!(plan["audited_steps"], 4);
    for wrong in ["0", "101", "0.01%", "half"] {
        assert_eq!(train(&market, &audited, &["--audit", wrong]).code, 2);
    }
    let with_workers = ["--audit", "10%", "--workers", "2"];
    assert_eq!(train(&market, &audited, &with_workers).code, 2);
}
