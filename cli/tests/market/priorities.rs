//! Tests the order in which jobs of one buyer, each in its own process, get the devices for which
//! they all wait.

use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::{IMAGES, Market, SOUK, digits, images};
use crate::seller::Seller;

/// Leaves all providers of a testnet out but the first.
fn others(market: &Market) -> Vec<String> {
    let names = ["provider-2", "provider-3", "provider-4"];
    let without = |name: &str| ["--exclude".to_owned(), market.account_of(name)];
    names.into_iter().flat_map(without).collect()
}

/// A submission that waits for a second provider beside `provider-1`.
fn waiting(market: &Market, images: &str, out: &str, priority: &str) -> Child {
    let mut command = Command::new(SOUK);
    command.arg("--dir").arg(market.folder().join("net"));
    command
        .args(["--json", "submit"])
        .arg(digits("digits.onnx"));
    command.args(["-i", images, "-o", &market.path(out)]);
    command.args(["--min-providers", "2", "--wait", "120"]);
    command.args(["--priority", priority]);
    command.args(others(market));
    let started = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    started.expect("the binary runs")
}

/// What a submission that ended well printed.
fn done(job: Child) -> Value {
    let output = job.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    serde_json::from_str(&text).expect("it prints JSON")
}

/// The first lease that a job was done under: they are numbered as they are bought.
fn first_lease(job: &Value) -> u64 {
    let receipts = job["receipts"].as_array().expect("a list");
    let leases = receipts.iter().map(|receipt| &receipt["body"]["lease"]);
    let numbers = leases.map(|lease| lease.as_u64().expect("a number"));
    numbers.min().expect("a job has a lease")
}

#[test]
fn of_two_jobs_that_wait_the_one_of_the_higher_priority_goes_first() {
    let market = Market::up();
    let images = format!("images={}", market.write("few.npy", &images(0, IMAGES)));
    let said = || {
        let queue = fs::read_dir(market.path("net/buyer/queue"));
        queue.map_or(0, |files| files.count())
    };
    let low = waiting(&market, &images, "low", "low");
    market.until(|| said() == 1);
    let high = waiting(&market, &images, "high", "high");
    market.until(|| said() == 2);
    let _second = Seller::run(&market, "second");
    let (low, high) = (done(low), done(high));
    assert!(first_lease(&high) < first_lease(&low), "{high} {low}");
    assert_eq!(said(), 0, "who has what it wanted says nothing any more");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_job_behind_others_is_told_so_when_its_time_is_over() {
    let market = Market::up();
    let images = format!("images={}", market.write("few.npy", &images(0, IMAGES)));
    let mut high = waiting(&market, &images, "high", "high");
    let queue = market.path("net/buyer/queue");
    market.until(|| fs::read_dir(&queue).is_ok_and(|files| files.count() == 1));
    // It would do with the one provider that the other one has to share with a second.
    let others = others(&market);
    let mut limits = vec!["--max-providers", "1", "--wait", "0.2", "--priority", "low"];
    limits.extend(others.iter().map(String::as_str));
    let behind = market.submit_few("low", &limits);
    assert_eq!(behind.code, 4, "{}", behind.stdout);
    let cause = behind.json()["error"]["cause"].to_string();
    assert!(cause.contains("1 of this buyer's jobs"), "{cause}");
    // A job that is gone holds nobody up, however it went.
    high.kill().expect("it runs");
    high.wait().expect("it ended");
    market.submit_few("after", &limits).done();
}
