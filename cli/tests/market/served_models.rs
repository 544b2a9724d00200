//! Tests providers that serve models to many buyers with souk's own decoder, next to providers that
//! sell the models of other engines.

use std::io::{BufRead, Read};

use serde_json::{Value, json};

use crate::chats::Server;
use crate::common::{Market, souk};
use crate::endpoints::{
    Engine, MODEL, Manner, PIECES, ask, ask_slowly, events, sell_slots, text_of,
};
use crate::seller::{Seller, until};

/// Sells the model that comes with souk, under the name of the engines' model.
fn serve(market: &Market, name: &str, out: &str) -> Seller {
    let mut seller = Seller::of_served_model(market, name, MODEL, &["--out", out, "--slots", "4"]);
    seller.start();
    until("its ask is in the book", || {
        let offers = market.souk(&["model", "show", MODEL]);
        offers.code == 0 && offers.stdout.contains(name)
    });
    seller
}

/// The text of a whole answer of one provider, by seed.
fn answer_of(server: &Server, provider: &str, seed: u64) -> String {
    let asked = json!({
        "provider": { "only": [provider] }, "seed": seed, "temperature": 2, "max_tokens": 30,
    });
    let whole = ask(server, &asked).of(200);
    let text = whole["choices"][0]["message"]["content"].as_str();
    text.expect("a text").to_owned()
}

/// Asks these providers in this order, ends the first one as a power cut would once the text has
/// this, and returns the events of the whole answer.
fn kill_in_the_middle(
    server: &Server,
    order: [&str; 2],
    killed: &mut Seller,
    seen: &str,
) -> Vec<String> {
    let asked = json!({
        "provider": { "order": order }, "temperature": 0, "seed": 1, "max_tokens": 80,
    });
    let mut stream = ask_slowly(server, &asked);
    let mut body = Vec::new();
    while !text_of(&events(&body)).contains(seen) {
        let count = stream.read_until(b'\n', &mut body).expect("it answers");
        assert!(count > 0, "{}", String::from_utf8_lossy(&body));
    }
    killed.kill();
    stream.read_to_end(&mut body).expect("it answers");
    events(&body)
}

#[test]
fn a_served_model_and_an_engine_are_sold_side_by_side_and_answers_outlive_their_providers() {
    let market = Market::with_one_provider();
    let engine = Engine::start(Manner::Slow);
    let mut slow = sell_slots(&market, "slow", &engine, "0.1", "4");
    let own = serve(&market, "own", "0.2");
    let mut other = serve(&market, "other", "0.3");
    let server = Server::run(&market, &["--budget", "5"]);

    // The same seed gives the same text, whoever serves the model and whoever else is served.
    let alone = [1, 2].map(|seed| answer_of(&server, "own", seed));
    assert!(alone.iter().all(|text| !text.is_empty()), "{alone:?}");
    let together: Vec<String> = std::thread::scope(|scope| {
        let (server, names) = (&server, ["own", "other"]);
        let asking = (0..6).map(|number| {
            scope.spawn(move || answer_of(server, names[number % 2], 1 + (number / 2 % 2) as u64))
        });
        let asking: Vec<_> = asking.collect();
        asking
            .into_iter()
            .map(|it| it.join().expect("an answer"))
            .collect()
    });
    for (number, text) in together.iter().enumerate() {
        assert_eq!(text, &alone[number / 2 % 2], "{number}");
    }

    // An engine's provider is killed, and the decoder goes on with its text.
    let streamed = kill_in_the_middle(&server, ["slow", "own"], &mut slow, PIECES[1]);
    let text = text_of(&streamed);
    assert!(text.starts_with(&PIECES[..2].concat()), "{text}");
    assert_eq!(
        streamed.last().map(String::as_str),
        Some("[DONE]"),
        "{streamed:?}"
    );
    // The decoder's provider is killed, and another one goes on.
    let streamed = kill_in_the_middle(&server, ["other", "own"], &mut other, " ");
    assert_eq!(
        streamed.last().map(String::as_str),
        Some("[DONE]"),
        "{streamed:?}"
    );
    assert!(text_of(&streamed).len() > 8, "{streamed:?}");

    // A request that the model has no room for is refused by name, and costs nothing.
    let long = json!({
        "provider": { "only": ["own"] },
        "messages": [{ "role": "user", "content": "a market ".repeat(2_000) }],
    });
    let refused = ask(&server, &long).of(400);
    let message = refused["error"]["message"].as_str().expect("a text");
    assert!(message.contains("context of 512"), "{message}");
    drop(server);

    until("its owner sees the requests", || {
        let tokens = &own.status()["tokens"];
        let count = |name: &str| tokens[name].as_u64().unwrap_or_default();
        count("answered") >= 6
            && count("refused") >= 1
            && count("output_tokens") > 0
            && count("running") == 0
    });
    assert_eq!(own.status()["tokens"]["slots"], 4);
    assert_ne!(own.status()["earned"], Value::from(0));
}

#[test]
fn a_wrong_option_is_refused_before_the_model_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("own");
    let long = "n".repeat(80);
    let missing = ["provider", "init", "--serve", "/no/such/model", "--out"];
    for (wrong, cause) in [
        (&["0.2", "--hours", "always"][..], "--hours"),
        (&["0.2", "--band", "always"], "--band"),
        (&["0.2", "--name", &long], "--name"),
        (&["0.2", "--model", &long], "model"),
        (&["0.0001"], "0.001"),
    ] {
        let refused = souk(&folder, &[&missing[..], wrong].concat());
        assert_ne!(refused.code, 0);
        let error = refused.json()["error"].to_string();
        assert!(error.contains(cause), "{error}");
        assert!(!error.contains("/no/such/model"), "{error}");
    }
}
