//! Tests conversations with language models through a market of real processes: with `souk chat`,
//! and over `souk openai` as OpenAI's clients send requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Market, SOUK, kill};
use crate::http::{Client, asked, raw};
use crate::texts::model;

/// How tokens are drawn.
const DRAWN: [&str; 6] = ["--max-tokens", "8", "--temperature", "1.5", "--seed", "4"];

/// Questions that a server has at a time.
const QUESTIONS_MAX: usize = 32;

fn command(market: &Market, arguments: &[&str]) -> Command {
    let mut command = Command::new(SOUK);
    command
        .arg("--dir")
        .arg(market.folder().join("net"))
        .arg("--json")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// What a conversation of two lines came to.
fn talked(market: &Market, model: &str, more: &[&str]) -> Value {
    let arguments = [&["chat", model], &DRAWN[..], more].concat();
    let mut chat = command(market, &arguments).spawn().expect("it runs");
    let mut stdin = chat.stdin.take().expect("it is piped");
    stdin.write_all(b"w5 w6 w7\nw9 w10\n").expect("it reads");
    drop(stdin);
    let ended = chat.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_slice(&ended.stdout).expect("JSON")
}

#[test]
fn a_conversation_in_the_market_is_that_of_this_machine() {
    let market = Market::up();
    let model = model(&market);
    let here = talked(&market, &model, &["--local"]);
    let arguments = [
        &["generate", &model, "w5 w6 w7", "--local", "--chat"],
        &DRAWN[..],
    ]
    .concat();
    let first = market.souk(&arguments).done();
    assert_eq!(here["turns"][0]["text"], first["text"]);
    // What was asked and answered before is not sent again; the last token's logits are.
    assert!(
        here["turns"][1]["kept_tokens"].as_u64().unwrap() >= 4,
        "{here}"
    );
    let sold = talked(&market, &model, &["--budget", "60"]);
    assert_eq!(sold["turns"], here["turns"]);
    assert!(!sold["receipts"].as_array().unwrap().is_empty());
    market.assert_escrow_returns();
}

#[test]
fn the_model_that_comes_with_souk_says_what_words_mean() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let shown = crate::common::souk(home.path(), &["demo"]).done();
    let text = &shown["text"];
    let answers = text["answers"].as_array().expect("answers");
    assert_eq!(answers.len(), 2, "{shown}");
    let killed = text["killed"].as_str().expect("a name");
    assert!(killed.starts_with("provider-"), "{shown}");
    // The session that replaced the first has two providers again, and both signed for their part.
    let mut sellers = BTreeMap::<_, BTreeSet<_>>::new();
    for receipt in text["receipts"].as_array().expect("receipts") {
        let [job, seller] = ["job", "provider"].map(|field| receipt["body"][field].as_str());
        sellers.entry(job).or_default().insert(seller);
    }
    assert!(sellers.values().any(|of_one| of_one.len() == 2), "{shown}");
    let asked = [
        "generate",
        "bundled",
        "What is escrow?",
        "--local",
        "--chat",
    ];
    let here = crate::common::souk(home.path(), &asked).done();
    assert_eq!(here["text"], answers[0]);
}

#[test]
fn a_demo_that_is_interrupted_while_it_starts_nodes_leaves_nothing() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut demo = Command::new(SOUK)
        .arg("demo")
        .env("TMPDIR", home.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let stdout = demo.stdout.as_mut().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    assert!(line.starts_with("starting a market in "), "{line}");
    kill(demo.id(), "-INT");
    // A process that the signal itself ends has no code.
    assert_eq!(demo.wait().expect("it ends").code(), Some(130));
    assert!(
        fs::read_dir(home.path())
            .expect("a folder")
            .next()
            .is_none()
    );
}

/// A server, which is told to stop when this is dropped.
pub struct Server {
    process: Child,
    pub client: Client,
}

impl Server {
    pub fn start(market: &Market, model: &str, more: &[&str]) -> Server {
        Server::run(market, &[&[model], more].concat())
    }

    /// A server with these arguments; without a model it serves those of the market.
    pub fn run(market: &Market, more: &[&str]) -> Server {
        let arguments = [&["openai", "--listen", "127.0.0.1:0"], more].concat();
        let mut process = command(market, &arguments).spawn().expect("it runs");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let ready: Value = serde_json::from_str(&line).expect("it says where it is");
        let url = ready["url"].as_str().expect("a text");
        let address = url
            .strip_prefix("http://")
            .and_then(|it| it.strip_suffix("/v1"));
        let key = fs::read_to_string(ready["key_file"].as_str().expect("a path")).expect("a key");
        let client = Client {
            address: address.expect("an address").to_owned(),
            token: key.trim().to_owned(),
        };
        Server { process, client }
    }

    fn question(&self, more: &Value) -> Value {
        let mut body = json!({
            "model": "model", "max_tokens": 8, "temperature": 1.5, "seed": 4,
            "messages": [{ "role": "user", "content": "w5 w6 w7" }],
        });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    }

    pub fn ask(&self, more: &Value) -> crate::http::Answer {
        self.client
            .post("/v1/chat/completions", &[], &self.question(more))
    }

    /// Asks for a long text, and leaves it to be read.
    fn ask_long(&self) -> BufReader<TcpStream> {
        let token = format!("Bearer {}", self.client.token);
        let headers = [
            ("host", self.client.address.as_str()),
            ("authorization", &token),
            ("content-type", "application/json"),
        ];
        let body = self.question(&json!({ "stream": true, "max_tokens": 900 }));
        let body = body.to_string();
        let path = "/v1/chat/completions";
        asked(
            &self.client.address,
            "POST",
            path,
            &headers,
            body.as_bytes(),
        )
        .expect("it listens")
    }
}

impl Server {
    /// The id of its process.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        kill(self.process.id(), "-INT");
        let _ = self.process.wait();
    }
}

/// The text of a stream, and whether it says that it ended.
fn streamed(body: &[u8]) -> (String, bool) {
    let body = String::from_utf8_lossy(body);
    let parts = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let parts: Vec<&str> = parts.collect();
    let texts = parts.iter().filter_map(|part| {
        let part: Value = serde_json::from_str(part).ok()?;
        Some(part["choices"][0]["delta"]["content"].as_str()?.to_owned())
    });
    (texts.collect(), parts.last() == Some(&"[DONE]"))
}

#[test]
fn a_server_answers_as_this_machine_does_and_lets_in_its_key_alone() {
    let market = Market::up();
    let model = model(&market);
    let arguments = [
        &["generate", &model, "w5 w6 w7", "--local", "--chat"],
        &DRAWN[..],
    ]
    .concat();
    let here = market.souk(&arguments).done();
    let out = market.path("receipts");
    let server = Server::start(
        &market,
        &model,
        &["--budget", "60", "--keep-alive", "1", "-o", &out],
    );
    let streaming = server.ask(&json!({ "stream": true }));
    assert_eq!(streaming.status, 200);
    assert_eq!(
        streamed(&streaming.body),
        (here["text"].as_str().unwrap().to_owned(), true)
    );
    let whole = server.ask(&json!({})).of(200);
    assert_eq!(whole["choices"][0]["message"]["content"], here["text"]);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 8);
    let weighed = server
        .ask(&json!({ "logprobs": true, "top_logprobs": 2 }))
        .of(200);
    let weighed = &weighed["choices"][0]["logprobs"]["content"];
    let words = weighed.as_array().unwrap().iter().map(|token| {
        let best = token["top_logprobs"].as_array().unwrap().iter();
        let best: Vec<f64> = best.map(|it| it["logprob"].as_f64().unwrap()).collect();
        assert!(
            best.len() == 2 && best[0] >= best[1] && best[0] < 0.0,
            "{token}"
        );
        assert!(token["logprob"].as_f64().unwrap() <= best[0], "{token}");
        token["token"].as_str().unwrap()
    });
    let words: Vec<&str> = words.collect();
    assert_eq!(words.join(" "), here["text"].as_str().unwrap().trim());
    let refused = server.ask(&json!({ "tools": [look_up()] })).of(400);
    assert_eq!(refused["error"]["param"], "tools");
    let models = server.client.get("/v1/models").of(200);
    assert_eq!(models["data"][0]["id"], "model");
    let address = server.client.address.as_str();
    for token in ["", "Bearer none", &server.client.token] {
        let headers = [("host", address), ("authorization", token)];
        let answer = raw(address, "GET", "/v1/models", &headers, &[]).unwrap();
        assert_eq!(answer.of(401)["error"]["code"], "invalid_api_key");
    }
    // A session that nobody asks is given up, and paid.
    market.until(|| fs::read_dir(&out).is_ok_and(|files| files.count() > 0));
    drop(server);
    market.assert_escrow_returns();
}

#[test]
fn texts_are_made_the_vectors_over_two_providers_that_they_are_made_on_this_machine() {
    let market = Market::up();
    let model = model(&market);
    let ask = |server: &Server, more: Value| {
        let mut body = json!({ "model": "model", "input": ["w5 w6 w7", "w5 w6", "w9"] });
        let fields = body.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        server.client.post("/v1/embeddings", &[], &body)
    };
    let vectors = |answer: &Value| -> Vec<Vec<f64>> {
        let data = answer["data"].as_array().expect("a list").iter();
        let numbers = data.map(|one| one["embedding"].as_array().expect("a vector"));
        let number = |it: &Value| it.as_f64().expect("a number");
        numbers
            .map(|all| all.iter().map(number).collect())
            .collect()
    };
    let here = Server::start(&market, &model, &["--local", "--embeddings"]);
    let told = ask(&here, json!({})).of(200);
    assert_eq!(told["usage"]["prompt_tokens"], 6);
    let expected = vectors(&told);
    assert_eq!(expected.len(), 3);
    let refused = here.ask(&json!({})).of(404);
    assert_eq!(refused["error"]["code"], "unsupported_endpoint");
    drop(here);
    let two = ["--embeddings", "--budget", "60", "--min-providers", "2"];
    let sold = Server::start(&market, &model, &two);
    let found = vectors(&ask(&sold, json!({})).of(200));
    for (found, expected) in found.iter().zip(&expected) {
        let products = found.iter().zip(expected).map(|(a, b)| a * b);
        assert!((products.sum::<f64>() - 1.0).abs() < 1e-4, "{found:?}");
    }
    let short = vectors(&ask(&sold, json!({ "dimensions": 2 })).of(200));
    assert!(short.iter().all(|vector| vector.len() == 2));
    let packed = ask(&sold, json!({ "encoding_format": "base64" })).of(200);
    assert!(packed["data"][0]["embedding"].is_string());
    drop(sold);
    market.assert_escrow_returns();
}

#[test]
fn questions_answered_at_once_have_the_texts_that_each_has_by_itself() {
    let market = Market::up();
    let model = model(&market);
    let questions: Vec<Value> = (0..6)
        .map(|at| {
            let content = format!("w{} w6 w{}", 5 + at % 3, 7 + at);
            json!({
                "messages": [{ "role": "user", "content": content }],
                "max_tokens": 4 + at, "seed": at,
            })
        })
        .collect();
    let text = |answer: crate::http::Answer| {
        let answer = answer.of(200);
        answer["choices"][0]["message"]["content"]
            .as_str()
            .map(str::to_owned)
    };
    let here = Server::start(&market, &model, &["--local", "--sequences", "1"]);
    let alone: Vec<_> = questions.iter().map(|it| text(here.ask(it))).collect();
    let two = [
        "--budget",
        "60",
        "--min-providers",
        "2",
        "--max-providers",
        "2",
    ];
    let four = [&two[..], &["--sequences", "4"]].concat();
    for place in [&["--local"][..], &four] {
        let server = Server::start(&market, &model, place);
        let at_once: Vec<_> = std::thread::scope(|scope| {
            let asking = questions
                .iter()
                .map(|it| scope.spawn(|| text(server.ask(it))));
            let asking: Vec<_> = asking.collect();
            asking
                .into_iter()
                .map(|it| it.join().expect("it is asked"))
                .collect()
        });
        assert_eq!(at_once, alone, "{place:?}");
    }
    drop(here);
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn who_comes_after_those_that_wait_is_told_so_and_who_leaves_is_not_waited_for() {
    let market = Market::up();
    let model = model(&market);
    let server = Server::start(&market, &model, &["--budget", "60"]);
    let more = 8;
    let streams = (0..QUESTIONS_MAX + more).map(|_| (server.ask_long(), Vec::new()));
    let mut streams: Vec<(BufReader<TcpStream>, Vec<u8>)> = streams.collect();
    let moment = Some(Duration::from_millis(5));
    for (stream, _) in &streams {
        stream.get_ref().set_read_timeout(moment).unwrap();
    }
    let mut refused = Vec::new();
    market.until(|| {
        for (stream, said) in &mut streams {
            // What has not come yet is asked for again.
            let _ = stream.read_to_end(said);
        }
        let begin = b"HTTP/1.1 429 ";
        let texts = streams.iter().filter(|(_, said)| said.starts_with(begin));
        refused = texts
            .map(|(_, said)| String::from_utf8_lossy(said).into_owned())
            .collect();
        refused.len() == more
    });
    for text in refused {
        assert!(text.contains("retry-after: 1"), "{text}");
        assert!(text.contains("rate_limit_exceeded"), "{text}");
    }
    // All of them would take many minutes.
    drop(streams);
    market.until(|| server.ask(&json!({ "max_tokens": 1 })).status == 200);
}

/// JSON that the model that comes with souk writes in some tokens.
fn offer() -> Value {
    json!({
        "type": "object", "required": ["word", "is_sold", "price"], "additionalProperties": false,
        "properties": {
            "word": { "enum": ["lease", "bid", "Gebühr"] },
            "is_sold": { "type": "boolean" },
            "price": { "type": "integer", "minimum": 0, "maximum": 99 },
        },
    })
}

fn assert_offer(text: &str) {
    let offer: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(offer.as_object().map(|it| it.len()), Some(3), "{text}");
    let is_word = ["lease", "bid", "Gebühr"]
        .map(Value::from)
        .contains(&offer["word"]);
    assert!(is_word && offer["is_sold"].is_boolean(), "{text}");
    assert!(offer["price"].as_u64().is_some_and(|it| it < 100), "{text}");
}

#[test]
fn json_of_a_schema_that_is_sold_is_that_of_this_machine_and_drafts_change_nothing() {
    let market = Market::up();
    let schema = market.path("offer.json");
    fs::write(&schema, offer().to_string()).expect("a file");
    let asked = [
        "generate",
        "bundled",
        "What is a lease?",
        "--max-tokens",
        "80",
        "--chat",
    ];
    let asked = [&asked[..], &["--json-schema", &schema]].concat();
    let here = market.souk(&[&asked[..], &["--local"]].concat()).done();
    assert_offer(here["text"].as_str().unwrap());
    let sold = [
        "--budget",
        "60",
        "--draft",
        "6",
        "--min-providers",
        "2",
        "--max-providers",
        "2",
    ];
    let sold = market.souk(&[&asked[..], &sold].concat()).done();
    assert_eq!(sold["text"], here["text"]);
    assert!(!sold["receipts"].as_array().unwrap().is_empty());
    market.assert_escrow_returns();
}

#[test]
fn a_server_writes_json_and_says_why_it_cannot() {
    let market = Market::without_nodes();
    let server = Server::start(&market, "bundled", &["--local"]);
    let format = |schema: Value| {
        let named = json!({ "name": "offer", "strict": true, "schema": schema });
        json!({ "type": "json_schema", "json_schema": named })
    };
    let asked = json!({
        "model": "bundled", "max_tokens": 80, "response_format": format(offer()),
    });
    let whole = server.ask(&asked).of(200);
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_offer(text);
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let with = |name: &str, value: Value| {
        let mut asked = asked.clone();
        asked[name] = value;
        server.ask(&asked)
    };
    let streaming = with("stream", json!(true));
    assert_eq!(streamed(&streaming.body), (text.to_owned(), true));
    let short = with("max_tokens", json!(3)).of(200);
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    let object = with("response_format", json!({ "type": "json_object" })).of(200);
    let object = object["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(object.trim_start().starts_with('{'), "{object}");
    let refused = with("response_format", format(json!({ "type": "objekt" }))).of(400);
    assert_eq!(refused["error"]["param"], "response_format");
    let reason = refused["error"]["message"].as_str().unwrap();
    assert!(reason.contains("objekt"), "{reason}");
}

/// A tool that says what a word means.
fn look_up() -> Value {
    let parameters = json!({
        "type": "object", "required": ["word"], "additionalProperties": false,
        "properties": { "word": { "$ref": "#/$defs/word" } },
        "$defs": { "word": { "enum": ["lease", "bid"] } },
    });
    json!({ "type": "function", "function": { "name": "look_up", "parameters": parameters } })
}

/// The model that comes with souk, with a chat template that knows tools.
fn model_with_tools(market: &Market) -> String {
    let model = market.path("tools");
    fs::create_dir(&model).expect("a folder");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (glossary, model_path) = (repository.join("llm/models/glossary"), Path::new(&model));
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(glossary.join(name), model_path.join(name)).expect("a copy");
    }
    let template = repository.join("contrib/openai/tools.jinja");
    fs::copy(template, model_path.join("chat_template.jinja")).expect("a copy");
    model
}

#[test]
fn a_tool_is_called_where_the_model_knows_tools_and_has_to() {
    let market = Market::without_nodes();
    let server = Server::start(&market, &model_with_tools(&market), &["--local"]);
    let asked = json!({
        "model": "tools", "max_tokens": 80, "tools": [look_up()], "tool_choice": "required",
    });
    let whole = server.ask(&asked).of(200);
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(
        (&call["type"], &call["function"]["name"]),
        (&json!("function"), &json!("look_up"))
    );
    let arguments = call["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).expect("JSON");
    assert!(
        ["lease", "bid"]
            .map(Value::from)
            .contains(&arguments["word"]),
        "{call}"
    );
    let mut streaming = asked.clone();
    streaming["stream"] = json!(true);
    let streaming = server.ask(&streaming);
    let streaming = String::from_utf8_lossy(&streaming.body);
    let same = json!(call["function"]["arguments"]).to_string();
    assert!(streaming.contains(&same), "{streaming}");
    assert!(
        streaming.contains("\"finish_reason\":\"tool_calls\""),
        "{streaming}"
    );
    // What came of it is told to the model, which may answer as it likes.
    let mut told = asked.clone();
    told["tool_choice"] = json!("auto");
    told["messages"] = json!([
        { "role": "user", "content": "What is a lease?" },
        choice["message"],
        { "role": "tool", "tool_call_id": call["id"], "content": "a right to use" },
    ]);
    let told = server.ask(&told).of(200);
    assert_ne!(told["choices"][0]["finish_reason"], Value::Null);
}
