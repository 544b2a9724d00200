//! Tests that a market's group of validators can grow, shrink and replace members while jobs run.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Market, souk};
use crate::seller::until;
use crate::validator::{Newcomer, agree, list, remove, with};

/// Ends the load when it is dropped, also where the test fails.
struct Loaded<'a>(&'a AtomicBool);

impl Drop for Loaded<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Submits jobs one after another until `done`; gives how many, all of which were done.
fn load(market: &Market, done: &AtomicBool) -> usize {
    let mut jobs = 0;
    while !done.load(Ordering::Relaxed) {
        let job = market.submit_few(&format!("load-{jobs}"), &["--wait", "60"]);
        assert_eq!(job.code, 0, "{} {}", job.stdout, job.stderr);
        jobs += 1;
    }
    jobs
}

/// Kills a validator of the testnet and keeps its supervisor from starting it again.
pub fn take_away(market: &Market, id: u64) {
    let home = market.path(&format!("net/validator-{id}"));
    std::fs::rename(format!("{home}/key"), format!("{home}/key.away")).expect("it has a key");
    for process in market.processes(&format!("validator-{id} ")) {
        let killed = Command::new("kill")
            .args(["-9", &process.to_string()])
            .status();
        assert!(killed.expect("kill is there").success());
    }
}

#[test]
fn three_grow_to_five_under_load_and_the_leader_leaves() {
    let market = Market::replicated();
    let done = AtomicBool::new(false);
    let jobs = std::thread::scope(|scope| {
        let jobs = scope.spawn(|| load(&market, &done));
        let loaded = Loaded(&done);
        let fourth = Newcomer::run(&market, "newcomer-4");
        let added = fourth.add(&market);
        assert_eq!(added["id"], 4);
        let fifth = Newcomer::run(&market, "newcomer-5");
        fifth.add(&market);
        assert_eq!(with(&list(&market), "voter"), [1, 2, 3, 4, 5]);

        let again = market.souk(&["validator", "add", &fifth.address]);
        assert_eq!(again.code, 8, "{}", again.stdout);
        assert!(
            again.stdout.contains("is validator 5 already"),
            "{}",
            again.stdout
        );

        // Nobody is removed while one that runs was not heard of lately, as on a busy machine.
        let mut leader = 0;
        market.until(|| {
            leader = list(&market)["leader"].as_u64().unwrap_or(0);
            let left = market.souk(&["validator", "remove", &leader.to_string()]);
            left.code == 0 && left.done()["standing"] == "removed"
        });
        let after = list(&market);
        assert_ne!(after["leader"].as_u64(), Some(leader));
        assert_eq!(with(&after, "voter").len(), 4);

        // On a busy machine one that runs may not have been heard of, or be elected meanwhile.
        market.until(|| {
            let leader = list(&market)["leader"].clone();
            let to = with(&after, "voter").into_iter().find(|id| leader != *id);
            let to = to.expect("four vote");
            let handed = market.souk(&["validator", "transfer-leader", &to.to_string()]);
            handed.code == 0 && handed.done()["leader"] == to && list(&market)["leader"] == to
        });

        drop(loaded);
        let jobs = jobs.join().unwrap();
        agree(&market, &with(&after, "voter"));
        assert_proofs_need_only_the_genesis(&market);
        jobs
    });
    assert!(jobs > 0, "jobs went through while the validators changed");
}

/// Who has the genesis alone can check what validators signed who came after it.
fn assert_proofs_need_only_the_genesis(market: &Market) {
    let job = market.submit_few("proven", &["--wait", "60"]).done();
    let receipt = job["receipt_files"][0].as_str().expect("a receipt");
    let [payment, balance, heads] =
        ["paid.tlog-proof", "me.account-proof", "heads"].map(|name| market.path(name));
    let certify = ["receipt", "verify", receipt, "--certified", "-o", &payment];
    let certified = market.souk(&certify).done();
    let proven = market.souk(&["account", "prove", "-o", &balance]).done();
    market.until(|| market.souk(&["market", "verify", "-o", &heads]).code == 0);
    let alone = tempfile::tempdir().expect("a temporary folder");
    let genesis = market.folder().join("net/market.json");
    std::fs::copy(genesis, alone.path().join("market.json")).expect("the genesis");
    let check = |arguments: &[&str]| souk(alone.path(), arguments).done();
    let paid = check(&["receipt", "verify", receipt, "--proof", &payment]);
    assert_eq!(paid["settled"], certified["settled"]);
    assert_eq!(paid["roster"]["changes"], 3, "two joined and one left");
    let held = check(&["account", "verify", &balance]);
    assert_eq!(held["certified"], proven["certified"]);
    let history = check(&["market", "verify", "--from", &heads]);
    assert_eq!(
        (&history["needed"], &history["validators"]),
        (&3.into(), &4.into())
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_wiped_validator_is_refused_and_rejoins_as_a_new_one() {
    let market = Market::replicated();
    market.submit_digits("before", &[]).done();
    let mut fourth = Newcomer::run(&market, "newcomer-4");
    fourth.add(&market);
    agree(&market, &[1, 2, 3, 4]);

    // The disk is lost: the log, and what said that there was one.
    fourth.kill();
    std::fs::remove_dir_all(format!("{}/replica", fourth.folder)).unwrap();
    // It may not have come to write it.
    let _ = std::fs::remove_file(format!("{}/founded", fourth.folder));
    fourth.start();
    let (code, said) = fourth.ended();
    assert_eq!(code, 8, "{said}");
    assert!(said.contains("the log of validator 4 is gone"), "{said}");
    assert!(said.contains("souk validator remove 4"), "{said}");

    remove(&market, 4);
    fourth.start();
    let (code, said) = fourth.ended();
    assert_eq!(code, 8, "{said}");
    assert!(said.contains("validator 4 was removed"), "{said}");

    fourth.souk(&["validator", "init", "--new-log"]).done();
    fourth.start();
    let added = fourth.add(&market);
    assert_eq!(added["id"], 5, "the same key, a new id");
    agree(&market, &[1, 2, 3, 5]);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_market_outlives_all_its_founders() {
    let market = Market::replicated();
    let fourth = Newcomer::run(&market, "newcomer-4");
    fourth.add(&market);
    // Whoever meets the validators keeps who they are: a command at once, a provider every 5 s.
    market.souk(&["balance"]).done();
    for id in 1..=4 {
        let known = market.path(&format!("net/provider-{id}/validators.json"));
        let knows =
            || std::fs::read_to_string(&known).is_ok_and(|text| text.contains(&fourth.address));
        until("a provider has met it", knows);
    }
    for id in 1..=3 {
        remove(&market, id);
    }
    for id in 1..=3 {
        take_away(&market, id);
    }
    agree(&market, &[4]);
    for process in market.processes("provider-3 ") {
        let killed = Command::new("kill")
            .args(["-9", &process.to_string()])
            .status();
        assert!(killed.expect("kill is there").success());
    }
    until("jobs go on", || {
        market.submit_digits("after", &[]).code == 0
    });
    until("the provider is back", || {
        market.processes("provider-3 ").len() == 1
            && market.souk(&["book"]).done().as_array().map(Vec::len) == Some(4)
    });
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_wiped_founder_is_refused_although_all_start_at_once() {
    let market = Market::replicated();
    market.submit_digits("before", &[]).done();
    agree(&market, &[1, 2, 3]);
    market.souk(&["testnet", "down"]).done();
    let home = market.path("net/validator-3");
    std::fs::remove_dir_all(format!("{home}/replica")).unwrap();
    std::fs::remove_file(format!("{home}/founded")).unwrap();
    let refused = market.souk(&["testnet", "up", "--detach"]);
    assert_eq!(refused.code, 8, "{}", refused.stdout);
    let cause = "the log of validator 3 is gone";
    assert!(refused.stdout.contains(cause), "{}", refused.stdout);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_dead_validator_is_replaced_and_a_quorum_is_never_given_away() {
    let market = Market::replicated();
    let leader = list(&market)["leader"].as_u64().unwrap();
    let dead = leader % 3 + 1;
    let alive = 6 - leader - dead;
    take_away(&market, dead);
    // The leader hears nothing of it for an election timeout before it counts as down.
    let begin = std::time::Instant::now();
    let runs = |id: u64| list(&market)["validators"][id as usize - 1]["running"].clone();
    while runs(dead) != false {
        assert!(begin.elapsed().as_secs() < 30, "{}", list(&market));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }

    let refused = market.souk(&["validator", "remove", &alive.to_string()]);
    assert_eq!(refused.code, 8, "{}", refused.stdout);
    assert!(
        refused.stdout.contains("needed for a quorum"),
        "{}",
        refused.stdout
    );

    let nobody = Newcomer::init(&market, "newcomer-never-started");
    let unreached = market.souk(&["validator", "add", &nobody.address]);
    assert_eq!(unreached.code, 5, "{}", unreached.stdout);
    assert!(
        unreached
            .stdout
            .contains("the leader cannot reach the new validator"),
        "{}",
        unreached.stdout
    );

    let fourth = Newcomer::run(&market, "newcomer-4");
    fourth.add(&market);
    remove(&market, dead);
    let mut voters = [leader, alive, 4];
    voters.sort_unstable();
    agree(&market, &voters);
    let unknown = market.souk(&["validator", "remove", "17"]);
    assert_eq!(unknown.code, 3, "{}", unknown.stdout);
    market.submit_digits("after", &[]).done();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn only_the_operator_orders_and_the_last_validator_stays() {
    let market = Market::replicated();
    let stranger = market.path("net/buyer/key");
    let refused = market.souk(&["validator", "remove", "1", "--operator-key", &stranger]);
    assert_eq!(refused.code, 8, "{}", refused.stdout);
    assert!(
        refused.stdout.contains("may not order this"),
        "{}",
        refused.stdout
    );
    let missing = market.path("no-key");
    let refused = market.souk(&[
        "validator",
        "transfer-leader",
        "1",
        "--operator-key",
        &missing,
    ]);
    assert_eq!(refused.code, 8, "{}", refused.stdout);

    let leader = list(&market)["leader"].as_u64().unwrap();
    let refused = market.souk(&["validator", "transfer-leader", &leader.to_string()]);
    assert!(
        refused.stdout.contains("leads already"),
        "{}",
        refused.stdout
    );
    remove(&market, 1);
    remove(&market, 2);
    assert_eq!(with(&list(&market), "voter"), [3]);
    let last = market.souk(&["validator", "remove", "3"]);
    assert_eq!(last.code, 8, "{}", last.stdout);
    assert!(last.stdout.contains("the last one"), "{}", last.stdout);
    market.submit_digits("alone", &[]).done();
    market.souk(&["testnet", "down"]).done();
    market.souk(&["testnet", "up", "--detach"]).done();
    agree(&market, &[3]);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn without_a_majority_a_stale_answer_with_its_age_is_to_be_had_when_asked_for() {
    let market = Market::replicated();
    let fresh = market.souk(&["balance", "--stale"]).done();
    assert_eq!(fresh["totals"]["balanced"], true);
    let applied = fresh["stale"]["applied"].as_u64().unwrap();
    assert!(applied > 0, "{fresh}");
    assert!(market.souk(&["balance"]).done()["stale"].is_null());

    take_away(&market, 2);
    take_away(&market, 3);
    let refused = market.souk(&["book"]);
    assert_eq!(refused.code, 5, "{}", refused.stdout);
    assert!(refused.stdout.contains("--stale"), "{}", refused.stdout);
    market.until(|| {
        let stale = market.souk(&["book", "--stale"]).done();
        assert_eq!(stale["asks"].as_array().map(Vec::len), Some(4), "{stale}");
        assert!(
            stale["stale"]["applied"].as_u64() >= Some(applied),
            "{stale}"
        );
        stale["stale"]["age_ms"].as_u64() > Some(1_000)
    });
}
