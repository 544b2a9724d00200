//! Tests a provider that is killed, stopped and started again while its device is sold, and its
//! prices and limits.

use std::path::Path;
use std::time::Duration;

use souk_network::protocols::lease::{Failure, ProviderMessage};
use souk_node::market::{CloseReason, LeaseId, LeaseState};

use crate::common::{Market, souk};
use crate::hand::Hand;
use crate::seller::{Seller, until};

#[test]
fn a_killed_provider_gives_back_what_it_began_and_never_begins_it_again() {
    let market = Market::with_one_provider();
    let mut seller = Seller::run(&market, "seller");
    let hand = Hand::join(&market);
    let lease = hand.buy(seller.account());
    until("it begins", || {
        matches!(hand.start(&lease), Some(ProviderMessage::Accepted))
    });
    seller.kill();
    let status = seller.status();
    assert_eq!(status["runs"], false);
    assert_eq!(status["open_leases"].as_array().map(Vec::len), Some(1));

    seller.start();
    until("the lease is given back", || {
        hand.lease(lease.id).is_closed()
    });
    until("it serves again and begins nothing", || {
        match hand.start(&lease) {
            None => false,
            Some(ProviderMessage::Failed(Failure::Lease(_))) => true,
            other => panic!("it answers {other:?}"),
        }
    });
    until("the journal says so", || {
        seller.status()["open_leases"]
            .as_array()
            .unwrap()
            .is_empty()
    });
    let status = seller.status();
    assert_eq!(
        (
            status["runs"].clone(),
            status["closed_lease_count"].as_u64()
        ),
        (true.into(), Some(1))
    );
    assert_eq!(
        status["earned"], 0,
        "nothing is paid for work that was lost"
    );
    assert_eq!(market.souk(&["balance"]).done()["totals"]["escrow"], 0);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_lease_that_was_not_begun_is_kept_over_a_crash() {
    let market = Market::up();
    let mut seller = Seller::run(&market, "seller");
    let hand = Hand::join(&market);
    let lease = hand.buy(seller.account());
    seller.kill();
    seller.start();
    until("it serves again", || {
        matches!(hand.start(&lease), Some(ProviderMessage::Accepted))
    });
    let twice = hand.start(&lease);
    assert!(
        matches!(twice, Some(ProviderMessage::Failed(Failure::Started))),
        "{twice:?}"
    );
    assert!(matches!(hand.lease(lease.id).state, LeaseState::Active));
}

/// Waits until a lease is closed, and checks that its provider gave it up. A provider that stops
/// waits two seconds for the market and no longer, so the lease can close after it ended.
fn assert_given_up(hand: &Hand, lease: LeaseId) {
    until("the lease is given back", || hand.lease(lease).is_closed());
    let LeaseState::Closed { reason, .. } = hand.lease(lease).state else {
        panic!("it is closed");
    };
    assert_eq!(reason, CloseReason::GaveUp, "before its deadline");
}

#[test]
fn a_stopped_provider_withdraws_its_ask_and_gives_back_its_leases() {
    let market = Market::with_one_provider();
    let mut seller = Seller::run(&market, "seller");
    let hand = Hand::join(&market);
    let unbegun = hand.buy(seller.account());
    assert_eq!(seller.terminate(), 0);
    assert_given_up(&hand, unbegun.id);
    until("its ask is withdrawn", || {
        hand.listing(seller.account()).is_none()
    });

    seller.start();
    let begun = hand.buy(seller.account());
    until("it begins", || {
        matches!(hand.start(&begun), Some(ProviderMessage::Accepted))
    });
    let begin = std::time::Instant::now();
    assert_eq!(seller.terminate(), 0);
    assert!(
        begin.elapsed() > Duration::from_millis(900),
        "it had a second to end"
    );
    assert_given_up(&hand, begun.id);
    // A provider waits two seconds for the market's answer and no longer. If its folder does not
    // have the end of the lease yet, it learns of it at its next start.
    let open_leases = |seller: &Seller| seller.status()["open_leases"].as_array().map(Vec::len);
    if open_leases(&seller) != Some(0) {
        seller.start();
        until("it knows of the end", || open_leases(&seller) == Some(0));
    }
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
        (&earned[0]["closed_lease_count"], &earned[0]["runs"]),
        (&1.into(), &false.into())
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn what_one_device_takes_is_expected_and_remembered() {
    let market = Market::up();
    let mut seller = Seller::init(&market, "learns");
    seller.sell("nvidia-a100-sxm-80", None);
    seller.start();
    let hand = Hand::join(&market);
    until("it is on offer", || {
        hand.listing(seller.account()).is_some()
    });
    let there = ["--max-providers", "1", "--device", "A100"];
    let job = market.submit_digits("out", &there).done();
    let expected = job["report"]["against"]["expected_micros"].as_u64();
    assert!(expected > Some(0), "{}", job["report"]);
    let costs = format!("{}/costs.json", seller.folder);
    let kept = || std::fs::read_to_string(&costs).is_ok_and(|kept| kept.contains("A100"));
    until("what it took is kept", kept);
}

#[test]
fn a_provider_whose_clock_is_minutes_behind_sells_all_the_same() {
    let market = Market::with_one_provider();
    let mut seller = Seller::init(&market, "late");
    seller.slow_clock(180_000);
    seller.start();
    let hand = Hand::join(&market);
    until("it is on offer", || {
        hand.listing(seller.account()).is_some()
    });
    let log = std::fs::read_to_string(seller.log()).expect("it writes a log");
    assert!(log.contains("behind the market's: set it right"), "{log}");
}

#[test]
fn two_providers_never_run_in_one_folder() {
    let market = Market::with_one_provider();
    let home = market.path("net/provider-1");
    let second = souk(home.as_ref(), &["provider", "run"]);
    assert_eq!(second.code, 8, "{}", second.stdout);
    assert!(
        second.stdout.contains("already running"),
        "{}",
        second.stdout
    );
}

#[test]
fn what_onnx_runtime_reaches_is_sold_and_run_in_a_sandbox() {
    let Ok(library) = std::env::var("SOUK_TEST_ONNXRUNTIME") else {
        eprintln!("SKIPPED: no ONNX Runtime library; SOUK_TEST_ONNXRUNTIME can name one");
        return;
    };
    let market = Market::up();
    let mut seller = Seller::init(&market, "runtime");
    seller.sell_runtime(library, "cpu");
    seller.start();
    let hand = Hand::join(&market);
    let offered = || hand.listing(seller.account()).is_some();
    until("its ask is there", offered);
    let there = ["--device", "CPUExecutionProvider"];
    let job = market.submit_digits("out", &there).done();
    let device = job["plan"]["parts"][0]["device"].as_str().unwrap();
    assert!(device.contains("CPUExecutionProvider"), "{device}");
    let kept = seller.status()["isolation"].clone();
    assert_eq!(
        kept["isolation"], "partial",
        "what its owner accepts as root"
    );
    let enforced = kept["policy"]["enforced"].as_array().expect("a list");
    assert!(!enforced.is_empty(), "{kept}");

    let refused = souk(
        market.path("net/none").as_ref(),
        &[
            "device",
            "bench",
            "--backend",
            "onnxruntime",
            "--device",
            "none",
        ],
    );
    assert_ne!(refused.code, 0);
    assert!(
        refused.stdout.contains("ONNX Runtime"),
        "{}",
        refused.stdout
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_new_provider_asks_what_its_class_costs_and_not_less_than_its_least() {
    let market = Market::up();
    let dry = market.path("net/dry");
    let options = [
        "--device",
        "amd-epyc-9654",
        "--min-price",
        "0.3",
        "--dry-run",
        "--yes",
    ];
    let mut arguments = vec!["provider", "init"];
    arguments.extend(options);
    let shown = souk(dry.as_ref(), &arguments).done();
    assert_eq!(shown["asks"][0]["price"], 300_000);
    assert!(!Path::new(&dry).exists(), "a dry run writes nothing");

    let (mut seller, made) = Seller::set_up(&market, "seller", &[]);
    let (price, basis) = (&made["price"], &made["basis"]);
    assert_eq!(price, 250_000, "what the testnet's EPYC asks: {made}");
    assert_eq!(basis["asks"], 1);
    seller.start();
    let hand = Hand::join(&market);
    let offered = |seller: &Seller| hand.listing(seller.account());
    until("its ask is there", || offered(&seller).is_some());
    assert_eq!(offered(&seller).unwrap().price.0, 250_000);
    seller.kill();

    let (price, least) = (["--price", "0.000001"], ["--min-price", "0.123456"]);
    let rest = ["--strategy", "follow", "--memory", "2048"];
    let options = [&price[..], &least, &rest].concat();
    let (mut lesser, _) = Seller::set_up(&market, "lesser", &options);
    lesser.start();
    until("its ask is there", || offered(&lesser).is_some());
    let listing = offered(&lesser).unwrap();
    assert_eq!(listing.price.0, 123_456);
    assert_eq!(listing.resources.memory_bytes, 2_048 << 20);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn an_ask_follows_what_the_market_paid() {
    let market = Market::up();
    let follow = [
        "--price",
        "0.001",
        "--strategy",
        "follow",
        "--percent",
        "50",
    ];
    let (mut seller, _) = Seller::set_up(&market, "seller", &follow);
    seller.start();
    let hand = Hand::join(&market);
    let offered = || {
        hand.listing(seller.account())
            .map(|listing| listing.price.0)
    };
    until("nothing was traded yet", || offered() == Some(1_000));
    for price in [500, 375] {
        let lease = hand.buy(seller.account());
        hand.end(lease.id);
        // Half of the mean of 1,000, then of 1,000 and 500.
        until("it asks half of what was paid", || offered() == Some(price));
    }
}

#[test]
fn limits_are_kept_and_named() {
    let market = Market::with_one_provider();
    let others: Vec<String> = (market.souk(&["book"]).done().as_array().unwrap().iter())
        .map(|ask| ask["provider"].as_str().unwrap().to_owned())
        .collect();
    let (mut seller, _) = Seller::set_up(&market, "seller", &["--operator", "Softmax"]);
    seller.start();
    let hand = Hand::join(&market);
    until("its ask is there", || {
        hand.listing(seller.account()).is_some()
    });
    let mut options = Vec::new();
    for other in &others {
        options.extend(["--exclude", other.as_str()]);
    }
    let refused = market.submit_digits("out", &options);
    assert_eq!(refused.code, 4, "{}", refused.stdout);
    // Its ask says what it runs, so nothing was bought.
    let named = "1 without operators of the model (EPYC 9654 (emulated) runs no Concat, Conv,";
    assert!(refused.stdout.contains(named), "{}", refused.stdout);
    let escrow = market.souk(&["balance"]).done()["totals"]["escrow"].clone();
    assert_eq!(escrow, 0);

    let wrong = market.path("net/wrong");
    let arguments = |class| {
        let device = [
            "provider",
            "init",
            "--yes",
            "--device",
            "amd-epyc-9654",
            "--class",
        ];
        device.into_iter().chain([class]).collect::<Vec<&str>>()
    };
    let refused = souk(wrong.as_ref(), &arguments("gpu"));
    assert_eq!(refused.code, 3, "{}", refused.stdout);
    assert!(
        refused.stdout.contains("a cpu is not sold here"),
        "{}",
        refused.stdout
    );
    let (closed, _) = Seller::set_up(&market, "closed", &["--hours", &closed_now()]);
    let shown = souk(closed.folder.as_ref(), &["provider", "init", "--dry-run"]).done();
    assert_eq!(shown["asks"].as_array().map(Vec::len), Some(0));
}

/// A span of the day that begins in two hours.
fn closed_now() -> String {
    let minute = souk_node::provider::minute_now();
    let at = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
    format!(
        "{}-{}",
        at((minute + 120) % 1_440),
        at((minute + 180) % 1_440)
    )
}

#[test]
fn a_file_with_a_mistake_is_refused_at_its_place() {
    let market = Market::with_one_provider();
    let (seller, _) = Seller::set_up(&market, "seller", &["--price", "0.05"]);
    let path = format!("{}/provider.toml", seller.folder);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("price_min", "price_minimum")).unwrap();
    let refused = souk(seller.folder.as_ref(), &["provider", "run"]);
    assert_eq!(refused.code, 8, "{}", refused.stdout);
    assert!(
        refused.stdout.contains("price_minimum"),
        "{}",
        refused.stdout
    );
    assert!(refused.stdout.contains("line"), "{}", refused.stdout);
}
