//! Tests backups of a validator: taken while it runs, restored into an empty folder, and refused if
//! damaged.

use std::fs;

use crate::common::{Market, Ran, souk};
use crate::validator::{Newcomer, agree};

/// The cause and hint of a failure with this exit code.
fn failure(ran: &Ran, code: i32) -> String {
    assert_eq!(ran.code, code, "{} {}", ran.stdout, ran.stderr);
    let error = ran.json()["error"].clone();
    format!("{} {}", error["cause"], error["hint"])
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_backup_gives_a_newcomer_its_state_and_it_joins() {
    let market = Market::replicated();
    market.submit_digits("before", &[]).done();
    let file = market.path("market.backup");
    let taken = souk(
        market.path("net/validator-2").as_ref(),
        &["validator", "backup", &file],
    );
    assert_eq!(taken.done()["from"], 2, "a validator's own key is enough");
    market.submit_digits("after", &[]).done();

    let mut fourth = Newcomer::init(&market, "newcomer-4");
    let restored = fourth.souk(&["validator", "restore", &file]).done();
    assert_eq!(restored["index"], taken.json()["index"]);
    let twice = failure(&fourth.souk(&["validator", "restore", &file]), 8);
    assert!(twice.contains("init --new-log"), "{twice}");
    fourth.start();
    fourth.add(&market);
    agree(&market, &[1, 2, 3, 4]);
}

#[test]
fn a_market_begins_again_from_a_backup() {
    let market = Market::replicated();
    market.submit_digits("before", &[]).done();
    let file = market.path("market.backup");
    market.souk(&["validator", "backup", &file]).done();
    let before = market.souk(&["balance"]).done()["totals"].clone();
    market.souk(&["testnet", "down"]).done();
    for id in 1..=3 {
        let home = market.path(&format!("net/validator-{id}"));
        souk(home.as_ref(), &["validator", "init", "--new-log"]).done();
        let restored = souk(
            home.as_ref(),
            &["validator", "restore", "--new-market", &file],
        );
        assert_eq!(restored.done()["new_market"], true);
    }
    market.souk(&["testnet", "up", "--detach"]).done();
    agree(&market, &[1, 2, 3]);
    let after = market.souk(&["balance"]).done()["totals"].clone();
    assert_eq!(before["deposits"], after["deposits"]);
    market.submit_digits("again", &[]).done();
}

#[test]
fn a_damaged_backup_is_refused_with_file_and_byte() {
    let market = Market::replicated();
    let file = market.path("market.backup");
    market.souk(&["validator", "backup", &file]).done();
    let newcomer = Newcomer::init(&market, "newcomer-4");
    let mut bytes = fs::read(&file).unwrap();
    let (at, length) = (bytes.len() - 10, bytes.len());
    bytes[at] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let said = failure(&newcomer.souk(&["validator", "restore", &file]), 7);
    assert!(said.contains("market.backup"), "{said}");
    assert!(said.contains(&format!("and byte {length}")), "{said}");

    bytes.truncate(length / 2);
    fs::write(&file, &bytes).unwrap();
    let said = failure(&newcomer.souk(&["validator", "restore", &file]), 7);
    assert!(
        said.contains(&format!("ends at byte {}", length / 2)),
        "{said}"
    );
    fs::write(&file, "no backup").unwrap();
    let said = failure(&newcomer.souk(&["validator", "restore", &file]), 7);
    assert!(said.contains("not a backup"), "{said}");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_validator_on_damaged_data_says_what_and_what_to_do() {
    let market = Market::replicated();
    market.submit_digits("before", &[]).done();
    market.souk(&["testnet", "down"]).done();
    let home = market.path("net/validator-1");
    let names = fs::read_dir(format!("{home}/replica")).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("wal-"))
        .collect();
    names.sort();
    let log = format!("{home}/replica/{}", names[0]);
    let mut bytes = fs::read(&log).unwrap();
    bytes[5_000] ^= 1;
    fs::write(&log, &bytes).unwrap();
    let said = failure(&souk(home.as_ref(), &["validator", "run"]), 8);
    assert!(said.contains(&names[0]), "{said}");
    assert!(said.contains("byte"), "{said}");
    assert!(said.contains("souk validator init --new-log"), "{said}");
}
