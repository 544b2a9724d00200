//! Tests the limits that a buyer can set for a plan (price, time, devices, energy), and that a
//! submission keeps to the plan that it showed.

use serde_json::{Value, json};

use crate::common::{Market, Ran, digits};

/// Plans the digits model with further arguments.
fn plan(market: &Market, more: &[&str]) -> Ran {
    let images = format!("images={}", digits("images.npy").display());
    let model = digits("digits.onnx").to_string_lossy().into_owned();
    let mut arguments = vec!["plan", &model, "-i", &images];
    arguments.extend_from_slice(more);
    market.souk(&arguments)
}

fn cost(plan: &Value) -> u64 {
    plan["micro_credits"].as_u64().expect("a plan has a price")
}

fn time(plan: &Value) -> f64 {
    plan["makespan_seconds"]
        .as_f64()
        .expect("a plan has a length")
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_plan_shows_its_price_range_and_what_else_there_is() {
    let market = Market::up();
    let fastest = plan(&market, &["--prefer", "fastest"]).done();
    let knee = plan(&market, &[]).done();
    let product = |plan: &Value| time(plan) * cost(plan) as f64;
    assert!(product(&knee) <= product(&fastest) * 1.01, "{knee}");
    let cheapest = plan(&market, &["--prefer", "cheapest"]).done();
    assert!(time(&fastest) <= time(&cheapest) && cost(&cheapest) <= cost(&fastest));
    let others = fastest["alternatives"].as_array().unwrap();
    assert!(!others.is_empty());
    let range = &fastest["price_range"];
    let bound = |name: &str| range[name].as_u64().unwrap();
    let priced = others.iter().chain([&fastest]).map(cost);
    let least = priced.min();
    assert_eq!(Some(bound("least_micro_credits")), least, "{fastest}");
    // Another plan measures its links anew, and what a link takes is paid.
    let apart = bound("least_micro_credits").abs_diff(cost(&cheapest));
    assert!(apart * 10 <= cost(&cheapest), "{range} and {cheapest}");
    assert!(bound("most_micro_credits") >= cost(&fastest));
    assert_eq!(
        market.souk(&["balance"]).done()["totals"]["escrow"],
        0,
        "no money moved"
    );

    // Joules are of devices that state their power; the machine's own CPU does not.
    let greenest = plan(&market, &["--prefer", "greenest"]).done();
    assert!(
        greenest["joules"]
            .as_f64()
            .is_some_and(|joules| joules > 0.0)
    );
    let lacks = greenest["not_eligible"].as_array().unwrap();
    assert!(
        lacks.iter().any(|lack| lack["cause"] == "power"),
        "{lacks:?}"
    );
    for other in [&fastest, &cheapest] {
        let joules = other["joules"].as_f64();
        assert!(joules.is_none_or(|joules| joules >= greenest["joules"].as_f64().unwrap() * 0.99));
    }
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_submission_is_held_to_the_plan_that_was_shown() {
    let market = Market::up();
    let one = ["--max-providers", "1", "--prefer", "cheapest"];
    let shown = plan(&market, &one).done();
    let hash = shown["hash"].as_str().unwrap();
    let with = |hash: &str, more: &[&str]| {
        let checked = [&one[..], &["--check-plan", hash], more].concat();
        market.submit_digits("out", &checked)
    };
    assert_eq!(with(hash, &[]).code, 0);
    let unknown = with(&"0".repeat(64), &[]);
    assert_eq!(
        (unknown.code, unknown.json()["error"]["reason"].as_str()),
        (4, Some("plan_moved"))
    );
    // The provider that was planned is out of the question: what is left is slower or dearer.
    let planned = shown["parts"][0]["provider"].as_str().unwrap();
    let moved = with(hash, &["--exclude", planned]);
    assert_eq!(moved.code, 4, "{}", moved.stdout);
    assert!(
        moved.stdout.contains("the book has moved"),
        "{}",
        moved.stdout
    );
    let allowed = with(hash, &["--exclude", planned, "--slippage", "100000000"]);
    assert_eq!(allowed.code, 0, "{}", allowed.stdout);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn what_no_provider_offers_is_named() {
    let market = Market::up();
    for (demand, word) in [
        (["--region", "7"], "region"),
        (["--min-notice", "60"], "notice"),
        (["--min-reputation", "1000"], "reputation"),
        (["--device", "no such thing"], "of another kind and name"),
        (["--backend", "cuda"], "through cuda"),
    ] {
        let refused = plan(&market, &demand);
        assert_eq!(refused.code, 4, "{}", refused.stdout);
        assert!(refused.stdout.contains(word), "{}", refused.stdout);
    }
    let late = plan(&market, &["--deadline", "0.0000001"]);
    assert_eq!(late.code, 10);
    assert!(late.stdout.contains("deadline"), "{}", late.stdout);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_plan_keeps_to_the_devices_that_are_named() {
    let market = Market::up();
    for (names, wanted) in [
        (&["--device", "m3"][..], &["m3"][..]),
        (&["--device", "cpu"], &["epyc", "cpu"]),
        (&["--device", "H100", "--device", "M3"], &["h100", "m3"]),
    ] {
        let plan = plan(&market, names).done();
        let parts = plan["parts"].as_array().unwrap();
        assert!(!parts.is_empty());
        for part in parts {
            let device = part["device"].as_str().unwrap().to_lowercase();
            assert!(
                wanted.iter().any(|name| device.contains(name)),
                "{device} for {names:?}"
            );
        }
    }
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_budget_is_kept_to_by_a_cheaper_plan_where_the_fastest_holds_more() {
    let market = Market::up();
    // The fastest devices would hold more than this in escrow; the machine's CPU does not.
    let done = market.submit_digits("out", &["--budget", "0.1"]).done();
    let before = done["before"]["accounts"][0]["available"].as_u64().unwrap();
    let after = done["after"]["accounts"][0]["available"].as_u64().unwrap();
    assert!(
        before - after <= 100_000,
        "{} micro-credits",
        before - after
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_spot_job_pays_what_its_provider_asks_at_the_notice_it_wants() {
    let market = Market::up();
    let spot = json!({ "spot": [
        { "notice_seconds": 1, "percent": 10 }, { "notice_seconds": 60, "percent": 50 },
    ] });
    let slow = json!({ "emulated": { "profile": "sifive-p550" } });
    let entries = vec![("device", slow), ("price", json!(1_000)), ("pricing", spot)];
    market.set_in_providers([("provider-1", entries)]);
    let planned = |more: &[&str]| {
        let arguments = [&["--device", "P550"], more].concat();
        cost(&plan(&market, &arguments).done())
    };
    let (firm, short) = (planned(&[]), planned(&["--spot"]));
    let long = planned(&["--spot", "--min-notice", "30"]);
    assert!(
        short * 2 < long && long * 3 < firm * 2,
        "{short}, {long}, {firm}"
    );
    let arguments = ["--device", "P550", "--spot", "--min-notice", "30"];
    let done = market.submit_few("out", &arguments).done();
    let lease = done["receipts"][0]["body"]["lease"].to_string();
    let lease = market.souk(&["lease", "show", &lease]).done();
    assert_eq!(
        (&lease["price"], &lease["notice"]),
        (&json!(500), &json!(60.0))
    );
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn the_greenest_plan_takes_the_fewest_joules_of_devices_that_state_their_power() {
    let market = Market::up();
    let images = format!("images={}", digits("images.npy").display());
    let model = digits("digits.onnx").to_string_lossy().into_owned();
    let plan = |prefer: &str| {
        let arguments = ["plan", &model, "-i", &images, "--prefer", prefer];
        market.souk(&arguments).done()
    };
    let joules = |plan: &Value| plan["joules"].as_f64();
    let (greenest, fastest) = (plan("greenest"), plan("fastest"));
    let least = joules(&greenest).expect("all its devices state their power");
    assert!(
        joules(&fastest).is_none_or(|joules| least < joules),
        "{greenest}"
    );
    let time = |plan: &Value| plan["makespan_seconds"].as_f64().unwrap();
    assert!(time(&greenest) >= time(&fastest));
    assert_ne!(greenest["hash"], fastest["hash"]);
    let parts = greenest["parts"].as_array().unwrap();
    for part in parts {
        let why = part["why"].as_str().unwrap();
        assert!(!why.contains("cheapest"), "{why}");
        let next = &part["next_best"];
        assert!(next.is_null() || next["joules"].is_number(), "{next}");
    }
    let silent = greenest["not_eligible"].as_array().unwrap();
    assert!(
        silent.iter().any(|one| one["cause"] == "power"),
        "{silent:?}"
    );
    let done = market
        .submit_digits("out", &["--prefer", "greenest"])
        .done();
    assert!(!done["receipts"].as_array().unwrap().is_empty());
}

#[test]
fn a_budget_too_small_for_any_lease_is_told_what_the_cheapest_plan_costs() {
    let market = Market::up();
    let cheapest = cost(&plan(&market, &["--prefer", "cheapest"]).done());
    let refused = plan(&market, &["--budget", "0.0001"]);
    assert_eq!(refused.code, 9, "{}", refused.stdout);
    let told = refused.stdout + &refused.stderr;
    let after = |words: &str| -> f64 {
        let (_, rest) = told.split_once(words).unwrap_or_else(|| panic!("{told}"));
        let figure = rest.trim_start().split(' ').next();
        figure
            .and_then(|figure| figure.parse().ok())
            .expect("a figure")
    };
    let stated = after("the cheapest plan costs") * 1e6;
    // Another plan measures its links anew, and what a link takes is paid.
    let apart = (stated - cheapest as f64).abs();
    assert!(apart <= 1.0 + cheapest as f64 / 10.0, "{cheapest}: {told}");
    assert!(after("this job holds") > 0.0001, "{told}");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn outside_a_testnet_emulated_devices_are_bought_only_by_who_says_so() {
    let market = Market::up();
    let cpu = |asked: &[&str]| {
        let planned = plan(&market, asked).done();
        let eligible = planned["asks_eligible"].as_u64();
        eligible.expect("asks are counted")
    };
    assert_eq!([cpu(&[]), cpu(&["--real"])], [4, 1]);
    let file = market.folder().join("net/market.json");
    let text = std::fs::read_to_string(&file).expect("the market's file");
    let mut known: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(known["testnet"], true);
    known["testnet"] = false.into();
    std::fs::write(&file, known.to_string()).expect("the market's file is written");
    assert_eq!([cpu(&[]), cpu(&["--emulated"])], [1, 4]);
    assert_eq!(plan(&market, &["--real", "--emulated"]).code, 2);
}
