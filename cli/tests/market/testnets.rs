//! Tests commands on a running testnet: funding its accounts and killing its nodes.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Market, SOUK, kill};

#[test]
fn any_account_of_a_testnet_is_funded_by_its_name_or_its_key() {
    let market = Market::with_one_provider();
    let buyer = market.account_of("buyer");
    let before = market.available(&buyer);
    let funded = market.souk(&["testnet", "fund", "buyer", "7.5"]).done();
    assert_eq!(funded["amount"], 7_500_000);
    assert_eq!(funded["account"], *buyer);
    assert_eq!(market.available(&buyer), before + 7_500_000);

    let provider = market.account_of("provider-1");
    let had = market.available(&provider);
    market.souk(&["testnet", "fund", "provider-1", "1"]).done();
    market.souk(&["testnet", "fund", &provider, "2"]).done();
    assert_eq!(market.available(&provider), had + 3_000_000);

    let wrong = market.souk(&["testnet", "fund", "../buyer", "1"]);
    assert_eq!(wrong.code, 3, "{}", wrong.stdout);
    let hint = wrong.json()["error"]["hint"].clone();
    let hint = hint.as_str().expect("a hint");
    assert!(hint.starts_with("its accounts are buyer, operator, validator-1, provider-1"));
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn nodes_of_a_testnet_that_runs_are_killed_and_come_back_and_the_market_goes_on() {
    let market = Market::replicated();
    let chaos = ["testnet", "chaos", "--running", "--seed", "5"];
    let ran = market.souk(&[&chaos[..], &["--minutes", "0.2", "--per-hour", "1200"]].concat());
    assert_eq!(ran.code, 0, "{} {}", ran.stdout, ran.stderr);
    let lines = ran.stdout.lines().map(serde_json::from_str);
    let mut lines: Vec<Value> = lines.map(|line| line.expect("JSON")).collect();
    let report = lines.pop().expect("a report");
    assert_eq!(report["kills"], 4);
    assert_eq!(report["violations"].as_array().map(Vec::len), Some(0));
    for killed in &lines {
        let name = killed["node"].as_str().expect("a name");
        let now = market.processes(&format!("{name} "));
        let process = killed["process"].as_u64().expect("a number");
        assert!(!now.is_empty(), "{name} is back");
        assert!(!now.iter().any(|id| u64::from(*id) == process), "{killed}");
    }
    let digits = market.submit_few("out", &[]);
    assert_eq!(digits.code, 0, "{} {}", digits.stdout, digits.stderr);
}

#[test]
fn kills_end_when_told_to_and_where_no_testnet_runs() {
    let market = Market::with_one_provider();
    let started = Command::new(SOUK)
        .arg("--dir")
        .arg(market.path("net"))
        .args(["testnet", "chaos", "--running", "--minutes", "60"])
        .args(["--per-hour", "1"])
        .stdout(Stdio::piped())
        .spawn();
    let mut chaos = started.expect("the binary runs");
    let refused = market.souk(&["testnet", "chaos", "--running", "--gateway"]);
    assert_eq!(refused.code, 8, "{}", refused.stdout);
    market.until(|| is_caught(chaos.id()));
    kill(chaos.id(), "-INT");
    assert!(chaos.wait().expect("it ends").success());

    market.souk(&["testnet", "down"]).done();
    let none = market.souk(&["testnet", "chaos", "--running"]);
    assert_eq!(none.code, 8, "{}", none.stdout);
}

/// Whether a process has an answer of its own to Ctrl-C.
fn is_caught(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 2 != 0)
}

#[test]
#[cfg(unix)]
fn a_command_of_souk_lab_says_how_to_get_it_if_it_is_missing() {
    let folder = std::path::Path::new(SOUK).with_file_name("without-lab");
    std::fs::create_dir_all(&folder).expect("a folder is made");
    let alone = folder.join("souk");
    // A link by name: a symbolic one would lead to the folder where `souk-lab` is.
    let _ = std::fs::remove_file(&alone);
    std::fs::hard_link(SOUK, &alone).expect("the binary is linked");
    let ended = Command::new(&alone)
        .args(["testnet", "sim", "--seeds", "2"])
        .output();
    let ended = ended.expect("the binary runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("cargo build --release -p souk-lab"), "{said}");
}
