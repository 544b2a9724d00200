//! Tests special requests to `souk openai`: unknown tokens (which must cost nothing), several
//! prompts and answers in one request, aliases of a model, and pages of other origins (CORS).

use serde_json::{Value, json};

use crate::chats::Server;
use crate::common::Market;
use crate::http::raw;

const TEXT: &str = "/v1/completions";

fn asked(more: &Value) -> Value {
    let mut body = json!({ "model": "bundled", "max_tokens": 4, "temperature": 0 });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

#[test]
fn a_token_that_the_model_does_not_know_buys_nothing_and_the_next_question_is_answered() {
    let market = Market::with_one_provider();
    let server = Server::start(
        &market,
        "bundled",
        &["--budget", "20", "--keep-alive", "60"],
    );
    let before = market.souk(&["balance"]).done();
    for prompt in [json!([999_999]), json!([[1], [u32::MAX]])] {
        let refused = server
            .client
            .post(TEXT, &[], &asked(&json!({ "prompt": prompt })));
        let error = &refused.of(400)["error"];
        assert_eq!(
            (&error["type"], &error["param"]),
            (&json!("invalid_request_error"), &json!("prompt"))
        );
    }
    assert_eq!(market.souk(&["balance"]).done(), before);
    let answered = server
        .client
        .post(TEXT, &[], &asked(&json!({ "prompt": [10] })));
    assert_eq!(answered.of(200)["usage"]["prompt_tokens"], 1);
    drop(server);
    market.assert_escrow_returns();
}

#[test]
fn several_answers_prompts_and_echoes_are_told_apart() {
    let market = Market::without_nodes();
    let server = Server::start(&market, "bundled", &["--local"]);
    let ask = |more: Value| server.client.post(TEXT, &[], &asked(&more)).of(200);
    let alone = |prompt: &str| ask(json!({ "prompt": prompt }))["choices"][0]["text"].clone();
    let both = ask(json!({ "prompt": ["A lease", "A bid"], "n": 2, "echo": true }));
    let texts = both["choices"].as_array().unwrap().iter().enumerate();
    let texts = texts.map(|(at, choice)| {
        assert_eq!(choice["index"], at);
        choice["text"].as_str().unwrap().to_owned()
    });
    let expected = ["A lease", "A lease", "A bid", "A bid"];
    let expected = expected.map(|it| it.to_owned() + alone(it).as_str().unwrap());
    assert_eq!(texts.collect::<Vec<_>>(), expected);
    assert_eq!(both["usage"]["completion_tokens"], 16);

    let echoed = json!({
        "prompt": "A lease is", "echo": true, "max_tokens": 0, "logprobs": 1,
    });
    let echoed = ask(echoed);
    let weights = &echoed["choices"][0]["logprobs"];
    let words: Vec<&str> = weights["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap())
        .collect();
    assert_eq!(words.concat().trim(), "A lease is");
    let logarithms = weights["token_logprobs"].as_array().unwrap();
    assert_eq!(logarithms[0], Value::Null);
    assert!(
        logarithms[1..].iter().all(|it| it.as_f64().unwrap() <= 0.0),
        "{weights}"
    );

    let stream = asked(&json!({ "prompt": "A lease", "n": 2, "stream": true }));
    let stream = server.client.post(TEXT, &[], &stream);
    let stream = String::from_utf8_lossy(&stream.body).into_owned();
    let parts = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let mut told = [String::new(), String::new()];
    let mut ends = 0;
    for part in parts {
        ends += usize::from(part == "[DONE]");
        let Ok(part) = serde_json::from_str::<Value>(part) else {
            continue;
        };
        let choice = &part["choices"][0];
        let at = choice["index"].as_u64().unwrap() as usize;
        told[at].push_str(choice["text"].as_str().unwrap());
    }
    let one = alone("A lease");
    assert_eq!(
        (told, ends),
        (
            [
                one.as_str().unwrap().to_owned(),
                one.as_str().unwrap().to_owned()
            ],
            1
        )
    );
}

#[test]
fn other_names_of_a_model_and_pages_of_other_origins_are_answered_where_they_were_named() {
    let market = Market::without_nodes();
    let page = "http://localhost:3000";
    let more = ["--local", "--alias", "gpt-4o-mini", "--cors", page];
    let server = Server::start(&market, "bundled", &more);
    let answer = server.client.post(
        TEXT,
        &[],
        &asked(&json!({ "model": "gpt-4o-mini", "prompt": "A lease" })),
    );
    assert_eq!(answer.of(200)["model"], "gpt-4o-mini");
    let names = server.client.get("/v1/models").of(200);
    assert_eq!(names["data"].as_array().map(Vec::len), Some(2));
    let address = server.client.address.as_str();
    let asks = |method: &str, origin: &str| {
        let token = format!("Bearer {}", server.client.token);
        let headers = [
            ("host", address),
            ("origin", origin),
            ("sec-fetch-site", "cross-site"),
            ("authorization", &token),
        ];
        raw(address, method, "/v1/models", &headers, &[]).expect("it answers")
    };
    let leave = asks("OPTIONS", page);
    assert_eq!(
        (leave.status, leave.header("access-control-allow-origin")),
        (204, Some(page))
    );
    let seen = asks("GET", page);
    assert_eq!(
        (seen.status, seen.header("access-control-allow-origin")),
        (200, Some(page))
    );
    assert_eq!(asks("GET", "http://localhost:3001").status, 403);
}
