//! Tests that each lease runs in its own process, so that a job that crashes, is killed or takes
//! too much memory does not harm the provider.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::common::{Market, SOUK, digits, kill};

/// On one provider, so that the plan names the one that will fail.
const ONE: [&str; 2] = ["--max-providers", "1"];

/// The name of the only provider of a job's plan.
fn planned(market: &Market, job: &Value) -> String {
    of_part(market, job, 0)
}

/// The name of the provider that a plan gives a part to.
fn of_part(market: &Market, job: &Value, part: usize) -> String {
    let account = job["plan"]["parts"][part]["provider"]
        .as_str()
        .expect("an account");
    let names = (1..=4).map(|n| format!("provider-{n}"));
    let mut found = names.filter(|name| market.account_of(name) == account);
    found.next().expect("it is one of the testnet's")
}

/// Has the provider that a job would be bought from play a fault: its name and its process.
fn faulty(market: &Market, fault: &str, limits: Value) -> (String, Vec<u32>) {
    let first = market.submit_digits("first", &ONE).done();
    let name = planned(market, &first);
    market.set_in_provider(&name, &[("fault", fault.into()), ("limits", limits)]);
    let process = market.processes(&format!("{name} "));
    (name, process)
}

/// The job was done by another, the provider lives and serves the next one, no money is stuck.
fn assert_only_the_job_failed(market: &Market, again: &Value, name: &str, process: &[u32]) {
    assert_eq!(
        market.processes(&format!("{name} ")),
        process,
        "the provider lives"
    );
    assert_ne!(
        planned_by_receipt(market, again),
        name,
        "who failed is not paid"
    );
    let log = fs::read_to_string(market.folder().join("net").join(name).join("log.txt"));
    let log = log.expect("a node has a log");
    assert!(log.contains("the work of a lease failed"), "{log}");
    market.assert_escrow_returns();
    market.until(|| !market.sandboxes_of(name).is_empty());
}

fn planned_by_receipt(market: &Market, job: &Value) -> String {
    let account = job["receipts"][0]["body"]["provider"]
        .as_str()
        .expect("an account");
    let names = (1..=4).map(|n| format!("provider-{n}"));
    let mut found = names.filter(|name| market.account_of(name) == account);
    found.next().expect("it is one of the testnet's")
}

fn log_of(market: &Market, name: &str) -> String {
    let log = market.folder().join("net").join(name).join("log.txt");
    fs::read_to_string(log).expect("a node has a log")
}

#[test]
fn a_job_that_crashes_takes_its_process_and_nothing_else() {
    let market = Market::up();
    let (name, process) = faulty(&market, "crash", json!({}));
    let again = market.submit_digits("again", &ONE).done();
    assert_only_the_job_failed(&market, &again, &name, &process);
    assert!(log_of(&market, &name).contains("signal 6 (SIGABRT)"));
}

#[test]
fn a_job_that_hoards_memory_is_stopped_at_its_limit() {
    let market = Market::up();
    let (name, process) = faulty(&market, "hoard", json!({ "memory_mib": 64 }));
    let again = market.submit_digits("again", &ONE).done();
    assert_only_the_job_failed(&market, &again, &name, &process);
    let log = log_of(&market, &name);
    assert!(
        log.contains("bytes of memory that the provider gives each job"),
        "{log}"
    );
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_job_whose_process_is_killed_is_done_by_another_provider() {
    let market = Market::up();
    let (name, process) = faulty(&market, "stall", json!({}));
    let job = market.spawn_digits("again", &ONE);
    market.until(|| market.souk(&["balance"]).done()["totals"]["escrow"] != 0);
    market.until(|| log_of_running(&market, &name));
    // A lease is written down before a process is given to it: the first killed may be another.
    market.until(|| {
        let sandboxes = market.sandboxes_of(&name);
        sandboxes.iter().for_each(|sandbox| kill(*sandbox, "-9"));
        (0..20).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            is_told_killed(&market, &name)
        })
    });
    let ended = job.wait_with_output().expect("it ends");
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    let again: Value = serde_json::from_slice(&ended.stdout).expect("it prints JSON");
    assert_only_the_job_failed(&market, &again, &name, &process);
}

/// Whether a provider's log says that work was not done because its process was killed.
fn is_told_killed(market: &Market, name: &str) -> bool {
    let log = log_of(market, name);
    let mut lines = log.lines();
    lines.any(|line| {
        line.contains("the work of a lease failed") && line.contains("signal 9 (SIGKILL)")
    })
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_process_that_is_killed_while_it_waits_ends_its_lease_at_once() {
    const CUT: [&str; 2] = ["--min-providers", "2"];
    let market = Market::up();
    let first = market.submit_digits("first", &CUT).done();
    let [stalls, waits] = [0, 1].map(|part| of_part(&market, &first, part));
    // Its tensor never comes, so that the other is asked for nothing.
    market.make_faulty(&stalls, "stall");
    let (mut job, mut told) = spawn_for_people(&market, &CUT);
    // By then both have accepted, and what is to be compiled soon is.
    assert!(told.any(|line| line.contains(" runs part 1")));
    let sandboxes = market.sandboxes_of(&waits);
    sandboxes.iter().for_each(|sandbox| kill(*sandbox, "-9"));
    market.until(|| is_told_killed(&market, &waits));
    kill(job.id(), "-INT");
    job.wait().expect("it ends");
}

/// A submission whose words for people are read line by line.
fn spawn_for_people(
    market: &Market,
    more: &[&str],
) -> (Child, impl Iterator<Item = String> + use<>) {
    let images = format!("images={}", digits("images.npy").display());
    let mut job = Command::new(SOUK)
        .arg("--dir")
        .arg(market.folder().join("net"))
        .arg("submit")
        .arg(digits("digits.onnx"))
        .args(["-i", &images, "-o", &market.path("out")])
        .args(["--prefer", "fastest"])
        .args(more)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let told = BufReader::new(job.stderr.take().expect("it is piped"));
    (job, told.lines().map_while(Result::ok))
}

/// Whether a lease of a provider has begun and not ended: its journal says so.
fn log_of_running(market: &Market, name: &str) -> bool {
    let status = crate::common::souk(
        &market.folder().join("net").join(name),
        &["provider", "status"],
    );
    let open = status.done()["open_leases"].as_array().map_or(0, Vec::len);
    open > 0
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn what_runs_for_a_buyer_that_leaves_ends_by_its_word() {
    let market = Market::up();
    let (name, _) = faulty(&market, "stall", json!({}));
    let (mut job, mut lines) = spawn_for_people(&market, &ONE);
    assert!(lines.any(|line| line.contains(" runs part 1")));
    let sandboxes = market.sandboxes_of(&name);
    // Nobody answers who could end a lease, or say that it has ended.
    let validators = market.processes("validator-");
    validators.iter().for_each(|id| kill(*id, "-STOP"));
    kill(job.id(), "-INT");
    market.until(|| log_of(&market, &name).contains("the buyer wants nothing of it any more"));
    let gone = |id: &u32| !fs::exists(format!("/proc/{id}")).unwrap_or(false);
    market.until(|| sandboxes.iter().any(gone));
    validators.iter().for_each(|id| kill(*id, "-CONT"));
    assert_eq!(job.wait().expect("it ends").code(), Some(130));
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_provider_says_what_keeps_jobs_in() {
    let market = Market::up();
    let status = |name: &str| {
        let folder = market.folder().join("net").join(name);
        crate::common::souk(&folder, &["provider", "status"]).done()["isolation"].clone()
    };
    let kept = status("provider-1");
    assert_eq!(kept["isolation"], "partial", "a testnet's");
    let standing = kept["policy"]["enforced"].as_array().expect("a list");
    let missing = kept["policy"]["missing"].as_array().expect("a list");
    // Whatever this kernel has: each attempt to get out was made and is told.
    for rule in ["a socket", "a program", "a file"] {
        let tells = |list: &[Value]| list.iter().any(|it| it.to_string().contains(rule));
        assert!(tells(standing) || tells(missing), "{kept}");
    }
    let sandboxes = market.sandboxes_of("provider-1");
    assert_eq!(sandboxes.len(), 1, "one waits for the next lease");
    market.souk(&["testnet", "down"]).done();
    let gone = |id: &u32| !fs::exists(format!("/proc/{id}")).unwrap_or(false);
    market.until(|| sandboxes.iter().all(gone));
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn each_lease_has_a_process_of_its_own_and_others_wait() {
    let market = Market::up();
    let first = market.submit_digits("first", &ONE).done();
    let name = planned(&market, &first);
    let device = first["plan"]["parts"][0]["device"].as_str().unwrap();
    let device = device.trim_end_matches(" (emulated)");
    let there = ["--max-providers", "1", "--device", device];
    let mut ended: Vec<u32> = Vec::new();
    for out in ["second", "third"] {
        market.until(|| !market.sandboxes_of(&name).is_empty());
        let before = market.sandboxes_of(&name);
        assert!(ended.iter().all(|id| !before.contains(id)), "{before:?}");
        let job = market.submit_digits(out, &there).done();
        assert_eq!(planned_by_receipt(&market, &job), name);
        // One of those that waited did the work and is gone; the others wait on.
        market.until(|| {
            let after = market.sandboxes_of(&name);
            before.iter().filter(|id| !after.contains(id)).count() == 1 && !after.is_empty()
        });
        let after = market.sandboxes_of(&name);
        ended.extend(before.into_iter().filter(|id| !after.contains(id)));
    }
    assert_eq!(ended.len(), 2);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_process_that_dies_while_it_waits_costs_no_lease() {
    let market = Market::up();
    let first = market.submit_digits("first", &ONE).done();
    let name = planned(&market, &first);
    let said = || log_of(&market, &name).contains("a spare sandbox process ended by itself");
    // One that is killed while it starts never waited.
    market.until(|| {
        market.until(|| !market.sandboxes_of(&name).is_empty());
        for sandbox in market.sandboxes_of(&name) {
            // The first job's own may be gone by now.
            let _ = Command::new("kill")
                .args(["-9", &sandbox.to_string()])
                .status();
        }
        let again = market.submit_digits("again", &ONE).done();
        assert_eq!(planned_by_receipt(&market, &again), name);
        said()
    });
    market.until(|| !market.sandboxes_of(&name).is_empty());
    market.souk(&["testnet", "down"]).done();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn without_isolation_jobs_run_in_the_providers_process_and_it_says_so() {
    let market = Market::up();
    market.set_in_provider("provider-1", &[("isolation", "none".into())]);
    let folder = market.folder().join("net").join("provider-1");
    let kept = crate::common::souk(&folder, &["provider", "status"]).done()["isolation"].clone();
    assert_eq!(kept["isolation"], "none");
    assert!(market.sandboxes_of("provider-1").is_empty());
    let log = log_of(&market, "provider-1");
    assert!(
        log.contains("jobs run in the provider's own process"),
        "{log}"
    );
    market
        .submit_digits("out", &["--prefer", "cheapest"])
        .done();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_graph_is_read_for_the_owners_limits_in_its_leases_process() {
    let market = Market::up();
    // Whoever runs not everything looks at what a graph holds.
    let (name, process) = faulty(&market, "choke", json!({ "wasm": false }));
    let again = market.submit_digits("again", &ONE).done();
    assert_only_the_job_failed(&market, &again, &name, &process);
    assert!(log_of(&market, &name).contains("signal 6 (SIGABRT)"));
}
