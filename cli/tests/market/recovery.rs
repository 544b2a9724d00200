//! Tests that a provider is paid after a crash for work in its journal that the buyer had not
//! signed for, and that a testnet starts a node again that could not start.

use std::fs;

use serde_json::{Value, json};
use souk_folder::facts::format_lines;
use souk_node::provider::JOURNAL_FORMAT;

use crate::common::{Market, kill, souk};

const ONE: [&str; 2] = ["--max-providers", "1"];

/// Device time that the journal is made to say was used, in microseconds.
const USED: u64 = 100_000;

#[test]
#[ignore = "long: .ci/long runs it"]
fn work_that_was_done_and_not_signed_for_is_paid_after_a_crash() {
    let market = Market::up();
    let first = market.submit_digits("first", &ONE).done();
    let account = first["plan"]["parts"][0]["provider"]
        .as_str()
        .expect("an account");
    let mut names = (1..=4).map(|n| format!("provider-{n}"));
    let name = names.find(|name| market.account_of(name) == account);
    let name = name.expect("it is one of the testnet's");
    market.make_faulty(&name, "stall");
    let folder = market.folder().join("net").join(&name);
    let status = || souk(&folder, &["provider", "status"]).done();
    let earned = status()["earned"].as_u64().expect("an amount");

    let mut buyer = market.spawn_digits("again", &ONE);
    let open = || status()["open_leases"].as_array().map_or(0, Vec::len);
    market.until(|| open() == 1);
    let lease = status()["open_leases"][0].clone();
    // Silence pays for what the buyer has begun, and it says so in the log after a while.
    let begun =
        || market.souk(&["lease", "show", &lease.to_string()]).done()["work_started"] == true;
    market.until(begun);
    kill(buyer.id(), "-9");
    buyer.wait().expect("it was killed");
    // As if it had been done just before the power went: this line is durable before anybody is
    // told. The provider is held meanwhile, so that it writes no line of the same number.
    let processes = market.processes(&format!("{name} "));
    processes.iter().for_each(|process| kill(*process, "-STOP"));
    let path = folder.join("journal.jsonl");
    let text = fs::read_to_string(&path).expect("a provider has a journal");
    let ran = json!({ "what": "ran", "lease": lease, "usage": USED });
    let line = format_lines(JOURNAL_FORMAT, text.lines().count() as u64 + 1, &[ran]);
    fs::write(&path, text + &line).expect("it is written");
    processes.iter().for_each(|process| kill(*process, "-9"));

    market.until(|| status()["earned"].as_u64() > Some(earned));
    let entry: Value = status()["leases"][lease.to_string()].clone();
    let price = entry["price"].as_u64().expect("a price");
    // The time for which the buyer held the device may come to more.
    assert!(
        entry["closed"]["paid"].as_u64() >= Some(USED * price / 1_000_000),
        "{entry}"
    );
    market.assert_escrow_returns();
}

#[test]
fn a_node_that_could_not_be_started_is_tried_again() {
    let market = Market::with_one_provider();
    let home = market.folder().join("net/provider-1");
    let [file, away] = ["provider.json", "away.json"].map(|name| home.join(name));
    fs::rename(&file, &away).expect("a file is moved");
    for process in market.processes("provider-1 ") {
        kill(process, "-9");
    }
    let log = market.folder().join("net/testnet.log");
    let said = |what: &str| fs::read_to_string(&log).is_ok_and(|log| log.contains(what));
    market.until(|| said("provider-1 could not be started and is tried again"));
    fs::rename(&away, &file).expect("a file is moved");
    market.until(|| said("provider-1 is back"));
    assert!(!market.processes("provider-1 ").is_empty());
}
