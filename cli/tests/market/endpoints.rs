//! Tests providers that sell the models of an inference engine by the token, and buyers that use
//! them over OpenAI's HTTP API.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
pub use souk_node_testing::fake_engine::{FakeEngine as Engine, KEY, MODEL, Manner, PIECES};

use crate::chats::Server;
use crate::common::{Market, souk};
use crate::http::asked;
use crate::seller::{Seller, until};
use crate::text_keys;

/// A question of 16 bytes, which are 4 tokens.
fn question(more: &Value) -> Value {
    let mut body = json!({
        "model": MODEL, "messages": [{ "role": "user", "content": "what is a market" }],
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// The answer of a server to a question.
pub fn ask(server: &Server, more: &Value) -> crate::http::Answer {
    let body = question(more);
    server.client.post("/v1/chat/completions", &[], &body)
}

/// The streamed answer of a server to a question, to be read.
pub fn ask_slowly(server: &Server, more: &Value) -> BufReader<TcpStream> {
    let client = &server.client;
    let token = format!("Bearer {}", client.token);
    let headers = [
        ("host", client.address.as_str()),
        ("authorization", &token),
        ("content-type", "application/json"),
    ];
    let mut body = question(more);
    body["stream"] = json!(true);
    let (path, body) = ("/v1/chat/completions", body.to_string());
    asked(&client.address, "POST", path, &headers, body.as_bytes()).expect("it listens")
}

/// What a stream says, up to the end of the line with this text.
fn read_through(stream: &mut impl BufRead, text: &str) -> Vec<u8> {
    let mut body = Vec::new();
    while !String::from_utf8_lossy(&body).contains(text) {
        let count = stream.read_until(b'\n', &mut body).expect("it answers");
        assert!(count > 0, "{}", String::from_utf8_lossy(&body));
    }
    body
}

/// The data of a stream's events.
pub fn events(body: &[u8]) -> Vec<String> {
    let body = String::from_utf8_lossy(body);
    let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(str::to_owned).collect()
}

pub fn text_of(events: &[String]) -> String {
    let parts = events.iter().filter_map(|event| {
        let event: Value = serde_json::from_str(event).ok()?;
        Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned())
    });
    parts.collect()
}

/// The path of a file with the engine's key that only its owner can read.
pub fn write_key(market: &Market) -> String {
    let key = market.path("engine-key");
    std::fs::write(&key, format!("{KEY}\n")).expect("a file is written");
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&key, private).expect("a file is closed");
    key
}

fn sell(market: &Market, name: &str, engine: &Engine, out: &str) -> Seller {
    sell_slots(market, name, engine, out, "8")
}

pub fn sell_slots(market: &Market, name: &str, engine: &Engine, out: &str, slots: &str) -> Seller {
    sell_with(market, name, engine, &["--out", out, "--slots", slots])
}

pub fn sell_with(market: &Market, name: &str, engine: &Engine, options: &[&str]) -> Seller {
    let key = write_key(market);
    let options = [options, &["--key-file", &key]].concat();
    let mut seller = Seller::of_engine(market, name, &engine.url, &options);
    seller.start();
    until("its ask is in the book", || {
        let offers = market.souk(&["model", "show", MODEL]);
        offers.code == 0 && offers.stdout.contains(name)
    });
    seller
}

#[test]
fn a_model_of_an_engine_is_sold_by_the_token_and_bought_over_http() {
    let market = Market::with_one_provider();
    // What the engine says of its usage is never billed.
    let engine = Engine::start(Manner::WrongUsage);
    let endpoint = [
        "provider",
        "init",
        "--endpoint",
        &engine.url,
        "--model",
        MODEL,
    ];
    let own_folder = market.folder().join("net/keyless");
    let without_key = souk(&own_folder, &[&endpoint[..], &["--out", "1"]].concat());
    assert_eq!(without_key.code, 5, "{}", without_key.stderr);
    let cause = without_key.stdout + &without_key.stderr;
    assert!(cause.contains("401 Unauthorized: no key"), "{cause}");
    let seller = sell(&market, "atlas", &engine, "0.2");
    let models = market.souk(&["model", "list"]).done();
    let price = json!({
        "input_per_million": 50_000, "cached_per_million": 50_000, "output_per_million": 200_000,
    });
    assert_eq!(models[0]["model"], MODEL);
    assert_eq!(models[0]["price"], price);
    let account = seller.account().to_string();
    {
        let server = Server::run(&market, &["--budget", "5"]);
        let listed = server.client.get("/v1/models").of(200);
        assert_eq!(listed["data"][0]["id"], MODEL);
        assert_eq!(listed["data"][0]["pricing"]["completion"], "0.0000002");
        let whole = ask(&server, &json!({}));
        assert_eq!(whole.header("x-souk-provider"), Some(account.as_str()));
        let whole = whole.of(200);
        let text = PIECES.concat();
        assert_eq!(whole["choices"][0]["message"]["content"], text);
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        let output = text.len().div_ceil(4);
        assert_eq!(whole["usage"]["prompt_tokens"], 4);
        assert_eq!(whole["usage"]["completion_tokens"], output);
        let streamed = ask(&server, &json!({ "stream": true, "max_tokens": 40 }));
        let streamed = events(&streamed.body);
        assert_eq!(text_of(&streamed), text);
        assert_eq!(streamed.last().map(String::as_str), Some("[DONE]"));
        // What an engine does not get is refused before anything is bought.
        ask(&server, &json!({ "top_k": 3 })).of(400);
        let unknown = ask(&server, &json!({ "model": "other" })).of(404);
        let message = unknown["error"]["message"].as_str().expect("a text");
        assert!(
            message.contains(&format!("on sale are {MODEL}")),
            "{message}"
        );
    }
    // The server has settled its tab before it stopped.
    market.assert_escrow_returns();
    let earned = market.available(&account);
    // Two answers, and at most some seconds of a tenth of the price.
    let answers = 2 * (4 * 50 + PIECES.concat().len().div_ceil(4) * 200) / 1_000;
    assert!(earned >= answers as u64, "{earned} {answers}");
    assert!(earned <= answers as u64 + 2_000, "{earned} {answers}");
    let requests = engine.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert_eq!(requests[1]["max_tokens"], 40);
    let leases = seller.status()["leases"].clone();
    assert!(leases.to_string().contains("receipt"), "{leases}");
    // souk tries at its start whether an engine takes a salt, and this one does not.
    let refused = engine.refusals();
    let is_probe = |it: &String| it == "the field cache_salt";
    assert!(
        !refused.is_empty() && refused.iter().all(is_probe),
        "{refused:?}"
    );
}

#[test]
fn if_an_engine_is_busy_another_answers_and_a_broken_answer_is_said() {
    let market = Market::with_one_provider();
    let engines = [Manner::Busy, Manner::Fails, Manner::Well].map(Engine::start);
    let names = ["busy", "failing", "well"];
    let prices = ["0.1", "0.2", "0.3"];
    let mut sellers = Vec::new();
    for ((name, engine), price) in names.iter().zip(&engines).zip(prices) {
        sellers.push(sell(&market, name, engine, price));
    }
    let server = Server::run(&market, &[]);
    let cheapest = json!({ "provider": { "sort": "price" } });
    let answer = ask(&server, &cheapest);
    let dearest = sellers[2].account().to_string();
    assert_eq!(answer.header("x-souk-provider"), Some(dearest.as_str()));
    answer.of(200);
    assert_eq!(engines.each_ref().map(|it| it.requests().len()), [1, 1, 1]);
    // One that is stopped takes its ask back.
    for seller in &mut sellers {
        seller.terminate();
    }
    let breaking = Engine::start(Manner::Breaks);
    let _seller = sell(&market, "breaking", &breaking, "0.05");
    until("only it sells", || {
        let offers = market.souk(&["model", "show", MODEL]);
        offers.code == 0 && offers.json().as_array().is_some_and(|it| it.len() == 1)
    });
    let broken = ask(&server, &json!({ "stream": true }));
    let streamed = events(&broken.body);
    assert_eq!(
        broken.status,
        200,
        "{}",
        String::from_utf8_lossy(&broken.body)
    );
    assert_eq!(text_of(&streamed), PIECES[..2].concat(), "{streamed:?}");
    let last = streamed.last().expect("an error");
    assert!(last.contains("provider_failed"), "{last}");
    // A request that its only engine refuses is at fault, and costs nothing.
    let refusing = Engine::start(Manner::Refuses);
    let _other = sell(&market, "refusing", &refusing, "0.01");
    let rules = json!({ "stream": true, "provider": { "only": ["refusing"] } });
    let refused = ask(&server, &rules).of(400);
    let message = refused["error"]["message"].as_str().expect("a text");
    assert!(message.contains("it is too long"), "{message}");
    drop(server);
    market.assert_escrow_returns();
}

#[test]
fn a_request_that_a_cheap_engine_refuses_is_answered_by_another() {
    let market = Market::up();
    let engines = [Manner::Refuses, Manner::Well].map(Engine::start);
    let _refusing = sell(&market, "refusing", &engines[0], "0.01");
    let well = sell(&market, "well", &engines[1], "0.3");
    let server = Server::run(&market, &[]);
    for _ in 0..20 {
        let answer = ask(&server, &json!({}));
        let provider = answer.header("x-souk-provider").map(str::to_owned);
        assert_eq!(provider, Some(well.account().to_string()));
        let text = answer.of(200)["choices"][0]["message"]["content"].clone();
        assert_eq!(text, PIECES.concat());
    }
    let refused = engines[0].requests().len();
    assert!((1..=3).contains(&refused), "{refused} requests went there");
    let only = json!({ "provider": { "only": ["refusing"] } });
    let refused = ask(&server, &only).of(400);
    assert_eq!(refused["error"]["code"], "engine_refused");
    drop(server);
    market.assert_escrow_returns();
}

#[test]
fn text_that_no_reader_sees_is_in_the_cost_alone() {
    let market = Market::up();
    let engines = [Manner::Breaks, Manner::Anew, Manner::Well].map(Engine::start);
    let names = ["breaking", "anew", "well"];
    let sellers = names.iter().zip(&engines);
    let _sellers: Vec<_> = sellers
        .map(|(name, engine)| sell(&market, name, engine, "0.1"))
        .collect();
    let server = Server::run(&market, &[]);
    let client = text_keys::with_key(&market, &server, "alice", &[]);
    let rules = json!({ "provider": { "order": names } });
    let answer = text_keys::question(&client, &rules).of(200);
    assert_eq!(engines.each_ref().map(|it| it.requests().len()), [1, 1, 1]);
    let text = PIECES.concat();
    assert_eq!(answer["choices"][0]["message"]["content"], text);
    assert_eq!(answer["usage"]["completion_tokens"], text.len().div_ceil(4));
    // The cost has what each provider billed, as the key pays it.
    let cost = answer["usage"]["cost"].as_f64().expect("credits") * 1e6;
    let spent = text_keys::settled(&market, "alice")["spent"].clone();
    assert_eq!(spent, json!(cost.round() as u64), "{answer}");
    drop(server);
    market.assert_escrow_returns();
}

#[test]
fn an_answer_goes_on_at_another_provider_and_a_model_without_free_slots_is_said() {
    let market = Market::with_one_provider();
    let engines = [Manner::Slow, Manner::Well].map(Engine::start);
    let mut slow = sell_slots(&market, "slow", &engines[0], "0.1", "1");
    let _well = sell_slots(&market, "well", &engines[1], "0.2", "1");
    let servers = [(); 2].map(|()| Server::run(&market, &[]));
    let rules = json!({ "provider": { "order": ["slow", "well"] } });
    let mut stream = ask_slowly(&servers[0], &rules);
    let mut body = read_through(&mut stream, PIECES[1]);
    slow.kill();
    stream.read_to_end(&mut body).expect("it answers");
    let streamed = events(&body);
    assert_eq!(text_of(&streamed), PIECES.concat(), "{streamed:?}");
    assert_eq!(streamed.last().map(String::as_str), Some("[DONE]"));
    let continued = engines[1].requests();
    let begun = PIECES[..2].concat().trim_end().to_owned();
    let expected = json!({ "role": "assistant", "content": begun });
    assert_eq!(continued.len(), 1);
    assert_eq!(continued[0]["messages"][1], expected);
    assert_eq!(continued[0]["add_generation_prompt"], json!(false));
    assert_eq!(continued[0]["temperature"], Value::Null);
    // Its only slot is held by the first server's tab, so the other one has to come again. A
    // killed provider's ask stays in the book for a while.
    let only = json!({ "provider": { "ignore": ["slow"] } });
    let taken = ask(&servers[1], &only);
    assert_eq!(taken.header("retry-after"), Some("1"), "{taken:?}");
    assert_eq!(taken.of(503)["error"]["code"], "no_free_slot");
    until("the ask of the killed provider is gone", || {
        market.souk(&["model", "show", MODEL]).code != 0
    });
    let shown = market.souk(&["model", "show", MODEL]);
    let message = shown.stdout + &shown.stderr;
    assert!(
        message.contains("no slot of qwen/qwen3-8b is free"),
        "{message}"
    );
    let unknown = json!({ "provider": { "quantizations": ["fp8"] } });
    let refused = ask(&servers[1], &unknown).of(400);
    assert_eq!(refused["error"]["param"], "provider.quantizations");
}

#[test]
fn a_seller_that_is_killed_is_paid_for_the_whole_answers_of_its_tab() {
    let market = Market::with_one_provider();
    let engine = Engine::start(Manner::Slow);
    let mut seller = sell(&market, "atlas", &engine, "0.2");
    let server = Server::run(&market, &[]);
    for _ in 0..2 {
        ask(&server, &json!({})).of(200);
    }
    // The third answer keeps the tab open, and is lost.
    let mut stream = ask_slowly(&server, &json!({}));
    read_through(&mut stream, PIECES[0]);
    let answer_us = 4 * 250 + PIECES.concat().len().div_ceil(4) * 1_000;
    let first_lease = |seller: &Seller| {
        let leases = seller.status()["leases"].clone();
        let leases = leases.as_object().expect("leases by number");
        leases.values().next().cloned().unwrap_or_default()
    };
    until("both answers are recorded", || {
        first_lease(&seller)["usage"] == json!(2 * answer_us)
    });
    seller.kill();
    seller.start();
    until("its lease is closed", || {
        !first_lease(&seller)["closed"].is_null()
    });
    let closed = first_lease(&seller)["closed"].clone();
    // A device second is a thousand tokens, at 0.2 credits a million.
    let paid = (2 * answer_us * 200).div_ceil(1_000_000);
    assert_eq!(closed["paid"], json!(paid), "{closed}");
    assert_ne!(closed["reason"], json!("receipt"), "{closed}");
}
