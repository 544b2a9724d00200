//! Tests audits of training in a market of real processes: other providers repeat the audited
//! steps, which exposes a provider that skipped steps or returned wrong ones.

use std::fs;

use serde_json::{Value, json};

use crate::common::{Market, Ran, digits};

/// Trains the digits model for eight steps on the cheapest device.
fn train(market: &Market, out: &str, more: &[&str]) -> Ran {
    let file = |name: &str| digits(name).to_string_lossy().into_owned();
    let images = format!("images={}", file("images.npy"));
    let labels = format!("labels={}", file("labels.npy"));
    let model = file("digits.onnx");
    let settings = "--loss cross-entropy --batch 36 --lr 2e-3 --steps 8 --keep 2 --device cpu \
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

/// Trains beside a provider that lies, once without audits and once with all steps audited.
/// Asserts that the lie is in the result without audits, and not in that with them, which is the
/// honest one.
fn assert_lie_is_found(market: &Market, honest: &Value, fault: &str, well: u64) {
    let digest = |run: &Value| run["tuned"]["blake3"].clone();
    make_cheapest_lie(market, fault, well);
    let out = market.path(&format!("{fault}-believed.onnx"));
    let believed = train(market, &out, &[]).done();
    assert_ne!(digest(&believed), digest(honest), "the lie is believed");

    let liar = make_cheapest_lie(market, fault, well);
    let out = format!("{fault}-audited");
    let result = market.path(&format!("{out}.onnx"));
    let done = train(market, &result, &["--audit", "100%"]).done();
    assert_eq!(digest(&done), digest(honest), "{}", done["audits"]);
    assert_eq!(done["losses"], honest["losses"]);
    assert_eq!(done["audits"]["convicted"], json!([liar]));
    assert_eq!(done["audits"]["share"], 1_000);
    assert_eq!(done["audits"]["unaudited_steps"], 0);
    let report = market.folder().join(format!("{out}.json"));
    let report = fs::read(report).expect("the report is there");
    let report: Value = serde_json::from_slice(&report).expect("it is JSON");
    assert_eq!(report["audits"], done["audits"]);
    let states = format!("{out}.onnx.run/states");
    assert!(!market.folder().join(states).exists());
}

#[test]
fn workers_that_skip_steps_or_lie_are_found_and_audits_change_no_bit() {
    let market = Market::up();
    make_cheapest_lie(&market, "skip", 1_000_000);
    let (plain, audited) = (market.path("plain.onnx"), market.path("audited.onnx"));
    let plain = train(&market, &plain, &[]).done();
    assert_eq!(plain["audits"], Value::Null);
    let done = train(&market, &audited, &["--audit", "100"]).done();
    assert_eq!(done["tuned"]["blake3"], plain["tuned"]["blake3"]);
    assert_eq!(done["audits"]["confirmed_steps"], 8);
    assert_eq!(done["audits"]["convicted"], json!([]));
    let plan = train(&market, &audited, &["--audit", "25%", "--plan"]).done();
    assert_eq!(plan["audited_steps"], 2);
    // Two opinions on two steps, and eight steps.
    assert_eq!(plan["audits_kept_back_micro"], 16_666_667);
    for wrong in ["0", "101", "0.01%", "half"] {
        assert_eq!(train(&market, &audited, &["--audit", wrong]).code, 2);
    }
    let with_workers = ["--audit", "10%", "--workers", "2"];
    assert_eq!(train(&market, &audited, &with_workers).code, 2);

    assert_lie_is_found(&market, &plain, "skip", 0);
    assert_lie_is_found(&market, &plain, "lie", 2);
    market.assert_escrow_returns();
}
