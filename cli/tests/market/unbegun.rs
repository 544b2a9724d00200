//! Tests jobs that the gateway accepted but could not begin: afterwards, nothing may buy them
//! without the user's knowledge.

use std::fs;

use serde_json::{Value, json};

use crate::common::kill;
use crate::gateway::{digits_job, market, submit, until};

#[test]
fn an_accepted_job_that_did_not_begin_is_cancelled_refused_or_held_to_its_plan() {
    let (market, reader, trader) = market();
    let jobs = market.folder().join("net/buyer/jobs");
    let plan = trader.post("/v1/plans", &[], &digits_job(&trader)).of(200);
    let hash = plan["hash"].as_str().expect("a text");
    let body = json!({ "plan": hash, "slippage": 50.0 });
    // As if the disk had been full at the first fact of each.
    let leave_unbegun = |key: &str| {
        let begun = submit(&trader, key, &body).of(202);
        let id = begun["id"].as_str().expect("a text").to_owned();
        until(&market, &reader, &id, "done");
        fs::write(jobs.join(&id).join("facts.jsonl"), "").expect("it is cut");
        // The task of the job ends a moment after the job.
        until(&market, &reader, &id, "abandoned");
        id
    };
    let [cancelled, old, moved] = ["cancelled", "old", "moved"].map(leave_unbegun);
    let rewrite = |path: std::path::PathBuf, field: &str, value: u64| {
        let text = fs::read(&path).expect("a file is read");
        let mut whole: Value = serde_json::from_slice(&text).expect("it is JSON");
        assert!(whole[field].is_u64(), "{whole}");
        whole[field] = value.into();
        fs::write(&path, whole.to_string()).expect("it is written");
    };
    rewrite(jobs.join(&old).join("request.json"), "at_ms", 1);
    let gone = trader.ask("DELETE", &format!("/v1/jobs/{cancelled}"), &[], &[]);
    let gone = gone.of(202);
    assert_eq!(
        (&gone["state"], &gone["reason"]),
        (&json!("refused"), &json!("interrupted"))
    );

    // A key that is not on the disk buys nothing, now or later.
    let keys = market.folder().join("net/buyer/keys");
    fs::rename(&keys, keys.with_extension("away")).expect("it is renamed");
    fs::write(&keys, "no folder").expect("it is written");
    submit(&trader, "unkept", &body).of(500);
    fs::remove_file(&keys).expect("it is removed");
    fs::rename(keys.with_extension("away"), &keys).expect("it is renamed");

    // The book has moved: the job costs more than its plan allows.
    let plans = market.folder().join("net/buyer/plans");
    rewrite(plans.join(format!("{hash}.json")), "price", 1);
    let available = || reader.get("/v1/accounts/me").of(200)["available"].clone();
    market.assert_escrow_returns();
    let before = available();
    kill(market.processes("net serve ")[0], "-9");
    let found = until(&market, &reader, &old, "refused");
    assert_eq!(found["reason"], "state", "{found}");
    let found = until(&market, &reader, &moved, "refused");
    assert_eq!(found["reason"], "plan_moved", "{found}");
    until(&market, &reader, &cancelled, "refused");
    let all = reader.get("/v1/jobs").of(200);
    assert_eq!(all["items"].as_array().expect("a list").len(), 3, "{all}");
    assert_eq!(available(), before, "nothing is bought");
}
