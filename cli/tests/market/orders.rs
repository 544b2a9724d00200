//! Tests orders that a user places by commands, and jobs whose bid waits in the book for a match.

use crate::common::{IMAGES, Market, digits, images};

#[test]
fn a_bid_rests_is_shown_and_is_taken_back() {
    let market = Market::with_one_provider();
    let classes = market.souk(&["market", "classes"]).done();
    let class = classes[0]["class"]
        .as_str()
        .expect("a class has a name")
        .to_owned();
    let bid = [
        "order", "bid", &class, "--price", "0.000001", "--rest", "1h",
    ];
    let placed = market.souk(&bid).done();
    let order = placed["order"].to_string();
    let shown = market.souk(&["order", "show", &order]).done();
    assert_eq!(
        (&shown["side"], &shown["class"]),
        (&"bid".into(), &class.clone().into())
    );
    assert_eq!(shown["held"], 60, "a minute at a micro-credit a second");
    let found = market
        .souk(&["order", "explain", &class, "--price", "0.000001"])
        .done();
    assert_eq!(found["eligible"], 0, "{found}");
    let ruled_out = found["ruled_out"].as_array().expect("a list");
    assert!(
        ruled_out.iter().any(|one| one["lack"] == "price"),
        "{found}"
    );
    let account = market.souk(&["account", "show"]).done();
    assert_eq!(account["orders"][0]["order"].to_string(), order);
    market.souk(&["order", "cancel", &order]).done();
    let gone = market.souk(&["order", "show", &order]);
    assert_eq!(gone.code, 3, "{}", gone.stdout);
    let again = market.souk(&["order", "cancel", &order]);
    assert_eq!(again.code, 8, "{}", again.stdout);
    let error = &again.json()["error"];
    assert_eq!(error["refusal"], "order_unknown");
    assert!(
        error["hint"]
            .as_str()
            .is_some_and(|hint| hint.contains("order list")),
        "{error}"
    );
    let unbounded = [&bid[..], &["--time-in-force", "ioc"]].concat();
    assert_eq!(market.souk(&unbounded).code, 3, "ioc does not rest");
    let dear = [
        "order",
        "bid",
        &class,
        "--at-market",
        "--budget",
        "9",
        "--time-in-force",
        "fok",
    ];
    let bought = market.souk(&dear).done();
    let lease = bought["trades"][0]["lease"].to_string();
    market.souk(&["lease", "end", &lease]).done();
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_job_waits_for_its_bid_and_runs_once_it_is_matched() {
    let market = Market::up();
    let input = format!("images={}", market.write("few.npy", &images(0, IMAGES)));
    let (model, out) = (digits("digits.onnx"), market.path("out"));
    let model = model.to_string_lossy();
    // A data sheet's: what is measured anew may be of another class, where the bid does not rest.
    let words = [
        "submit", &model, "-i", &input, "-o", &out, "--device", "M3", "--bid", "0.02",
    ];
    let short = market.souk(&[&words[..], &["--wait", "5"]].concat());
    assert_eq!(short.code, 4, "{}", short.stdout);
    assert_eq!(short.json()["error"]["reason"], "unsold");
    assert!(
        market
            .souk(&["order", "list"])
            .done()
            .as_array()
            .is_some_and(Vec::is_empty)
    );
    let waiting = [&words[..], &["--wait", "2m"]].concat();
    let done = std::thread::scope(|scope| {
        let job = scope.spawn(|| market.souk(&waiting));
        let rests = || market.souk(&["order", "list"]).done()[0]["side"] == "bid";
        market.until(rests);
        market.set_in_provider("provider-4", &[("price", 20_000.into())]);
        job.join().expect("it ends").done()
    });
    let receipt = &done["receipts"][0]["body"];
    assert_eq!(receipt["price"], 20_000, "{receipt}");
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_device_is_found_in_the_region_its_provider_states() {
    let market = Market::up();
    market.set_in_provider("provider-1", &[("region", "europe-west".into())]);
    let images = format!("images={}", digits("images.npy").display());
    let model = digits("digits.onnx").to_string_lossy().into_owned();
    let plan = |region: &str| market.souk(&["plan", &model, "-i", &images, "--region", region]);
    let there = plan("europe").done();
    assert_eq!(there["parts"][0]["provider_name"], "provider-1");
    assert_eq!(there["not_eligible"][0]["cause"], "region");
    assert_eq!((plan("oceania").code, plan("atlantis").code), (4, 3));

    // Who asks for more providers than there are is told how many there are.
    let spread = [
        "plan",
        &model,
        "-i",
        &images,
        "--wait",
        "0",
        "--min-providers",
    ];
    let many = market.souk(&[&spread[..], &["9"]].concat());
    assert_eq!(many.code, 4, "{}", many.stdout);
    let error = &many.json()["error"];
    let says = |what: &str, word: &str| error[what].as_str().is_some_and(|it| it.contains(word));
    assert!(
        says("cause", "at least 9 providers") && says("cause", "4 suitable"),
        "{error}"
    );
    assert!(says("hint", "--min-providers 4"), "{error}");
}
