//! Tests the commands that watch, explain and end a job from a process other than the one that runs
//! it.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::{Market, SOUK, kill};

/// A job on a provider that never ends a run, and its name.
fn stalled(market: &Market) -> (Child, String) {
    market.make_faulty("provider-2", "stall");
    let job = market.spawn_digits("out", &["--device", "H100"]);
    let runs = || {
        let name = name(market)?;
        let logs = market.souk(&["job", "logs", &name]);
        let text = (logs.code == 0).then_some(logs.stdout)?;
        text.contains("\"event\":\"running\"").then_some(name)
    };
    market.until(|| runs().is_some());
    let name = runs().expect("it runs");
    (job, name)
}

fn name(market: &Market) -> Option<String> {
    let jobs = market.souk(&["job", "list"]).done();
    let last = jobs.as_array().expect("a list").last()?.clone();
    last["name"].as_str().map(str::to_owned)
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_job_of_another_process_is_followed_and_ended() {
    let market = Market::up();
    let (mut job, name) = stalled(&market);
    let watching = Command::new(SOUK)
        .args(["--dir", &market.path("net"), "job", "watch", &name])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let ended = market.souk(&["job", "cancel", &name]).done();
    assert_eq!(ended["state"], "interrupted", "{ended}");
    assert_eq!(job.wait().expect("it ends").code(), Some(130));
    let watched = watching.wait_with_output().expect("it ends with the job");
    assert_eq!(watched.status.code(), Some(130));
    let told = String::from_utf8_lossy(&watched.stdout);
    assert!(
        told.contains("provider-2 (") && told.contains(" runs part 1"),
        "{told}"
    );
    let explained = market.souk(&["job", "explain", &name]).done();
    let why = &explained["plan"]["parts"][0]["why"];
    assert!(why.is_string(), "{explained}");
    assert_eq!(explained["plan"]["parts"][0]["provider_name"], "provider-2");
    let trace = market.path("trace.json");
    let traced = market.souk(&["job", "trace", &name, "-o", &trace]).done();
    assert!(traced["spans"].as_u64() > Some(0), "{traced}");
    let text = std::fs::read_to_string(&trace).expect("it is written");
    serde_json::from_str::<Value>(&text).expect("a trace is JSON");
    market.assert_escrow_returns();
}

#[test]
fn a_job_whose_process_is_gone_is_ended_by_another() {
    let market = Market::up();
    let (mut job, name) = stalled(&market);
    kill(job.id(), "-9");
    job.wait().expect("it was killed");
    let gone = market.souk(&["job", "watch", &name]);
    assert_eq!(gone.code, 6, "{}", gone.stdout);
    assert!(gone.stdout.contains("job cancel"), "{}", gone.stdout);
    let ended = market.souk(&["job", "cancel", &name]).done();
    assert_eq!(
        (&ended["leases_ended"], &ended["state"]),
        (&1.into(), &"interrupted".into())
    );
    let held = &ended["escrow_by_lease"][0];
    assert!(held["escrow"].as_u64() > Some(0), "{ended}");
    assert!(held["closes_at"].is_string(), "{ended}");
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn the_outputs_of_a_job_are_written_again_while_they_are_what_was_answered() {
    let market = Market::up();
    market.submit_few("out", &[]).done();
    let name = name(&market).expect("there is a job");
    let again = market.path("again");
    let written = market.souk(&["job", "result", &name, "-o", &again]).done();
    let first = std::fs::read(market.path("out/logits.npy")).expect("the output");
    let second = std::fs::read(market.path("again/logits.npy")).expect("the same");
    assert_eq!((first.len(), &first), (second.len(), &second), "{written}");
    let done = market.souk(&["job", "cancel", &name]);
    assert_eq!(done.code, 8, "{}", done.stdout);
    std::fs::write(market.path("out/logits.npy"), &first[1..]).expect("it is spoiled");
    let spoiled = market.souk(&["job", "result", &name]);
    assert_eq!(spoiled.code, 7, "{}", spoiled.stdout);
}
