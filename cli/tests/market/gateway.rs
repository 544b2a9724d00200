//! Tests the gateway of a market of real processes over HTTP: plans, jobs, receipts, tokens, and
//! the page.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::common::{Market, digits, floats, kill};
use crate::http::{Answer, Client, raw};
use souk_node::memory::{ContentId, npy};

/// A market with a gateway, and a client of it for each token.
pub fn market() -> (Market, Client, Client) {
    let (market, address) = Market::with_gateway();
    let tokens = fs::read(market.path("net/buyer/http-tokens.json")).expect("a file is read");
    let tokens: Value = serde_json::from_slice(&tokens).expect("the tokens are JSON");
    let client = |scope: &str| Client {
        address: address.clone(),
        token: tokens[scope].as_str().expect("a text").to_owned(),
    };
    let (reader, trader) = (client("read"), client("trade"));
    (market, reader, trader)
}

/// Brings a file; its name.
fn bring(client: &Client, file: &str) -> String {
    let bytes = fs::read(digits(file)).expect("a file is read");
    let id = ContentId::for_content(&bytes).to_string();
    let brought = client.ask("PUT", &format!("/v1/contents/{id}"), &[], &bytes);
    assert!(matches!(brought.status, 200 | 201), "{brought:?}");
    id
}

pub fn digits_job(client: &Client) -> Value {
    let (model, images) = (bring(client, "digits.onnx"), bring(client, "images.npy"));
    json!({ "model": model, "inputs": { "images": { "content": images } }, "budget": 50_000_000 })
}

/// Waits until a job has this state.
pub fn until(market: &Market, client: &Client, job: &str, state: &str) -> Value {
    let path = format!("/v1/jobs/{job}");
    let mut found = Value::Null;
    market.until(|| {
        // While the gateway is started again nobody answers.
        let token = format!("Bearer {}", client.token);
        let headers = [("host", client.address.as_str()), ("authorization", &token)];
        let answer = raw(&client.address, "GET", &path, &headers, &[]);
        found = answer
            .filter(|answer| answer.status == 200)
            .map_or(Value::Null, |it| it.json());
        found["state"] == state
    });
    found
}

pub fn submit(client: &Client, key: &str, body: &Value) -> Answer {
    client.post("/v1/jobs", &[("idempotency-key", key)], body)
}

#[test]
fn a_model_is_planned_run_and_paid_over_http() {
    let (market, reader, trader) = market();
    let mut followed = reader.follow("jobs,account", None);
    assert_eq!(
        followed.next().expect("something happens").topic,
        "account",
        "each is told how it stands"
    );

    let job = digits_job(&trader);
    let plan = trader.post("/v1/plans", &[], &job).of(200);
    let hash = plan["hash"].as_str().expect("a text");
    assert_eq!(reader.get(&format!("/v1/plans/{hash}")).of(200), plan);
    let body = json!({ "plan": hash, "slippage": 50.0 });
    let begun = submit(&trader, "first", &body).of(202);
    let id = begun["id"].as_str().expect("a text");
    let told = followed.find(|event| event.topic == "jobs" && event.data["state"] == "done");
    assert_eq!(told.unwrap().data["id"], id);

    let done = reader.get(&format!("/v1/jobs/{id}")).of(200);
    assert_eq!(done["state"], "done", "{done}");
    assert_eq!(
        (done["escrow"].as_u64(), done["runs_here"].as_bool()),
        (Some(0), Some(false))
    );
    assert!(done["spent"].as_u64().expect("a number") > 0, "{done}");
    let logits = reader.get(&format!("/v1/jobs/{id}/outputs/logits"));
    assert_eq!(logits.header("content-type"), Some("application/x-npy"));
    let logits = npy::read(&logits.body.into()).unwrap();
    assert_eq!(logits.id().to_string(), done["outputs"][0]["blake3"]);

    // The same as the command line gets, which runs beside under the same account.
    market
        .submit_digits("out", &["--max-providers", "1"])
        .done();
    let (ours, theirs) = (
        logits.to_vec::<f32>().unwrap(),
        floats(&market.folder().join("out/logits.npy")),
    );
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() <= 1e-5));
    assert_eq!(
        reader.get("/v1/jobs").of(200)["items"]
            .as_array()
            .expect("a list")
            .len(),
        2
    );
    let status = market.souk(&["job", "result", id]).done();
    assert!(
        status["files"][0]
            .as_str()
            .expect("a text")
            .ends_with("outputs.safetensors"),
        "{status}"
    );

    assert_watched(&reader);
    assert_receipts_hold(&reader, id);
    assert_kept(&reader, id, &plan);
    assert_money(&reader);
}

/// The gateway tells who watches it how long things took.
fn assert_watched(reader: &Client) {
    let host = [("host", reader.address.as_str())];
    let page = raw(&reader.address, "GET", "/metrics", &host, &[]).expect("the gateway answers");
    assert_eq!(
        page.header("content-type"),
        Some("text/plain; version=0.0.4")
    );
    let text = String::from_utf8(page.body).expect("it is text");
    let plan = "souk_gateway_plan_seconds_count 1";
    let posted =
        "souk_gateway_answer_seconds_count{method=\"POST\",path=\"/v1/jobs\",status=\"2xx\"} 1";
    for line in [
        plan,
        posted,
        "souk_gateway_jobs_running 0",
        "souk_gateway_job_seconds_count 1",
    ] {
        assert!(
            text.lines().any(|told| told == line),
            "{line} is not in {text}"
        );
    }
}

fn assert_receipts_hold(reader: &Client, id: &str) {
    let mut receipts = reader.get(&format!("/v1/jobs/{id}/receipts")).of(200);
    let lease = receipts[0]["body"]["lease"].as_u64().expect("a number");
    assert_eq!(
        reader.get(&format!("/v1/receipts/{lease}")).of(200),
        receipts[0]
    );
    let verdict = |receipt: &Value| reader.post("/v1/receipts/verify", &[], receipt).of(200);
    assert_eq!(verdict(&receipts[0])["valid"], true);
    receipts[0]["body"]["lease"] = (lease + 1).into();
    assert_eq!(verdict(&receipts[0])["valid"], false);
}

/// What a job keeps for eyes is told.
fn assert_kept(reader: &Client, id: &str, plan: &Value) {
    let of = |what: &str| reader.get(&format!("/v1/jobs/{id}/{what}")).of(200);
    assert_eq!(
        of("plan")["parts"].as_array().expect("a list").len(),
        plan["parts"].as_array().expect("a list").len()
    );
    let page = of("events?limit=1");
    let first = &page["items"][0];
    assert_eq!(first["event"], "leased", "{page}");
    assert!(first["leases"][0]["escrow"].as_u64() > Some(0), "{page}");
    let rest = of(&format!(
        "events?cursor={}",
        page["next"].as_str().expect("a text")
    ));
    assert_eq!(rest["items"][0]["number"], 1);
    assert!(
        !of("trace")["traceEvents"]
            .as_array()
            .expect("a list")
            .is_empty()
    );
}

/// The account's statement, page by page, and the sums of the market.
fn assert_money(reader: &Client) {
    let whole = reader.get("/v1/accounts/me/statement").of(200);
    let first = reader.get("/v1/accounts/me/statement?limit=1").of(200);
    assert_eq!(first["items"][0], whole["items"][0]);
    let next = first["next"].as_str().expect("a text");
    let second = reader
        .get(&format!("/v1/accounts/me/statement?limit=1&cursor={next}"))
        .of(200);
    assert_eq!(second["items"][0], whole["items"][1]);
    let own = reader.get("/v1/accounts/me").of(200);
    assert_eq!(own["available"], whole["items"][0]["after"]["available"]);
    assert_eq!(reader.get("/v1/market/totals").of(200)["balanced"], true);
}

#[test]
fn a_key_buys_one_job_although_the_gateway_is_killed() {
    let (market, reader, trader) = market();
    let job = json!({ "job": digits_job(&trader) });
    let begun = submit(&trader, "once", &job).of(202);
    let id = begun["id"].as_str().expect("a text").to_owned();
    kill(market.processes("net serve ")[0], "-9");
    let done = until(&market, &reader, &id, "done");
    let again = submit(&trader, "once", &job).of(202);
    assert_eq!(again["id"], id.as_str());
    assert_eq!(
        again["attempts"], done["attempts"],
        "nothing is bought again"
    );
    let mut other = job.clone();
    other["job"]["budget"] = 60_000_000.into();
    assert_eq!(
        submit(&trader, "once", &other).of(422)["code"],
        "key_reused"
    );
    assert_eq!(
        reader.get("/v1/jobs").of(200)["items"]
            .as_array()
            .expect("a list")
            .len(),
        1
    );
    market.assert_escrow_returns();
}

#[test]
fn each_path_and_method_is_closed_to_strangers() {
    let (market, reader, trader) = market();
    let document = raw(
        &reader.address,
        "GET",
        "/v1/openapi.json",
        &[("host", &reader.address)],
        &[],
    );
    let document = document.expect("the gateway answers").of(200);
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().expect("an object") {
        let path = path.replace(['{', '}'], "");
        for (method, about) in methods.as_object().expect("an object") {
            let scope = about["security"][0]["token"][0].as_str();
            assert_closed(&reader, &trader, (&method.to_uppercase(), &path), scope);
            asked += 1;
        }
        // No method of a path is left out, nor one that nothing answers.
        for method in ["OPTIONS", "PATCH", "TRACE", "DELETE"] {
            let stranger = [("host", "evil.example")];
            assert_eq!(
                raw(&reader.address, method, &path, &stranger, &[])
                    .expect("the gateway answers")
                    .status,
                421
            );
        }
    }
    assert!(asked > 25, "{asked}");
    assert_page(&market, &reader);
    assert_said_in_words(&market, &reader, &trader);
}

/// The page opens in a browser without a token, from the address that is printed, and from no
/// other page.
fn assert_page(market: &Market, reader: &Client) {
    let opened = market.souk(&["dashboard"]).done();
    let wanted = format!("http://{}/#token={}", reader.address, reader.token);
    assert_eq!(opened["page"], wanted.as_str());
    let ask = |method: &str, more: &[(&str, &str)]| {
        let headers = [&[("host", reader.address.as_str())], more].concat();
        raw(&reader.address, method, "/", &headers, &[]).expect("the gateway answers")
    };
    let navigate = ("sec-fetch-site", "none");
    let page = ask("GET", &[navigate, ("sec-fetch-mode", "navigate")]);
    assert_eq!(page.status, 200);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    let etag = page.header("etag").expect("files have a name");
    assert_eq!(ask("GET", &[("if-none-match", etag)]).status, 304);
    assert_eq!(ask("GET", &[("sec-fetch-site", "same-origin")]).status, 200);
    for site in ["cross-site", "same-site"] {
        assert_eq!(
            ask("GET", &[("sec-fetch-site", site)]).status,
            403,
            "{site}"
        );
    }
    assert_eq!(ask("GET", &[("origin", "http://evil.example")]).status, 403);
    let stranger = [("host", "evil.example")];
    let led = raw(&reader.address, "GET", "/", &stranger, &[]).expect("the gateway answers");
    assert_eq!(led.status, 421);
    let token = format!("Bearer {}", reader.token);
    assert_eq!(ask("POST", &[]).status, 401);
    assert_eq!(ask("POST", &[("authorization", &token)]).status, 403);
}

/// Asks by other names, from other origins, without a token and with one that may not.
fn assert_closed(
    reader: &Client,
    trader: &Client,
    (method, path): (&str, &str),
    scope: Option<&str>,
) {
    let address = reader.address.as_str();
    let token = format!("Bearer {}", trader.token);
    let status = |headers: &[(&str, &str)]| {
        let answer = raw(address, method, path, headers, &[]).expect("the gateway answers");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none'"), "{method} {path}");
        answer.status
    };
    let (host, token) = (("host", address), ("authorization", token.as_str()));
    let what = format!("{method} {path}");
    for stranger in [
        "evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1:7800",
        "",
    ] {
        assert_eq!(
            status(&[("host", stranger), token]),
            421,
            "{what} for {stranger}"
        );
    }
    assert_eq!(
        status(&[host, ("host", "evil.example"), token]),
        421,
        "{what} for two"
    );
    for origin in [
        "http://evil.example",
        "null",
        "https://127.0.0.1",
        "http://127.0.0.1:1",
    ] {
        assert_eq!(
            status(&[host, ("origin", origin), token]),
            403,
            "{what} from {origin}"
        );
    }
    for site in ["cross-site", "same-site", "nonsense"] {
        assert_eq!(
            status(&[host, ("sec-fetch-site", site), token]),
            403,
            "{what} {site}"
        );
    }
    let Some(scope) = scope else {
        assert_eq!(status(&[host]), 200, "{what} is for anyone here");
        return;
    };
    assert_eq!(status(&[host]), 401, "{what}");
    for wrong in ["Bearer", "Bearer 00", "Basic Og==", &token.1[..20]] {
        assert_eq!(
            status(&[host, ("authorization", wrong)]),
            401,
            "{what} with {wrong}"
        );
    }
    if scope == "trade" {
        let reader = format!("Bearer {}", reader.token);
        assert_eq!(
            status(&[host, ("authorization", &reader)]),
            403,
            "{what} to look only"
        );
    }
}

/// Questions that cannot be answered are answered with a problem that names cause and hint.
fn assert_said_in_words(market: &Market, reader: &Client, trader: &Client) {
    let mut job = digits_job(trader);
    let problem = |answer: Answer, status: u16, code: &str| {
        let kind = answer.header("content-type").map(str::to_owned);
        assert_eq!(kind.as_deref(), Some("application/problem+json"), "{code}");
        let problem = answer.of(status);
        assert_eq!(
            (&problem["code"], problem["status"].as_u64()),
            (&json!(code), Some(status.into()))
        );
        assert!(
            !problem["detail"].as_str().expect("a text").is_empty(),
            "{problem}"
        );
        problem
    };
    problem(reader.get("/v1/nothing"), 404, "not_found");
    problem(reader.get("/v1/market/asks?colour=red"), 400, "malformed");
    problem(reader.get("/v1/market/asks?limit=0"), 400, "malformed");
    problem(
        reader.get("/v1/market/classes/abacus/depth"),
        404,
        "not_found",
    );
    problem(reader.get("/v1/jobs/..%2f..%2fkey"), 404, "not_found");
    problem(
        trader.ask("PUT", "/v1/jobs", &[], b"{}"),
        405,
        "method_not_allowed",
    );
    problem(
        trader.post("/v1/plans", &[], &json!({ "model": 7 })),
        400,
        "malformed",
    );
    let huge = [
        ("content-type", "application/json"),
        ("content-length", "2000000"),
    ];
    problem(
        trader.ask("POST", "/v1/plans", &huge, &[]),
        413,
        "too_large",
    );
    let other = format!("/v1/contents/{}", ContentId::for_content(b"other"));
    problem(
        trader.ask("PUT", &other, &[], b"bytes"),
        422,
        "verification",
    );
    problem(
        trader.post("/v1/jobs", &[], &json!({ "job": job })),
        400,
        "malformed",
    );
    job["budget"] = 1.into();
    let poor = problem(trader.post("/v1/plans", &[], &job), 409, "budget");
    assert!(
        poor["facts"]["needed"].as_u64().expect("a number") > 1,
        "{poor}"
    );
    job["inputs"] = json!({});
    problem(trader.post("/v1/plans", &[], &job), 422, "input");

    let images = format!("/v1/contents/{}", bring(trader, "images.npy"));
    let part = reader.ask("GET", &images, &[("range", "bytes=0-5")], &[]);
    assert_eq!(
        (part.status, part.body.as_slice()),
        (206, b"\x93NUMPY".as_slice())
    );
    let etag = part
        .header("etag")
        .expect("contents have a name")
        .to_owned();
    assert_eq!(
        reader
            .ask("GET", &images, &[("if-none-match", &etag)], &[])
            .status,
        304
    );
    let length = fs::metadata(digits("images.npy"))
        .expect("the file is there")
        .len();
    let head = reader.ask("HEAD", &images, &[], &[]);
    assert_eq!(
        head.header("content-length"),
        Some(length.to_string().as_str())
    );
    let beyond = reader.ask("GET", &images, &[("range", "bytes=99999999-")], &[]);
    problem(beyond, 416, "range");

    assert_market_is_told(market, reader);
}

/// What the gateway says of the market is what the command line says.
fn assert_market_is_told(market: &Market, reader: &Client) {
    let book = market.souk(&["book"]).done();
    let orders = |all: &Value, name: &str| -> BTreeSet<u64> {
        let all = all.as_array().expect("a list").iter();
        all.map(|ask| ask[name].as_u64().expect("a number"))
            .collect()
    };
    let asks = reader.get("/v1/market/asks").of(200);
    assert_eq!(orders(&asks["items"], "order"), orders(&book, "order"));
    let first = reader.get("/v1/market/asks?limit=1").of(200);
    let next = first["next"].as_str().expect("a text");
    let second = reader
        .get(&format!("/v1/market/asks?limit=1&cursor={next}"))
        .of(200);
    assert_eq!(second["items"][0]["order"], asks["items"][1]["order"]);
    let real = reader.get("/v1/market/asks?real=true").of(200);
    assert!(
        real["items"]
            .as_array()
            .expect("a list")
            .iter()
            .all(|ask| ask["emulated"] == false)
    );
    let class = asks["items"][0]["class"].as_str().expect("a text");
    let depth = reader
        .get(&format!("/v1/market/classes/{class}/depth"))
        .of(200);
    assert_eq!(depth["asks"][0]["price"], asks["items"][0]["price"]);
    let told = reader
        .follow(&format!("depth:{class}"), None)
        .next()
        .expect("something happens");
    assert_eq!(told.data, depth);
    assert_eq!(
        reader.get("/v1/providers").of(200)["items"]
            .as_array()
            .expect("a list")
            .len(),
        4
    );
    let validators = reader.get("/v1/validators").of(200);
    assert_eq!(validators[0]["status"]["role"], "leader");
    let status = reader.get("/v1/status").of(200);
    assert_eq!(
        status["market"],
        market.souk(&["market", "show"]).done()["market"]
    );
}

#[cfg(feature = "generate")]
#[test]
fn a_session_of_a_language_model_is_opened_asked_and_paid_over_http() {
    let (market, reader, trader) = market();
    let order = json!({ "model": "bundled", "budget": 60_000_000, "emulated": true });
    assert_eq!(reader.post("/v1/sessions", &[], &order).status, 403);
    let unknown = json!({ "model": "another" });
    let refused = trader.post("/v1/sessions", &[], &unknown).of(404);
    assert!(refused["hint"].as_str().unwrap().contains("bundled"));
    let opened = trader.post("/v1/sessions", &[], &order).of(201);
    let session = format!("/v1/sessions/{}", opened["id"].as_str().unwrap());
    assert!(opened["base_url"].as_str().unwrap().ends_with(&session));
    let messages = json!([{ "role": "user", "content": "What is escrow?" }]);
    let question = json!({ "model": "bundled", "messages": messages, "temperature": 0 });
    let path = format!("{session}/chat/completions");
    assert_eq!(reader.post(&path, &[], &question).status, 403);
    let answer = trader.post(&path, &[], &question).of(200);
    let text = answer["choices"][0]["message"]["content"].as_str();
    assert!(text.unwrap().contains("held for a lease"), "{answer}");
    let named = |name: &str| reader.get(&format!("{session}/models/{name}"));
    assert_eq!(named("bundled").of(200)["id"], "bundled");
    let unknown = named("a%20b%2Fc").of(404);
    assert_eq!(unknown["error"]["code"], "model_not_found");
    assert_eq!(reader.get(&format!("{session}/nothing")).status, 404);
    let jobs = reader.get("/v1/jobs").of(200);
    assert_eq!(jobs["items"][0]["model"], "bundled");
    let resumed = trader.post(
        &format!(
            "/v1/jobs/{}/resume",
            jobs["items"][0]["id"].as_str().unwrap()
        ),
        &[],
        &json!({}),
    );
    assert!(
        resumed.of(409)["hint"]
            .as_str()
            .unwrap()
            .contains("session"),
        "a session has no outputs to resume"
    );
    let closed = trader.ask("DELETE", &session, &[], &[]).of(200);
    assert_eq!(
        (&closed["answered"], &closed["failed"]),
        (&json!(1), &json!(0))
    );
    assert!(closed["paid"].as_u64().unwrap() > 0, "{closed}");
    assert_eq!(reader.get(&session).status, 404);
    // A gateway that is stopped ends its sessions; if it were killed, the job would be left
    // running.
    let opened = trader.post("/v1/sessions", &[], &order).of(201);
    let path = format!(
        "/v1/sessions/{}/chat/completions",
        opened["id"].as_str().unwrap()
    );
    trader.post(&path, &[], &question).of(200);
    let jobs = reader.get("/v1/jobs").of(200);
    let job = jobs["items"][0]["id"].as_str().unwrap().to_owned();
    let state = || market.souk(&["job", "status", &job]).done()["job"]["state"].clone();
    assert_eq!(state(), "running");
    kill(market.processes("net serve ")[0], "-TERM");
    market.until(|| state() != "running");
    assert_eq!(state(), "done");
    market.assert_escrow_returns();
}
