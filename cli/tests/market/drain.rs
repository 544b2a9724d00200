//! Tests how a provider and a submission stop while work goes on: after a request, after one
//! Ctrl-C, and after a second one.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};
use souk_network::protocols::lease::ProviderMessage;
use souk_node::market::{CloseReason, LeaseState};

use crate::common::{Market, kill};
use crate::gate::Gate;
use crate::hand::Hand;
use crate::seller::{Seller, until};
use crate::streams::Means;

/// Requests of a stream.
const COUNT: usize = 24;

/// The answer at which the stream is held until its provider was told to stop.
const HELD_AT: usize = 8;

/// Requests under way at a time.
const WINDOW: usize = 4;

/// Stops the provider of a stream in the middle; the stream is done elsewhere, and what it did is
/// paid.
fn stop_in_a_stream(term: &[&str]) {
    let market = Market::up();
    let slow = json!({ "emulated": { "profile": "sifive-p550" } });
    market.set_in_provider("provider-4", &[("device", slow), ("price", json!(1_200))]);
    let mut seller = Seller::init(&market, "seller");
    seller.sell("sifive-p550", None);
    seller.drain = 0;
    seller.start();
    let means = Means::write(&market, COUNT);
    let hand = Hand::join(&market);
    until("it is on offer", || {
        hand.listing(seller.account()).is_some()
    });
    let (out, window) = (market.path("out"), WINDOW.to_string());
    let mut arguments = means.submit(&out);
    arguments.extend([
        "--window", &window, "--prefer", "cheapest", "--device", "P550",
    ]);
    arguments.extend(["--max-providers", "1", "--wait", "30"]);
    arguments.extend(term);
    let gate = Gate::at(&market, HELD_AT);
    let (done, lease) = std::thread::scope(|scope| {
        let job = scope.spawn(|| market.souk(&arguments).done());
        market.until(|| market.folder().join("out/002/y.npy").exists());
        let mut leases = hand.leases_of(seller.account()).into_iter();
        let lease = leases.find(|lease| lease.is_running()).expect("it runs");
        seller.signal("-TERM");
        seller.until_it_stops();
        gate.open();
        assert_eq!(seller.ended(), 0);
        (job.join().expect("the stream is done"), lease.id)
    });

    means.assert_answered(&market, &done);
    let state = hand.lease(lease).state;
    let settled = CloseReason::Receipt;
    assert!(
        matches!(state, LeaseState::Closed { reason, .. } if reason == settled),
        "{state:?}"
    );
    let receipts = done["receipts"].as_array().expect("a list").iter();
    let bodies: Vec<&Value> = receipts.map(|receipt| &receipt["body"]).collect();
    // On a busy machine the other needs more than one lease.
    let (first, others) = bodies.split_first().expect("there are receipts");
    assert_eq!(first["provider"], seller.account().to_string());
    let heir = market.account_of("provider-4");
    assert!(!others.is_empty() && others.iter().all(|body| body["provider"] == heir));
    let made = |body: &&Value| body["outputs"].as_array().expect("a list").len();
    let before = 3..=HELD_AT + WINDOW;
    assert!(before.contains(&made(first)), "{}", made(first));
    let all: usize = bodies.iter().map(made).sum();
    assert!(
        (COUNT..=COUNT + WINDOW * others.len()).contains(&all),
        "{all}"
    );
    market.assert_escrow_returns();
    let status = seller.status();
    assert_eq!(status["open_leases"].as_array().map(Vec::len), Some(0));
    assert_eq!(status["earned"], first["amount"]);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_provider_that_is_stopped_ends_a_stream_with_what_it_answered() {
    stop_in_a_stream(&["--spot"]);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_provider_whose_patience_is_over_ends_a_firm_stream_with_what_it_answered() {
    stop_in_a_stream(&[]);
}

#[test]
fn a_second_ctrl_c_ends_a_provider_that_waits_for_its_leases() {
    let market = Market::with_one_provider();
    let mut seller = Seller::init(&market, "seller");
    seller.drain = 3_600;
    seller.start();
    let hand = Hand::join(&market);
    let lease = hand.buy(seller.account());
    until("it begins", || {
        matches!(hand.start(&lease), Some(ProviderMessage::Accepted))
    });
    seller.signal("-INT");
    seller.until_it_stops();
    until("its ask is withdrawn", || {
        hand.listing(seller.account()).is_none()
    });
    assert!(seller.is_alive(), "a lease is at work");
    assert!(!hand.lease(lease.id).is_closed());
    seller.signal("-INT");
    assert_eq!(seller.ended(), 0);
    assert!(hand.lease(lease.id).is_closed());
    assert_eq!(market.souk(&["balance"]).done()["totals"]["escrow"], 0);
}

#[test]
fn a_second_ctrl_c_leaves_the_leases_of_a_submission_to_run_out() {
    let market = Market::up();
    let first = market.submit_few("first", &["--device", "H100"]).done();
    let account = first["plan"]["parts"][0]["provider"].as_str().unwrap();
    let mut names = (1..=4).map(|number| format!("provider-{number}"));
    let name = names.find(|name| market.account_of(name) == account);
    market.make_faulty(&name.expect("it is one of the testnet's"), "stall");
    let mut job = market.spawn_digits("out", &["--device", "H100"]);
    market.until(|| market.souk(&["balance"]).done()["totals"]["escrow"] != 0);
    // Nobody answers who could end a lease.
    let validators = market.processes("validator-");
    validators.iter().for_each(|id| kill(*id, "-STOP"));
    kill(job.id(), "-INT");
    let told = BufReader::new(job.stderr.take().expect("it is piped"));
    let mut lines = told.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("stopping: ")));
    kill(job.id(), "-INT");
    let ended = job.wait_with_output().expect("it ends");
    validators.iter().for_each(|id| kill(*id, "-CONT"));
    assert_eq!(ended.status.code(), Some(130));
    let failure: Value = serde_json::from_slice(&ended.stdout).expect("it prints JSON");
    let cause = failure["error"]["cause"].as_str().unwrap();
    assert!(
        cause.contains("its leases run out by themselves: a second signal"),
        "{cause}"
    );
    let jobs = market.souk(&["job", "list"]).done();
    let last = jobs.as_array().unwrap().last().unwrap();
    assert_eq!(last["state"], "running", "nobody ended it");
}
