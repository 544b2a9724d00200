//! Tests how operators govern a running market: commands that need two operators, frozen accounts,
//! changes of the rules, and a version of the rules that a validator does not support.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::founding::{Machines, path, text};

/// A market of two operators, both of whom are needed, which tells its rules' changes a second
/// before. Gives its line.
fn found_by_two(machines: &mut Machines) -> String {
    let other = text(&machines.souk("other", &["key", "new"]).done()["account"]);
    let rules = machines.folder("rules.toml");
    std::fs::write(
        &rules,
        "rules_notice_seconds = 1\nwithdrawal_cap_day = 2000000\n",
    )
    .expect("a file");
    let rules = rules.to_str().expect("a plain path");
    let listen = "/ip4/127.0.0.1/tcp/0";
    let founded = [
        "market",
        "create",
        "--name",
        "pair",
        "--listen",
        listen,
        "--operator",
        &other,
        "--threshold",
        "2",
        "--rules",
        rules,
    ];
    let line = text(&machines.souk("one", &founded).done()["invitation"]);
    machines.run("one", "validator");
    machines.until_done("other", &["market", "join", &line]);
    line
}

fn number(value: &Value) -> String {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value}"))
        .to_string()
}

/// One operator gives a command, which waits; the other approves it.
fn both(machines: &Machines, command: &[&str]) {
    let waits = machines.souk("one", command).done();
    assert_eq!(
        (&waits["approvals"], &waits["approvals_needed"]),
        (&1.into(), &2.into())
    );
    let pending = machines.souk("other", &["operator", "pending"]).done();
    let id = number(&waits["command"]);
    assert_eq!(number(&pending[0]["command"]), id);
    machines.souk("other", &["operator", "approve", &id]).done();
}

fn refusal(machines: &Machines, machine: &str, command: &[&str]) -> String {
    let ran = machines.souk(machine, command);
    assert_eq!(ran.code, 8, "{}", ran.stdout);
    text(&ran.json()["error"]["refusal"])
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn two_operators_agree_and_then_a_frozen_account_and_a_rule_are_as_they_say() {
    let mut machines = Machines::new();
    let line = found_by_two(&mut machines);
    machines.souk("user", &["market", "join", &line]).done();
    let user = text(&machines.souk("user", &["account", "new"]).done()["account"]);
    both(&machines, &["operator", "credit", &user, "10"]);
    // Two credits a day may leave.
    machines
        .souk("user", &["account", "withdraw", "1.5"])
        .done();
    let over = ["account", "withdraw", "1"];
    assert_eq!(refusal(&machines, "user", &over), "cap_reached");

    both(
        &machines,
        &["operator", "freeze", &user, "--reason", "stolen key"],
    );
    let give = ["account", "transfer", &user, "1"];
    assert_eq!(refusal(&machines, "user", &give), "account_frozen");
    let shown = machines.souk("user", &["account", "show"]).done();
    assert!(shown.to_string().contains("stolen key"), "{shown}");
    both(&machines, &["operator", "thaw", &user]);

    let fixed = ["operator", "rules", "change", "--set", "slash_permille=1"];
    let told = machines.souk("one", &fixed).done();
    let approve = ["operator", "approve", &number(&told["command"])];
    assert_eq!(refusal(&machines, "other", &approve), "rule_fixed");
    let change = [
        "operator",
        "rules",
        "change",
        "--set",
        "requests_max=1",
        "--notice",
        "20s",
    ];
    both(&machines, &change);
    let listed = machines.souk("user", &["operator", "rules", "list"]).done();
    assert_eq!(listed["changes"][0]["rules"]["requests_max"], 1);
    let now = || machines.souk("user", &["operator", "rules", "show"]).done();
    let begin = Instant::now();
    while now()["rules"]["requests_max"] != 1 {
        assert!(begin.elapsed() < Duration::from_secs(60), "it changes");
        std::thread::sleep(Duration::from_millis(200));
    }
    // One request is open already.
    let more = ["account", "deposit", "1", "--reference", "more"];
    assert_eq!(refusal(&machines, "user", &more), "requests_many");
    assert_paid_once(&machines);
}

/// The withdrawal is locked by both operators before one program is asked to pay it, once; where
/// that program's answer is not known nobody asks again, and a person answers.
fn assert_paid_once(machines: &Machines) {
    let (hook, calls) = (machines.folder("hook"), machines.folder("calls"));
    let script = format!("#!/bin/sh\ncat >> {}\nexit 3\n", calls.display());
    std::fs::write(&hook, script).expect("a file is written");
    let may_run = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&hook, may_run).expect("it may run");
    let decide = ["operator", "decide", "--once", "--hook", path(&hook)];
    let asked = || {
        let text = std::fs::read_to_string(&calls).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let confirm = ["operator", "confirm", "1"];
    assert_eq!(refusal(machines, "one", &confirm), "request_unlocked");
    assert_eq!(machines.souk("one", &decide).code, 0);
    assert_eq!(asked().len(), 0, "it is not locked yet");
    for _ in 0..2 {
        let ran = machines.souk("other", &decide);
        assert_eq!(ran.code, 8, "{} {}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("not asked again"), "{}", ran.stderr);
        assert_eq!(asked().len(), 1, "it is asked once");
    }
    assert!(asked()[0].contains("\"payment\":\""), "{:?}", asked());
    assert_eq!(machines.souk("one", &decide).code, 0);
    assert_eq!(asked().len(), 1, "by one operator");
    let cancel = ["account", "cancel", "1"];
    assert_eq!(refusal(machines, "user", &cancel), "request_locked");
    machines.souk("other", &confirm).done();
    let ran = machines.souk("one", &decide);
    assert!(
        ran.stdout.contains("\"confirmed\":true"),
        "{} {}",
        ran.stdout,
        ran.stderr
    );
    assert_eq!(asked().len(), 1, "who follows asks nobody");
    assert_eq!(refusal(machines, "other", &confirm), "request_unknown");
}
