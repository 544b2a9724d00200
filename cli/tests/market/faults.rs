//! Tests that a buyer's job survives providers that die, stall or return wrong results, the death
//! of the buyer itself, and an interrupt.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Market, floats, kill, souk};
use crate::seller::{Seller, until};

/// A job of two parts on two emulated providers, so that one of them may be made faulty.
const CUT: [&str; 2] = ["--min-providers", "2"];

/// The providers of a plan's parts, in order.
fn providers(job: &Value) -> Vec<String> {
    let parts = job["plan"]["parts"].as_array().expect("a plan has parts");
    parts
        .iter()
        .map(|part| part["provider"].as_str().expect("an account").to_owned())
        .collect()
}

/// The name of the provider with this account.
fn name_of(market: &Market, account: &str) -> String {
    let names = (1..=4).map(|n| format!("provider-{n}"));
    let mut found = names.filter(|name| market.account_of(name) == account);
    found.next().expect("it is one of the testnet's")
}

fn logits(market: &Market, out: &str) -> Vec<f32> {
    floats(&market.folder().join(out).join("logits.npy"))
}

/// The accounts of everyone who was paid by receipt.
fn paid(job: &Value) -> Vec<&str> {
    let receipts = job["receipts"].as_array().expect("a job has receipts");
    receipts
        .iter()
        .map(|r| r["body"]["provider"].as_str().expect("an account"))
        .collect()
}

/// What the receipts of a job come to.
fn billed(job: &Value) -> u64 {
    let receipts = job["receipts"].as_array().expect("a job has receipts");
    let amounts = receipts.iter().map(|r| r["body"]["amount"].as_u64());
    amounts.map(|amount| amount.expect("a number")).sum()
}

/// Asserts that the job's own input was read once, and what was made of it by the rest of the job.
fn assert_first_part_ran_once(first: &Value, again: &Value) {
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let bodies = |job: &Value| -> Vec<Value> {
        list(&job["receipts"])
            .into_iter()
            .map(|receipt| receipt["body"].clone())
            .collect()
    };
    let holds = |body: &Value, side: &str, id: &Value| list(&body[side]).contains(id);
    let planned = providers(first);
    let (firsts, bodies) = (bodies(first), bodies(again));
    let maker = firsts
        .iter()
        .find(|body| body["provider"] == *planned[0])
        .expect("the first part has a receipt");
    let images = &list(&maker["inputs"])[0];
    let (made, rest): (Vec<_>, Vec<_>) = bodies
        .iter()
        .partition(|body| holds(body, "inputs", images));
    assert_eq!(made.len(), 1, "the input was read by one part, once");
    assert_eq!(made[0]["graph"], maker["graph"], "that of the plan");
    assert!(!rest.is_empty());
    let crossed = list(&made[0]["outputs"]);
    assert!(
        rest.iter()
            .any(|body| crossed.iter().any(|id| holds(body, "inputs", id)))
    );
    assert!(
        rest.iter().all(|body| body["job"] != made[0]["job"]),
        "the rest was bought as such"
    );
}

/// Runs the cut job once, has the provider of its last part play a fault, and runs it again.
fn after_a_fault_in_the_last_part(fault: &str) {
    let market = Market::up();
    let first = market.submit_digits("first", &CUT).done();
    let planned = providers(&first);
    let victim = planned.last().expect("it is there");
    market.make_faulty(&name_of(&market, victim), fault);
    let again = market.submit_digits("again", &CUT).done();
    assert_eq!(
        providers(&again),
        planned,
        "it was bought from the faulty one at first"
    );
    assert!(
        !paid(&again).contains(&victim.as_str()),
        "who failed is not paid"
    );
    assert_first_part_ran_once(&first, &again);
    assert_eq!(logits(&market, "again"), logits(&market, "first"));
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn what_was_computed_before_a_provider_died_is_not_run_again() {
    after_a_fault_in_the_last_part("die");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn what_was_computed_before_a_provider_stalled_is_not_run_again() {
    after_a_fault_in_the_last_part("stall");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_device_that_fails_in_the_middle_of_a_job_has_its_part_run_elsewhere() {
    let market = Market::up();
    let first = market.submit_digits("first", &CUT).done();
    let planned = providers(&first);
    let victim = planned.last().expect("it is there");
    let name = name_of(&market, victim);
    let mut device = market.device_of(&name);
    device["emulated"]["failures"] = 1.0.into();
    market.set_in_provider(&name, &[("device", device)]);
    let again = market.submit_digits("again", &CUT).done();
    assert_eq!(providers(&again), planned, "its ask is what it was");
    assert!(!paid(&again).contains(&victim.as_str()));
    assert_first_part_ran_once(&first, &again);
    assert_eq!(logits(&market, "again"), logits(&market, "first"));
    market.assert_escrow_returns();
}

#[test]
fn of_two_that_differ_the_liar_is_outvoted_and_not_paid() {
    let market = Market::up();
    let honest = market
        .submit_few("honest", &["--max-providers", "1", "--verify", "2"])
        .done();
    assert_eq!(
        paid(&honest).len(),
        2,
        "both runs are paid where they agree"
    );
    let first = providers(&honest).remove(0);
    let second = honest["plan"]["compared_with"][0]["provider"]
        .as_str()
        .unwrap()
        .to_owned();
    let liar = [first, second]
        .into_iter()
        .find(|account| name_of(&market, account) != "provider-1")
        .expect("one of them is emulated");
    market.assert_escrow_returns();
    let before = market.available(&liar);
    market.make_faulty(&name_of(&market, &liar), "lie");

    let judged = market
        .submit_few("judged", &["--max-providers", "1", "--verify", "2"])
        .done();
    let parties = [
        providers(&judged),
        vec![
            judged["plan"]["compared_with"][0]["provider"]
                .as_str()
                .unwrap()
                .to_owned(),
        ],
    ];
    assert!(parties.concat().contains(&liar), "the liar was asked");
    assert!(!paid(&judged).contains(&liar.as_str()), "{judged}");
    assert_eq!(
        paid(&judged).len(),
        2,
        "the honest one and the third are paid"
    );
    assert_eq!(logits(&market, "judged"), logits(&market, "honest"));
    market.assert_escrow_returns();
    assert_eq!(market.available(&liar), before, "a lie earns nothing");

    // Without a second run nobody would have known.
    let believed = market
        .submit_few("believed", &["--max-providers", "1"])
        .done();
    if paid(&believed).contains(&liar.as_str()) {
        assert_ne!(logits(&market, "believed"), logits(&market, "honest"));
    }
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn an_interrupted_submission_ends_its_leases_at_once() {
    let market = Market::up();
    let first = market
        .submit_digits("first", &["--max-providers", "1"])
        .done();
    let victim = providers(&first).remove(0);
    if name_of(&market, &victim) == "provider-1" {
        return;
    }
    market.make_faulty(&name_of(&market, &victim), "stall");
    let child = market.spawn_digits("out", &["--max-providers", "1"]);
    market.until(|| market.souk(&["balance"]).done()["totals"]["escrow"] != 0);
    std::thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    kill(child.id(), "-INT");
    let ended = child.wait_with_output().unwrap();
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "it does not wait for the leases"
    );
    assert_eq!(ended.status.code(), Some(130));
    let error: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(error["error"]["reason"], "interrupted");
    assert_eq!(error["error"]["leases_ended"], 1);
    assert_eq!(error["error"]["spent_micro_credits"], 0);
    market.assert_escrow_returns();
    let jobs = market.souk(&["job", "list"]).done();
    assert_eq!(
        jobs.as_array().unwrap().last().unwrap()["state"],
        "interrupted"
    );
}

#[test]
fn a_job_whose_buyer_was_killed_is_resumed_from_what_was_computed() {
    let market = Market::up();
    let first = market.submit_digits("first", &CUT).done();
    let planned = providers(&first);
    let victim = planned.last().unwrap();
    market.make_faulty(&name_of(&market, victim), "stall");
    // The first part is done and offered; the second stalls; then the buyer's machine goes.
    let mut child = market.spawn_digits("out", &CUT);
    let name = || {
        let jobs = market.souk(&["job", "list"]).done();
        let last = jobs
            .as_array()?
            .last()
            .filter(|job| job["state"] == "running")?;
        last["name"].as_str().map(str::to_owned)
    };
    // It runs the second part once it has what the first one made.
    market.until(|| {
        let logs = name().map(|name| market.souk(&["job", "logs", &name]).stdout);
        logs.is_some_and(|logs| logs.contains("part 2 of 2"))
    });
    kill(child.id(), "-9");
    child.wait().unwrap();

    let name = name().expect("nobody has ended it");
    let status = market.souk(&["job", "status", &name]).done();
    assert_eq!(status["leases"].as_array().unwrap().len(), 2);
    // A buyer that waits for a provider that stalls is another test's.
    market.set_in_provider(&name_of(&market, victim), &[("fault", Value::Null)]);
    let resumed = market.souk(&["job", "resume", &name]).done();
    assert_eq!(logits(&market, "out"), logits(&market, "first"));
    assert_first_part_ran_once(&first, &resumed);
    market.assert_escrow_returns();
    let again = market.souk(&["job", "resume", &name]);
    assert_eq!(again.code, 8, "{}", again.stdout);
    assert!(again.stdout.contains("is done"), "{}", again.stdout);
    let unknown = market.souk(&["job", "resume", "abc"]);
    assert_eq!(unknown.code, 8, "{}", unknown.stdout);
    assert!(
        unknown.stdout.contains("there is no job abc"),
        "{}",
        unknown.stdout
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_job_that_every_provider_loses_says_whom_it_tried_and_keeps_no_money() {
    let market = Market::up();
    for number in 1..=4 {
        let device = json!({ "emulated": { "profile": "nvidia-h100-sxm" } });
        let entries = [("device", device), ("fault", "crash".into())];
        market.set_in_provider(&format!("provider-{number}"), &entries);
    }
    let failed = market.submit_digits("out", &["--max-providers", "1"]);
    assert_ne!(failed.code, 0, "{}", failed.stdout);
    let error = failed.json()["error"].clone();
    assert_eq!(error["reason"], "none_eligible", "{error}");
    assert_eq!(error["failed_before"].as_array().map(Vec::len), Some(4));
    assert_eq!(error["spent_micro_credits"], 0, "{error}");
    market.assert_escrow_returns();
}

/// The most that a job of these tests may cost, in credits.
const BUDGET: &str = "20";

#[test]
#[ignore = "long: .ci/long runs it"]
fn four_providers_may_be_lost_and_a_fifth_finishes_within_the_budget() {
    let market = Market::up();
    let right = market
        .submit_digits("right", &["--max-providers", "1"])
        .done();
    let crashing: Vec<String> = (1..=4).map(|number| format!("provider-{number}")).collect();
    market.set_in_providers(crashing.iter().map(|name| {
        let device = json!({ "emulated": { "profile": "nvidia-h100-sxm" } });
        (
            name.as_str(),
            vec![("device", device), ("fault", "crash".into())],
        )
    }));
    let mut fifth = Seller::run(&market, "fifth");
    let hands = crate::hand::Hand::join(&market);
    until("the fifth is on offer", || {
        hands.listing(fifth.account()).is_some()
    });
    market.assert_escrow_returns();
    let before = market.available(&buyer(&market));
    let limits = ["--max-providers", "1", "--budget", BUDGET];
    let done = market.submit_digits("done", &limits).done();
    let account = fifth.account().to_string();
    assert_eq!(paid(&done), [account.as_str()], "nobody else is paid");
    assert_eq!(logits(&market, "done"), logits(&market, "right"));
    market.assert_escrow_returns();
    let spent = before - market.available(&buyer(&market));
    assert_eq!(spent, billed(&done), "what failed cost nothing");
    assert_ne!(providers(&right), [account], "it is the last choice");

    // With one more that fails the job is given up, though a sixth would do it.
    fifth.kill();
    fifth.sell("nvidia-h100-sxm", Some("crash"));
    fifth.start();
    let sixth = Seller::run(&market, "sixth");
    for seller in [&fifth, &sixth] {
        until("it is on offer", || {
            hands.listing(seller.account()).is_some()
        });
    }
    let given_up = market.submit_digits("out", &limits);
    assert_eq!(given_up.code, 6, "{}", given_up.stdout);
    let error = given_up.json()["error"].clone();
    assert_eq!(error["reason"], "provider_failed", "{error}");
    assert_eq!(error["failed_before"].as_array().map(Vec::len), Some(4));
    assert_eq!(error["spent_micro_credits"], 0, "{error}");
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_budget_that_a_lost_provider_holds_is_waited_for() {
    let market = Market::up();
    let cpu = market.account_of("provider-1");
    for (number, price) in [(2, 90_000), (3, 100_000), (4, 100_000)] {
        let device = json!({ "emulated": { "profile": "amd-epyc-9654" } });
        let entries = [("device", device), ("price", price.into())];
        market.set_in_provider(&format!("provider-{number}"), &entries);
    }
    // One lease of five seconds holds all of it; one of two is over on a busy machine.
    let limits = [
        "--max-providers",
        "1",
        "--budget",
        "0.45",
        "--exclude",
        &cpu,
    ];
    let first = market.submit_digits("first", &limits).done();
    let victim = providers(&first).remove(0);
    market.make_faulty(&name_of(&market, &victim), "stall");
    market.assert_escrow_returns();
    let before = market.available(&buyer(&market));
    let victim_before = market.available(&victim);
    let again = market.submit_digits("again", &limits).done();
    assert_eq!(
        providers(&again),
        [victim.as_str()],
        "it was bought from first"
    );
    assert!(!paid(&again).contains(&victim.as_str()), "{again}");
    assert_eq!(logits(&market, "again"), logits(&market, "first"));
    market.assert_escrow_returns();
    let spent = before - market.available(&buyer(&market));
    // The market keeps the price of the held device, a tenth of the ask.
    assert!(spent <= billed(&again) + 450_000 / 10, "{spent}");
    let earned = market.available(&victim) - victim_before;
    assert_eq!(earned, 0, "stalling earns nothing");
}

/// The account that `souk submit` spends from.
fn buyer(market: &Market) -> String {
    market.account_of("buyer")
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_market_under_faults_keeps_its_promises() {
    let folder = tempfile::tempdir().unwrap();
    let short = [
        "testnet",
        "chaos",
        "--seed",
        "7",
        "--minutes",
        "0.4",
        "--per-hour",
        "600",
    ];
    let report = souk(folder.path(), &short).done();
    assert_eq!(report["violations"], serde_json::json!([]));
    assert_eq!(report["faults"].as_array().map(Vec::len), Some(4));
    assert!(report["jobs"]["finished"].as_u64() > Some(0), "{report}");
    assert_eq!(report["jobs"]["wrong"], 0);
}
