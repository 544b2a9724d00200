//! Tests the gateway's HTTP paths for the network, devices, a job's graph, leases, earnings, and
//! orders that a user places.

use std::fs;

use serde_json::{Value, json};

use crate::common::{Market, kill};
use crate::gateway::{digits_job, market, submit};
use crate::http::{Client, raw};

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

/// Runs a job over two providers; its id.
fn run(reader: &Client, trader: &Client) -> String {
    let mut followed = reader.follow("jobs", None);
    let mut job = digits_job(trader);
    job["min_providers"] = 2.into();
    let begun = submit(trader, "doors", &json!({ "job": job })).of(202);
    let ended = followed.find(|event| event.topic == "jobs" && event.data["state"] == "done");
    assert_eq!(ended.expect("it is done").data["id"], begun["id"]);
    text(&begun["id"]).to_owned()
}

#[test]
fn a_job_is_seen_in_graph_network_leases_and_earnings() {
    let (market, reader, trader) = market();
    // A provider serves before its first ask is in the book.
    market.until(|| list(&reader.get("/v1/devices").of(200)["items"]).len() == 4);
    let job = run(&reader, &trader);
    let graph = assert_graph(&market, &reader, &job);
    let seller = text(&graph["parts"][0]["provider"]).to_owned();

    let map = reader.get("/v1/network/map").of(200);
    let of_role = |role: &str| -> Vec<&Value> {
        let nodes = list(&map["nodes"]).iter();
        nodes.filter(|node| node["role"] == role).collect()
    };
    let roles = ["me", "validator", "provider"].map(|role| of_role(role).len());
    assert_eq!(roles, [1, 1, 4], "{map}");
    let emulated = |node: &&Value| node["devices"][0]["emulated"] == true;
    assert_eq!(of_role("provider").into_iter().filter(emulated).count(), 3);
    let links = list(&map["links"]);
    let validator = &of_role("validator")[0]["account"];
    let asked = links.iter().find(|link| link["to"] == *validator);
    let asked = asked.expect("the validator was asked");
    assert!(
        asked["round_trip"].as_f64().expect("a time") > 0.0,
        "{asked}"
    );
    assert_eq!(asked["route"], "direct");
    let is_unknown = |link: &&Value| link["used_at"].is_null() && link["round_trip"].is_null();
    assert!(
        links.iter().any(|link| is_unknown(&link)),
        "two were never used"
    );
    assert!(links.iter().filter(|link| !is_unknown(link)).count() > 2);

    assert_leases(&market, &reader, &seller);
    let devices = reader.get("/v1/devices").of(200);
    assert_eq!(list(&devices["items"]).len(), 4);
    let real = reader.get("/v1/devices?real=true").of(200);
    assert_eq!(list(&real["items"]).len(), 1);
    let first = reader.get("/v1/devices?limit=1").of(200);
    let next = text(&first["next"]);
    let second = reader
        .get(&format!("/v1/devices?limit=1&cursor={next}"))
        .of(200);
    assert_eq!(second["items"][0], devices["items"][1]);
    let known = reader.get("/v1/devices/catalogue").of(200);
    assert_eq!(known, market.souk(&["device", "list"]).done()["catalogue"]);

    let topics = format!("network,validators,provider:{seller}");
    let told: Vec<_> = reader.follow(&topics, None).take(3).collect();
    let of = |topic: &str| told.iter().find(|event| event.topic == topic);
    assert_eq!(
        list(&of("network").expect("it is told").data["nodes"]).len(),
        6
    );
    assert_eq!(
        of("validators").expect("it is told").data[0]["standing"],
        "voter"
    );
    let provider = of(&format!("provider:{seller}")).expect("it is told");
    assert_eq!(
        provider.data,
        reader.get(&format!("/v1/providers/{seller}")).of(200)
    );
}

/// The parts and what goes between them, and the same words as the command line has.
fn assert_graph(market: &Market, reader: &Client, job: &str) -> Value {
    let graph = reader.get(&format!("/v1/jobs/{job}/graph")).of(200);
    let parts = list(&graph["parts"]);
    assert_eq!(parts.len(), 2, "{graph}");
    for part in parts {
        let operators = part["operators"].as_object().expect("operators");
        let counted: u64 = operators.values().filter_map(Value::as_u64).sum();
        assert_eq!(part["nodes"], counted);
    }
    let edges = list(&graph["edges"]).iter();
    let ends = |edge: &Value| (edge["from"].as_u64(), edge["to"].as_u64());
    let ends: Vec<_> = edges.clone().map(ends).collect();
    assert_eq!(ends, [(None, Some(1)), (Some(1), Some(2)), (Some(2), None)]);
    assert!(edges.clone().all(|edge| edge["bytes"].as_u64() > Some(0)));
    let explained = reader.get(&format!("/v1/jobs/{job}/explain")).of(200);
    assert_eq!(explained, market.souk(&["job", "explain", job]).done());
    graph
}

/// What the leases of the job cost is what its providers earned.
fn assert_leases(market: &Market, reader: &Client, seller: &str) {
    assert_eq!(list(&reader.get("/v1/leases").of(200)["items"]).len(), 0);
    let closed = reader.get("/v1/leases/closed").of(200);
    let leases = list(&closed["items"]);
    assert_eq!(leases.len(), 2, "{closed}");
    let one = leases.iter().find(|lease| lease["provider"] == seller);
    let one = one.expect("it has sold one");
    assert_eq!(
        (one["reason"].as_str(), one["emulated"].as_bool()),
        (Some("receipt"), Some(true))
    );
    let number = one["lease"].as_u64().expect("a number");
    let shown = reader.get(&format!("/v1/leases/{number}")).of(200);
    let paid = (&one["paid"], &one["class"]);
    assert_eq!((&shown["paid"], &shown["class"]), paid);
    assert_eq!(reader.get("/v1/leases/99999").of(404)["code"], "not_found");
    assert_eq!(reader.get("/v1/leases/x").of(400)["code"], "malformed");

    let earned = reader
        .get(&format!("/v1/providers/{seller}/earnings?step=1h"))
        .of(200);
    assert_eq!(earned["total"]["leases"], 1, "{earned}");
    assert_eq!(
        (&earned["steps"][0]["paid"], &earned["steps"][0]["class"]),
        paid
    );
    assert_eq!(
        (&earned["total"]["paid"], earned["complete"].as_bool()),
        (paid.0, Some(true))
    );
    let gained = market.available(seller);
    assert_eq!(
        earned["total"]["paid"], gained,
        "a new account has what it earned"
    );
    let own = reader.get("/v1/providers/me/earnings").of(200);
    assert_eq!(
        (&own["total"]["leases"], list(&own["steps"]).len()),
        (&json!(0), 0)
    );
    let wrong = reader.get("/v1/providers/me/earnings?step=1y").of(400);
    assert_eq!(wrong["code"], "malformed");
}

fn place(client: &Client, key: &str, order: &Value) -> crate::http::Answer {
    client.post("/v1/market/orders", &[("idempotency-key", key)], order)
}

#[test]
fn an_order_by_hand_is_placed_once_changed_and_taken_back() {
    let (market, reader, trader) = market();
    let asks = reader.get("/v1/market/asks").of(200);
    let (class, price) = (
        text(&asks["items"][0]["class"]),
        asks["items"][0]["price"].as_u64(),
    );
    let low = price.expect("a price") / 2 / 100 * 100;
    let bid = json!({ "side": "bid", "class": class, "price": low, "duration": 60.0 });
    let placed = place(&trader, "low", &bid).of(201);
    assert_eq!(
        (&placed["resting"], list(&placed["trades"]).len()),
        (&json!(1), 0)
    );
    assert_eq!(place(&trader, "low", &bid).of(201), placed);
    let mut other = bid.clone();
    other["units"] = 2.into();
    assert_eq!(place(&trader, "low", &other).of(422)["code"], "key_reused");
    let second = place(&trader, "again", &bid).of(201);
    assert_ne!(
        second["order"], placed["order"],
        "another key is another order"
    );

    assert_answer_is_found_again(&market, &trader, (&bid, &placed, &second));

    let orders = reader.get("/v1/market/orders").of(200);
    let known = market.souk(&["order", "list"]).done();
    let ids = |all: &Value, name: &str| -> Vec<Value> {
        list(all).iter().map(|one| one[name].clone()).collect()
    };
    assert_eq!(ids(&orders["items"], "order"), ids(&known, "order"));
    let path = format!("/v1/market/orders/{}", placed["order"]);
    let one = reader.get(&path).of(200);
    assert_eq!(
        (one["side"].as_str(), one["price"].as_u64()),
        (Some("bid"), Some(low))
    );
    let json = [("content-type", "application/json")];
    let lower = json!({ "price": low - 100 }).to_string();
    let amended = trader.ask("PATCH", &path, &json, lower.as_bytes()).of(200);
    let path = format!("/v1/market/orders/{}", amended["order"]);
    assert_eq!(reader.get(&path).of(200)["price"], low - 100);
    let released = trader.ask("DELETE", &path, &[], &[]).of(200);
    assert_eq!(released["released"], (low - 100) * 60);
    assert_eq!(
        trader.ask("DELETE", &path, &[], &[]).of(404)["code"],
        "not_found"
    );
    let rest = format!("/v1/market/orders/{}", second["order"]);
    trader.ask("DELETE", &rest, &[], &[]).of(200);

    assert_bought(&reader, &trader, class);
    market.assert_escrow_returns();
}

/// An answer that was lost with its process is found in the market, and for each key its own.
fn assert_answer_is_found_again(
    market: &Market,
    trader: &Client,
    (bid, placed, second): (&Value, &Value, &Value),
) {
    kill(market.processes("net serve ")[0], "-9");
    let folder = market.folder().join("net/buyer/keys");
    for entry in fs::read_dir(folder).expect("there are keys").flatten() {
        let file = fs::read(entry.path()).expect("a key is read");
        let mut used: Value = serde_json::from_slice(&file).expect("a key is JSON");
        used.as_object_mut().expect("an object").remove("placed");
        fs::write(entry.path(), used.to_string()).expect("a key is written");
    }
    let host = [("host", trader.address.as_str())];
    market.until(|| raw(&trader.address, "GET", "/healthz", &host, &[]).is_some());
    let found = [
        place(trader, "low", bid).of(201),
        place(trader, "again", bid).of(201),
    ];
    let mut ids = found.map(|one| one["order"].as_u64());
    ids.sort_unstable();
    assert_eq!(ids, [placed["order"].as_u64(), second["order"].as_u64()]);
}

/// A bid that meets an ask is a lease, which can be made longer and ended.
fn assert_bought(reader: &Client, trader: &Client, class: &str) {
    let bid = json!({ "side": "bid", "class": class, "budget": 50_000_000 });
    let bought = place(trader, "now", &bid).of(201);
    let lease = bought["trades"][0]["lease"].as_u64().expect("a number");
    let open = reader.get("/v1/leases").of(200);
    assert_eq!(open["items"][0]["lease"], lease, "{open}");
    let before = text(&open["items"][0]["ends_at"]).to_owned();
    let by = json!({ "by": 60 });
    let longer = trader
        .post(&format!("/v1/leases/{lease}/extend"), &[], &by)
        .of(200);
    assert_ne!(longer["ends_at"], before.as_str());
    let ended = trader
        .post(&format!("/v1/leases/{lease}/end"), &[], &Value::Null)
        .of(200);
    assert_ne!(ended["state"], "active", "{ended}");
    for (wrong, status, code) in [
        (
            json!({ "side": "bid", "class": "abacus", "price": 1 }),
            404,
            "not_found",
        ),
        (json!({ "side": "bid", "class": class }), 422, "input"),
        (
            json!({ "side": "bid", "class": class, "price": 100, "rest": -1.0 }),
            422,
            "input",
        ),
        (
            json!({ "side": "ask", "lease": 99_999, "price": 100 }),
            409,
            "market_refused",
        ),
        (json!({ "class": class }), 400, "malformed"),
    ] {
        assert_eq!(
            place(trader, "wrong", &wrong).of(status)["code"],
            code,
            "{wrong}"
        );
    }
}
