//! Tests the prices of input tokens, and of input tokens that the provider still has in its caches,
//! from the offer to the receipts.

use serde_json::{Value, json};

use crate::chats::Server;
use crate::common::{Market, souk};
use crate::endpoints::{Engine, MODEL, Manner, PIECES, sell_with};
use crate::seller::Seller;

/// A message of 400 bytes, which are 100 tokens.
fn instructions() -> Value {
    json!({ "role": "system", "content": "x".repeat(400) })
}

fn user(content: &str) -> Value {
    json!({ "role": "user", "content": content })
}

fn ask(server: &Server, messages: &[Value]) -> Value {
    let body = json!({ "model": MODEL, "messages": messages, "max_tokens": 40 });
    let answer = server.client.post("/v1/chat/completions", &[], &body);
    answer.of(200)
}

/// The receipts in a provider's folder.
fn receipts(seller: &Seller) -> Vec<String> {
    let folder = format!("{}/receipts", seller.folder);
    let entries = std::fs::read_dir(folder)
        .expect("it has receipts")
        .flatten();
    let paths = entries.map(|entry| entry.path().to_string_lossy().into_owned());
    paths.collect()
}

#[test]
fn a_request_pays_the_stated_prices_of_input_and_of_what_it_repeats() {
    let market = Market::with_one_provider();
    let engine = Engine::start(Manner::Well);
    let folder = market.path("net/dear");
    let wrong = |options: &[&str]| {
        let endpoint = [
            "provider",
            "init",
            "--endpoint",
            &engine.url,
            "--model",
            MODEL,
        ];
        let key = crate::endpoints::write_key(&market);
        let all = [&endpoint[..], &["--key-file", &key], options].concat();
        let refused = souk(folder.as_ref(), &all);
        assert_ne!(refused.code, 0, "{options:?}");
        refused.stdout + &refused.stderr
    };
    let dear = wrong(&["--out", "0.2", "--in", "0.05", "--cached", "0.06"]);
    assert!(dear.contains("a cached token costs at most"), "{dear}");
    let tiny = wrong(&["--out", "0.2", "--in", "0.00001"]);
    assert!(tiny.contains("less than a thousandth"), "{tiny}");
    let huge = wrong(&["--out", "0.001", "--in", "2000"]);
    assert!(huge.contains("at most 1000000 device-us"), "{huge}");
    wrong(&["--out", "0.2", "--floor", "101"]);
    wrong(&["--out", "0.2", "--in=-1"]);

    // The tabs hold their slots for less time than a floor is charged for.
    let options = [
        "--out", "0.2", "--in", "0.1", "--cached", "0.01", "--floor", "1",
    ];
    let seller = sell_with(&market, "atlas", &engine, &options);
    let price = json!({
        "input_per_million": 100_000, "cached_per_million": 10_000, "output_per_million": 200_000,
    });
    assert_eq!(market.souk(&["model", "list"]).done()[0]["price"], price);
    assert_eq!(
        market.souk(&["model", "show", MODEL]).done()[0]["price"],
        price
    );
    let account = seller.account().to_string();
    let output = PIECES.concat().len().div_ceil(4) as u64;
    let mut counted = [104 + 4, 0, 2 * output];
    {
        let server = Server::run(&market, &["--budget", "5"]);
        let listed = server.client.get("/v1/models").of(200);
        let pricing = &listed["data"][0]["pricing"];
        assert_eq!(pricing["prompt"], "0.0000001");
        assert_eq!(pricing["input_cache_read"], "0.00000001");
        let first = ask(&server, &[instructions(), user("what is a market")]);
        assert_eq!(first["usage"]["prompt_tokens"], 104);
        assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        let cost = |input: u64, cached: u64| {
            let micros = input * 500 + cached * 50 + output * 1_000;
            (micros * 200).div_ceil(1_000_000) as f64 / 1e6
        };
        assert_eq!(first["usage"]["cost"], cost(104, 0));
        // The same tab reads the instructions again, and another question. If the machine sleeps
        // for the time that a tab waits for its next request, a new tab reads all of them once.
        let repeated = (0..5).any(|_| {
            let usage = ask(&server, &[instructions(), user("and a bazaar?")])["usage"].take();
            let cached = &usage["prompt_tokens_details"]["cached_tokens"];
            let cached = cached.as_u64().expect("a count");
            assert!(cached == 0 || cached == 100, "{usage}");
            assert_eq!(usage["prompt_tokens"], 104);
            assert_eq!(usage["cost"], cost(104 - cached, cached));
            let sums = counted.iter_mut().zip([104 - cached, cached, output]);
            sums.for_each(|(sum, tokens)| *sum += tokens);
            cached == 100
        });
        assert!(repeated, "no tab served two requests");
        let other = ask(&server, &[user("what is a market")]);
        assert_eq!(other["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        // An offer whose prompts are too dear does not suit, whatever its answers cost.
        let capped = json!({
            "model": MODEL, "messages": [user("what is a market")],
            "provider": { "max_price": { "prompt": 0.09, "completion": 1 } },
        });
        let refused = server.client.post("/v1/chat/completions", &[], &capped);
        assert_eq!(refused.of(400)["error"]["code"], "no_suitable_offer");
    }
    market.assert_escrow_returns();
    let device_us = counted[0] * 500 + counted[1] * 50 + counted[2] * 1_000;
    let earned = market.available(&account);
    // Pauses above a second cost the reserve: on a busy machine there can be some.
    let idle: u64 = receipts(&seller).iter().map(|file| idle_of(file)).sum();
    let least = device_us * 200 / 1_000_000;
    let rounded = receipts(&seller).len() as u64 + 1;
    let most = (device_us + idle / 10) * 200 / 1_000_000 + rounded;
    assert!((least..=most).contains(&earned), "{earned} of {least}");
    let status = seller.status();
    assert!(status["leases"].to_string().contains("receipt"), "{status}");

    // Its receipt shows the counts, and anyone can check them.
    let mut tokens = [0; 3];
    for file in receipts(&seller) {
        let checked = market.souk(&["receipt", "verify", &file]).done();
        assert_eq!(checked["valid"], true, "{checked}");
        let text = std::fs::read_to_string(&file).expect("a receipt");
        let mut receipt: Value = serde_json::from_str(&text).expect("it is JSON");
        let metered = receipt["body"]["metered"].clone();
        assert_eq!(metered["terms"]["input_us"], 500, "{metered}");
        for (sum, name) in tokens.iter_mut().zip(["input", "cached", "output"]) {
            *sum += metered[name].as_u64().expect("a count");
        }
        receipt["body"]["metered"]["output"] = json!(1);
        let forged = market.path("forged.json");
        std::fs::write(&forged, receipt.to_string()).expect("a file is written");
        let refused = market.souk(&["receipt", "verify", &forged]);
        let cause = refused.stdout + &refused.stderr;
        assert!(cause.contains("counted tokens"), "{cause}");
    }
    assert_eq!(tokens, counted);
}

/// Returns the idle time that a receipt bills, in microseconds.
fn idle_of(file: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect("a receipt");
    let receipt: Value = serde_json::from_str(&text).expect("it is JSON");
    receipt["body"]["idle"].as_u64().expect("a time")
}
