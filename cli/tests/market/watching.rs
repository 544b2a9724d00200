//! Tests the metrics that providers and validators serve for monitoring, and the totals of a
//! provider's devices.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use crate::common::{Market, souk};
use crate::seller::{Seller, until};
use crate::validator::Newcomer;

/// The figures that a node tells, by name and labels; none while it does not answer.
fn figures(address: &str) -> Option<BTreeMap<String, f64>> {
    let mut stream = TcpStream::connect(address).ok()?;
    let question = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, text) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let told = text.lines().filter(|line| !line.starts_with('#'));
    let figure = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a figure");
        (name.to_owned(), value.parse().expect("a number"))
    };
    Some(told.map(figure).collect())
}

/// The sum of all figures of a name.
fn sum(figures: &BTreeMap<String, f64>, name: &str) -> f64 {
    let labelled = format!("{name}{{");
    let of_name = |key: &&String| *key == name || key.starts_with(&labelled);
    let keys: Vec<&String> = figures.keys().filter(of_name).collect();
    assert!(!keys.is_empty(), "{name} is not told: {figures:?}");
    keys.into_iter().map(|key| figures[key]).sum()
}

/// Runs a job on one provider outside the testnet; its receipt.
fn job(market: &Market, out: &str) -> Value {
    let names = ["provider-1", "provider-2", "provider-3", "provider-4"];
    let accounts = names.map(|name| market.account_of(name));
    let mut limits = vec!["--max-providers", "1", "--wait", "30"];
    for account in &accounts {
        limits.extend(["--exclude", account]);
    }
    market.submit_few(out, &limits).done()["receipts"][0]["body"].clone()
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_provider_tells_what_it_did_until_its_sums_are_begun_anew() {
    let market = Market::up();
    let mut seller = Seller::init(&market, "watched");
    let address = seller.watch();
    seller.start();
    until("it is watched", || figures(&address).is_some());
    until("it is on offer", || {
        let book = market.souk(&["book"]).done();
        let asks = book.as_array().expect("a list").clone();
        asks.iter()
            .any(|ask| ask["provider"] == seller.account().to_string())
    });
    let receipt = job(&market, "first");
    let earned = "souk_provider_earned_micro_credits_total";
    let paid = receipt["amount"].as_f64().expect("an amount");
    until("it was paid", || {
        figures(&address).is_some_and(|told| sum(&told, earned) == paid)
    });
    let told = figures(&address).expect("it answers");
    assert_eq!(sum(&told, "souk_leases_done_total"), 1.0);
    assert_eq!(sum(&told, "souk_provider_leases_running"), 0.0);
    for name in [
        "souk_device_busy_seconds_total",
        "souk_device_operators_total",
        "souk_device_transfer_seconds_total",
        "souk_lease_received_bytes_total",
        "souk_content_transferred_bytes_total{direction=\"received\"}",
        "souk_content_transferred_bytes_total{direction=\"sent\"}",
        "souk_content_memory_bytes",
        "souk_content_memory_limit_bytes",
        "souk_peers_connected",
        "process_resident_memory_bytes",
    ] {
        assert!(sum(&told, name) > 0.0, "{name}: {told:?}");
    }

    // The same is in its folder, and what a crash comes between goes on from there.
    let sums = seller.status()["statistics"].clone();
    let device = sums["report"]["devices"].as_object().expect("devices");
    assert_eq!((&sums["leases"], device.len()), (&1.into(), 1), "{sums}");
    seller.kill();
    seller.start();
    until("it is back", || figures(&address).is_some());
    assert_eq!(
        sum(
            &figures(&address).expect("it answers"),
            "souk_leases_done_total"
        ),
        1.0
    );

    let reset = souk(seller.folder.as_ref(), &["provider", "status", "--reset"]).done();
    assert_eq!(reset["statistics"], sums, "they are shown once more");
    assert_eq!(
        sum(
            &figures(&address).expect("it answers"),
            "souk_leases_done_total"
        ),
        0.0
    );
    assert_eq!(seller.status()["statistics"]["leases"], 0);
    assert_eq!(
        seller.status()["earned"],
        receipt["amount"],
        "money is not begun anew"
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_provider_tells_how_busy_its_device_is_and_what_memory_it_has_free() {
    let market = Market::up();
    let mut seller = Seller::init(&market, "standing");
    let file = format!("{}/provider.json", seller.folder);
    let text = std::fs::read_to_string(&file).expect("a provider's file");
    let mut config: Value = serde_json::from_str(&text).expect("it is JSON");
    config["device"] = serde_json::json!({ "cpu": { "threads": 1 } });
    std::fs::write(&file, config.to_string()).expect("it is written");
    let address = seller.watch();
    assert_eq!(seller.status()["live"], Value::Null, "it does not run");
    seller.start();
    let free = "souk_device_memory_free_bytes";
    until("its device was asked", || {
        figures(&address).is_some_and(|told| told.keys().any(|name| name.starts_with(free)))
    });
    let told = figures(&address).expect("it answers");
    assert!(sum(&told, free) > 0.0);
    assert!((0.0..=1.0).contains(&sum(&told, "souk_device_utilisation")));
    let live = seller.status()["live"].clone();
    assert!(live[0]["memory_free_bytes"].as_u64() > Some(0), "{live}");
    assert!(live[0]["utilisation"].is_f64(), "{live}");
}

#[test]
fn a_validator_tells_of_its_log_and_of_the_market() {
    let market = Market::up();
    let mut newcomer = Newcomer::init(&market, "watched");
    let address = newcomer.watch();
    newcomer.start();
    newcomer.add(&market);
    until("it has the log", || {
        figures(&address).is_some_and(|told| sum(&told, "souk_market_orders") >= 4.0)
    });
    let told = figures(&address).expect("it answers");
    assert_eq!(sum(&told, "souk_log_role"), 1.0, "it is one of them");
    assert!(told["souk_log_index{position=\"applied\"}"] > 0.0);
    assert!(sum(&told, "souk_market_accounts") >= 5.0, "{told:?}");
    assert!(sum(&told, "souk_market_micro_credits") > 0.0);
    assert!(sum(&told, "souk_peers_connected") >= 1.0);
}

#[test]
fn addresses_that_are_not_for_this_are_refused_by_name() {
    let market = Market::up();
    let seller = Seller::init(&market, "watched");
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    let taken = taken.local_addr().expect("it is bound").to_string();
    for (address, code) in [("0.0.0.0:9464", 3), ("nonsense", 2), (taken.as_str(), 5)] {
        let folder = seller.folder.as_ref();
        let ran = souk(folder, &["provider", "run", "--metrics", address]);
        assert_eq!(ran.code, code, "{address}: {} {}", ran.stdout, ran.stderr);
        let said = ran.stdout + &ran.stderr;
        assert!(said.contains(address), "{said}");
    }
}
