//! Tests the keys that an organisation issues for its `souk openai` server: they keep to their
//! budgets under a hundred requests at once, and after the server was killed.

use serde_json::{Value, json};

use crate::chats::Server;
use crate::common::{Market, kill};
use crate::endpoints::{Engine, MODEL, Manner, PIECES, ask, sell_slots};
use crate::http::{Answer, Client};
use crate::seller::until;

/// The most that a question costs at 200 micro-credits a thousand output tokens: 4 tokens of input
/// and twice 40 of output.
const WORST: u64 = (4 * 250 + 80 * 1_000) * 200 / 1_000_000 + 1;

/// A client of a server with a new key.
pub fn with_key(market: &Market, server: &Server, name: &str, terms: &[&str]) -> Client {
    let issued = market.souk(&[&["openai", "key", "add", name], terms].concat());
    Client {
        address: server.client.address.clone(),
        token: issued.done()["key"].as_str().expect("a key").to_owned(),
    }
}

pub fn question(client: &Client, more: &Value) -> Answer {
    let mut body = json!({
        "model": MODEL, "messages": [{ "role": "user", "content": "what is a market" }],
        "max_tokens": 40,
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    client.post("/v1/chat/completions", &[], &body)
}

/// The account of a key, as its issuer sees it.
fn account(market: &Market, name: &str) -> Value {
    let listed = market.souk(&["openai", "key", "list", "--all"]).done();
    let mut all = listed.as_array().expect("a list").iter();
    all.find(|key| key["name"] == name)
        .expect("it is listed")
        .clone()
}

/// The account of a key that has no open request.
pub fn settled(market: &Market, name: &str) -> Value {
    until("no request is open", || {
        micro(&account(market, name)["held"]) == 0
    });
    account(market, name)
}

fn micro(value: &Value) -> u64 {
    value.as_u64().expect("an amount")
}

#[test]
fn a_hundred_requests_at_once_on_one_key_stay_within_its_budget() {
    let market = Market::with_one_provider();
    let engine = Engine::start(Manner::Well);
    let _seller = sell_slots(&market, "atlas", &engine, "0.2", "8");
    let server = Server::run(&market, &[]);
    let answer = 4 * 50 + PIECES.concat().len().div_ceil(4) * 200;
    let each = (answer as u64).div_ceil(1_000);
    // It pays some ten answers, and the worst case of seven at once.
    let budget = "0.000120";
    let client = with_key(
        &market,
        &server,
        "alice",
        &["--budget", budget, "--at-once", "100"],
    );
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let asked = (0..100).map(|_| scope.spawn(|| question(&client, &json!({}))));
        let asked: Vec<_> = asked.collect();
        asked
            .into_iter()
            .map(|it| it.join().expect("it answers"))
            .collect()
    });
    let answered = answers.iter().filter(|it| it.status == 200).count() as u64;
    for refused in answers.iter().filter(|it| it.status != 200) {
        let code = refused.json()["error"]["code"].clone();
        match refused.status {
            402 => assert_eq!(code, "insufficient_quota"),
            429 => assert_eq!(code, "rate_limit_exceeded"),
            status => panic!("{status}: {}", refused.json()),
        }
    }
    assert!(answered > 0, "{:?}", answers[0]);
    let key = settled(&market, "alice");
    assert_eq!(micro(&key["spent"]), answered * each, "{key}");
    assert!(micro(&key["spent"]) <= 120, "{key}");
    assert_eq!(
        (micro(&key["held"]), micro(&key["requests"])),
        (0, answered)
    );
    // The rest is spent one after the other, until the worst case of one does not fit.
    let last = loop {
        let next = question(&client, &json!({}));
        if next.status != 200 {
            break next;
        }
    };
    assert_eq!(last.header("retry-after"), None);
    let message = last.of(402)["error"]["message"].to_string();
    assert!(message.contains("set a smaller max_tokens"), "{message}");
    let key = settled(&market, "alice");
    assert!(
        micro(&key["spent"]) <= 120 && micro(&key["left"]) < WORST,
        "{key}"
    );
    // A shorter answer still fits, and the server's own key has no such limit.
    question(&client, &json!({ "max_tokens": 1 })).of(200);
    ask(&server, &json!({})).of(200);
    let usage = client.get("/v1/key").of(200);
    assert_eq!(usage["data"]["label"], "alice");
    assert_eq!(usage["data"]["limit"], 0.00012);
    drop(server);
    market.assert_escrow_returns();
}

#[test]
fn a_key_is_held_to_its_models_and_rates_and_to_its_revocation() {
    let market = Market::with_one_provider();
    let engine = Engine::start(Manner::Well);
    let _seller = sell_slots(&market, "atlas", &engine, "0.2", "2");
    let server = Server::run(&market, &[]);
    let wrong = Client {
        address: server.client.address.clone(),
        token: "sk-souk-none".to_owned(),
    };
    let refused = question(&wrong, &json!({}));
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    let error = refused.of(401)["error"].clone();
    assert_eq!(error["code"], "invalid_api_key");
    assert_eq!(error["type"], "invalid_request_error");
    let other = with_key(&market, &server, "other", &["--models", "meta/*,mistral"]);
    let refused = question(&other, &json!({})).of(404);
    assert_eq!(refused["error"]["code"], "model_not_found");
    let message = refused["error"]["message"].to_string();
    assert!(message.contains("it allows meta/*, mistral"), "{message}");
    assert_eq!(other.get("/v1/models").of(200)["data"], json!([]));
    other.get(&format!("/v1/models/{MODEL}/endpoints")).of(404);
    let allowed = with_key(
        &market,
        &server,
        "allowed",
        &["--models", "qwen/*", "--rate", "2"],
    );
    assert_eq!(allowed.get("/v1/models").of(200)["data"][0]["id"], MODEL);
    question(&allowed, &json!({})).of(200);
    question(&allowed, &json!({ "model": "qwen/none" })).of(404);
    let often = question(&allowed, &json!({}));
    let wait = often.header("retry-after").expect("a time").parse::<u64>();
    assert!((1..=30).contains(&wait.expect("seconds")), "{often:?}");
    assert_eq!(often.of(429)["error"]["type"], "rate_limit_error");
    let again = market.souk(&["openai", "key", "add", "allowed"]);
    assert_eq!(again.code, 3, "{}", again.stderr);
    market.souk(&["openai", "key", "revoke", "allowed"]).done();
    until("the key is refused", || {
        allowed.get("/v1/models").status == 401
    });
    let listed = market.souk(&["openai", "key", "list"]).done();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
}

#[test]
fn a_server_that_is_killed_counts_what_it_promised_and_another_goes_on() {
    let market = Market::with_one_provider();
    let engine = Engine::start(Manner::Slow);
    let _seller = sell_slots(&market, "atlas", &engine, "0.2", "4");
    let mut server = Server::run(&market, &[]);
    let client = with_key(
        &market,
        &server,
        "alice",
        &["--budget", "1", "--at-once", "1"],
    );
    question(&client, &json!({})).of(200);
    let spent = micro(&settled(&market, "alice")["spent"]);
    std::thread::scope(|scope| {
        let open = scope.spawn(|| {
            let answer = std::panic::catch_unwind(|| question(&client, &json!({})));
            assert!(
                answer.map_or(true, |answer| answer.body.is_empty()),
                "it is killed"
            );
        });
        until("the request is reserved", || {
            micro(&account(&market, "alice")["held"]) == WORST
        });
        let second = question(&client, &json!({})).of(429);
        assert_eq!(second["error"]["code"], "rate_limit_exceeded");
        kill(server.process_id(), "-KILL");
        open.join().expect("it ends");
    });
    server = Server::run(&market, &[]);
    let key = account(&market, "alice");
    assert_eq!(
        (micro(&key["spent"]), micro(&key["held"])),
        (spent + WORST, 0)
    );
    let client = Client {
        address: server.client.address.clone(),
        token: client.token,
    };
    question(&client, &json!({})).of(200);
    assert_eq!(
        micro(&settled(&market, "alice")["spent"]),
        2 * spent + WORST
    );
}
