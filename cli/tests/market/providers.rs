//! A provider that is killed, stopped and started again while its device is sold.

use std::time::Duration;

use souk_node::lease_protocol::{Event, Failure};
use souk_node::market::LeaseState;

use crate::common::{Market, souk};
use crate::hand::Hand;
use crate::seller::{Seller, until};

#[test]
fn a_killed_provider_gives_back_what_it_began_and_never_begins_it_again() {
    let market = Market::up();
    let mut seller = Seller::run(&market, "seller");
    let hand = Hand::join(&market);
    let lease = hand.buy(seller.account());
    assert!(matches!(hand.start(&lease), Some(Event::Accepted)));
    seller.kill();
    let status = seller.status();
    assert_eq!(status["runs"], false);
    assert_eq!(status["open"].as_array().map(Vec::len), Some(1));

    seller.start();
    until("the lease is given back", || {
        hand.lease(lease.id).is_closed()
    });
    let again = hand.start(&lease);
    assert!(
        matches!(again, Some(Event::Failed(Failure::Lease(_)))),
        "{again:?}"
    );
    until("the journal says so", || {
        seller.status()["open"].as_array().unwrap().is_empty()
    });
    let status = seller.status();
    assert_eq!(
        (status["runs"].clone(), status["closed"].as_u64()),
        (true.into(), Some(1))
    );
    assert_eq!(
        status["earned"], 0,
        "nothing is paid for work that was lost"
    );
    assert_eq!(market.souk(&["balance"]).done()["totals"]["escrow"], 0);
}

#[test]
fn a_lease_that_was_not_begun_is_kept_over_a_crash() {
    let market = Market::up();
    let mut seller = Seller::run(&market, "seller");
    let hand = Hand::join(&market);
    let lease = hand.buy(seller.account());
    seller.kill();
    seller.start();
    until("it serves again", || {
        matches!(hand.start(&lease), Some(Event::Accepted))
    });
    let twice = hand.start(&lease);
    assert!(
        matches!(twice, Some(Event::Failed(Failure::Started))),
        "{twice:?}"
    );
    assert!(matches!(hand.lease(lease.id).state, LeaseState::Active));
}

#[test]
fn a_stopped_provider_withdraws_its_ask_and_gives_back_its_leases() {
    let market = Market::up();
    let mut seller = Seller::run(&market, "seller");
    let hand = Hand::join(&market);
    let unbegun = hand.buy(seller.account());
    assert_eq!(seller.terminate(), 0);
    assert!(hand.lease(unbegun.id).is_closed());
    assert!(hand.listing(seller.account()).is_none());

    seller.start();
    let begun = hand.buy(seller.account());
    assert!(matches!(hand.start(&begun), Some(Event::Accepted)));
    let begin = std::time::Instant::now();
    assert_eq!(seller.terminate(), 0);
    assert!(
        begin.elapsed() > Duration::from_millis(900),
        "it had a second to end"
    );
    assert!(hand.lease(begun.id).is_closed());
    assert_eq!(seller.status()["open"].as_array().map(Vec::len), Some(0));
}

#[test]
fn what_was_earned_is_known_with_everything_down() {
    let market = Market::up();
    let job = market
        .submit_digits("out", &["--max-providers", "1"])
        .done();
    let body = job["receipts"][0]["body"].clone();
    let book = market.souk(&["book"]).done();
    assert!(book.as_array().is_some_and(|asks| !asks.is_empty()));
    market.souk(&["testnet", "down"]).done();
    let status = |name: &str| {
        let home = market.path(&format!("net/{name}"));
        souk(home.as_ref(), &["provider", "status"]).done()
    };
    let all = ["provider-1", "provider-2", "provider-3", "provider-4"].map(status);
    let earned: Vec<_> = all.iter().filter(|one| one["earned"] != 0).collect();
    assert_eq!(earned.len(), 1);
    assert_eq!(
        earned[0]["earned"], body["amount"],
        "the market takes no fee here"
    );
    assert_eq!(
        (&earned[0]["closed"], &earned[0]["runs"]),
        (&1.into(), &false.into())
    );
}

#[test]
fn two_providers_never_run_in_one_folder() {
    let market = Market::up();
    let home = market.path("net/provider-1");
    let second = souk(home.as_ref(), &["provider", "run"]);
    assert_eq!(second.code, 8, "{}", second.stdout);
    assert!(
        second.stdout.contains("already running"),
        "{}",
        second.stdout
    );
}
