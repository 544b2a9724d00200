//! Tests disputes: a provider that changes one element of an output of an exact job loses its stake
//! by the verdict of four validators; an honest provider that is accused keeps its stake, and the
//! accuser loses its bond.

use std::fs;

use serde_json::{Value, json};

use crate::common::{Market, souk};

const STAKE: u64 = 5_000_000;
const BOND: u64 = 1_000_000;

/// Sells an emulated device with exact results, which plays a fault, by a provider that has a
/// stake.
fn sell_exact(market: &Market, name: &str, profile: &str, fault: Value) {
    let device = json!({ "emulated": { "profile": profile, "exact": true } });
    let mut entries = vec![("device", device)];
    if !fault.is_null() {
        entries.push(("fault", fault));
    }
    market.set_in_provider(name, &entries);
    let account = market.account_of(name);
    market
        .souk(&[
            "account",
            "transfer",
            &account,
            "10",
            "--reference",
            "stake",
        ])
        .done();
    let staked = souk(
        &market.folder().join("net").join(name),
        &["account", "stake", "5"],
    )
    .done();
    assert_eq!(staked["stake"], STAKE);
}

/// What an account has at stake.
fn stake(market: &Market, name: &str) -> u64 {
    let account = market.account_of(name);
    let shown = market.souk(&["account", "show", &account]).done();
    shown["account"]["stake"].as_u64().expect("a number")
}

/// Buys an exact run, audits it, and returns the path of its receipt.
fn receipt_of(market: &Market, out: &str) -> String {
    let job = market.submit_few(out, &["--exact", "--audit", "100%"]);
    let job = job.done();
    assert_eq!(job["audit"], json!({ "requests": 1, "wrong": 0 }));
    let lease = job["receipts"][0]["body"]["lease"]
        .as_u64()
        .expect("a lease");
    market.path(&format!("{out}/receipt-{lease}.json"))
}

#[test]
fn who_changes_one_element_loses_its_stake_and_who_accuses_the_honest_its_bond() {
    let market = Market::of_four();
    let buyer = market.account_of("buyer");
    // Nobody promises exact results yet, and nothing is bought.
    let before = market.available(&buyer);
    let refused = market.submit_few("none", &["--exact"]);
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    assert!(refused.stdout.contains("exact"), "{}", refused.stdout);
    assert_eq!(market.available(&buyer), before);

    sell_exact(&market, "provider-2", "nvidia-h100-sxm", Value::Null);
    let honest = receipt_of(&market, "honest");
    let (mine, its) = (
        market.available(&buyer),
        market.available(&market.account_of("provider-2")),
    );
    // This machine computes the same bits first, and saves the bond.
    let checked = market.souk(&["dispute", "check", &honest]).done();
    assert_eq!(checked["outputs"], "right");
    let accused = market.souk(&["dispute", "open", &honest]);
    assert_eq!(accused.code, 7, "{} {}", accused.stdout, accused.stderr);
    assert_eq!(market.available(&buyer), mine);
    let accused = market.souk(&["dispute", "open", &honest, "--unchecked"]);
    assert_eq!(accused.code, 7, "{} {}", accused.stdout, accused.stderr);
    let listed = market.souk(&["dispute", "list"]).done();
    assert!(
        !listed["disputes"][0]["state"]["innocent"].is_null(),
        "{listed}"
    );
    assert_eq!(stake(&market, "provider-2"), STAKE);
    assert_eq!(market.available(&buyer), mine - BOND);
    assert_eq!(
        market.available(&market.account_of("provider-2")),
        its + BOND
    );
    let again = market.souk(&["dispute", "open", &honest, "--unchecked"]);
    assert!(again.stdout.contains("dispute_known"), "{}", again.stdout);

    // The same provider lies from now on.
    market.make_faulty("provider-2", "lie_once");
    let audited = market.submit_few("lied", &["--exact", "--audit", "100%"]);
    assert_eq!(audited.code, 7, "{} {}", audited.stdout, audited.stderr);
    let failure: Value = serde_json::from_str(&audited.stdout).expect("JSON");
    let audit = &failure["error"]["audit"];
    assert_eq!(
        (&audit["requests"], &audit["wrong"]),
        (&json!(1), &json!(1))
    );
    let lied = audit["receipts"][0].as_str().expect("a path").to_owned();
    let receipt: Value = serde_json::from_slice(&fs::read(&lied).unwrap()).unwrap();
    let paid = receipt["body"]["amount"].as_u64().unwrap();
    let checked = market.souk(&["dispute", "check", &lied]);
    assert_eq!(checked.code, 7, "{} {}", checked.stdout, checked.stderr);
    let mine = market.available(&buyer);
    let convicted = market.souk(&["dispute", "open", &lied]).done();
    let guilty = &convicted["state"]["guilty"];
    assert_eq!(guilty["slashed"], STAKE, "{convicted}");
    assert_eq!(guilty["compensated"], paid, "{convicted}");
    let verdicts = convicted["verdicts"].as_array().unwrap();
    assert!(verdicts.len() >= 3, "{convicted}");
    assert!(
        verdicts.iter().all(|it| it["verdict"] == "guilty"),
        "{convicted}"
    );
    assert_eq!(stake(&market, "provider-2"), 0);
    assert_eq!(market.available(&buyer), mine + paid, "the bond is back");
    let shown = market.souk(&["dispute", "show", "2"]).done();
    assert_eq!(shown["state"], convicted["state"]);
    market.assert_escrow_returns();
}
