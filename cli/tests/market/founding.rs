//! Tests the life of a real market by commands alone: it is created, joined by its invitation,
//! funded and used, and its members leave.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{IMAGES, Ran, SOUK, digits, images, kill, souk};

/// Machines of a market, each with an empty folder, and the nodes that run on them.
pub struct Machines {
    home: TempDir,
    nodes: Vec<Child>,
}

impl Machines {
    pub fn new() -> Machines {
        Machines {
            home: tempfile::tempdir().expect("a temporary folder"),
            nodes: Vec::new(),
        }
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn souk(&self, machine: &str, arguments: &[&str]) -> Ran {
        souk(&self.folder(machine), arguments)
    }

    /// Runs a node until the test ends.
    pub fn run(&mut self, machine: &str, role: &str) {
        let node = self.start(machine, role);
        self.nodes.push(node);
    }

    /// Ends a node at once, by its place among those that were run, and runs it again.
    fn kill_and_run_again(&mut self, place: usize, machine: &str, role: &str) {
        self.kill(place);
        self.nodes[place] = self.start(machine, role);
    }

    /// Ends a node at once.
    pub fn kill(&mut self, place: usize) {
        self.nodes[place].kill().expect("it runs");
        self.nodes[place].wait().expect("it ends");
    }

    /// Asks a node to stop; how long it takes.
    pub fn terminated(&mut self, place: usize) -> Duration {
        let begin = Instant::now();
        kill(self.nodes[place].id(), "-TERM");
        self.nodes[place].wait().expect("it ends");
        begin.elapsed()
    }

    fn start(&self, machine: &str, role: &str) -> Child {
        let started = Command::new(SOUK)
            .arg("--dir")
            .arg(self.folder(machine))
            .args([role, "run", "--until-stdin-closes"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        started.expect("the binary runs")
    }

    /// A command that another process must be up for; what else it says it says at once.
    pub fn until_done(&self, machine: &str, arguments: &[&str]) -> Value {
        let begin = Instant::now();
        loop {
            let ran = self.souk(machine, arguments);
            if ran.code != 5 || begin.elapsed().as_secs() > 40 {
                return ran.done();
            }
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // One that has ended cannot be killed.
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

pub fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value}"))
        .to_owned()
}

fn found(machines: &Machines, machine: &str, name: &str) -> String {
    let listen = "/ip4/127.0.0.1/tcp/0";
    let founded = ["market", "create", "--name", name, "--listen", listen];
    text(&machines.souk(machine, &founded).done()["invitation"])
}

#[test]
fn a_market_is_founded_joined_funded_used_and_left_by_commands_alone() {
    let mut machines = Machines::new();
    let line = found(&machines, "founder", "bazaar");
    machines.run("founder", "validator");

    let joined = machines.until_done("buyer", &["market", "join", &line]);
    assert_eq!(joined["name"], "bazaar");
    let account = text(&machines.souk("buyer", &["account", "new"]).done()["account"]);
    let asked = ["account", "deposit", "10", "--reference", "invoice 7"];
    assert_eq!(machines.souk("buyer", &asked).done()["request"], 1);
    let waiting = machines.souk("founder", &["operator", "requests"]).done();
    assert_eq!(waiting[0]["reference"], "invoice 7");
    machines
        .souk("founder", &["operator", "confirm", "1"])
        .done();
    // Once is enough, and a stranger has no say.
    let again = machines.souk("founder", &["operator", "confirm", "1"]);
    assert_eq!(again.code, 8, "{}", again.stdout);
    machines
        .souk("founder", &["operator", "credit", &account, "1"])
        .done();

    machines.souk("seller", &["market", "join", &line]).done();
    let init = [
        "provider",
        "init",
        "--yes",
        "--device",
        "amd-epyc-9654",
        "--price",
        "0.1",
        "--listen",
        "/ip4/127.0.0.1/tcp/0",
    ];
    machines.souk("seller/provider", &init).done();
    machines.run("seller/provider", "provider");

    let few = machines.folder("few.npy");
    let bytes = souk_node::memory::npy::write(&images(0, IMAGES)).expect("an array");
    std::fs::write(&few, bytes).expect("a file is written");
    let (model, out) = (digits("digits.onnx"), machines.folder("out"));
    let input = format!("images={}", few.display());
    let submit = [
        "submit",
        "--emulated",
        path(&model),
        "-i",
        &input,
        "-o",
        path(&out),
        "--wait",
        "30",
    ];
    let done = machines.souk("buyer", &submit).done();
    assert!(done["outputs"]["logits"].is_object(), "{done}");

    let class = assert_is_told(&machines);
    assert_trades_its_own(&machines, &class);

    // What is left after the job can be taken out, to the micro-credit.
    let held = machines.souk("buyer", &["account", "show"]).done();
    let left = held["account"]["available"].as_u64().expect("a number");
    assert!(left < 11_000_000, "the job was paid: {held}");
    let all = format!("{}.{:06}", left / 1_000_000, left % 1_000_000);
    machines
        .souk("buyer", &["account", "withdraw", &all])
        .done();
    machines
        .souk("founder", &["operator", "refuse", "2", "where to?"])
        .done();
    machines
        .souk(
            "buyer",
            &["account", "withdraw", &all, "--reference", "iban"],
        )
        .done();
    assert_decided_by_a_program(&machines);
    let held = machines.souk("buyer", &["account", "show"]).done();
    assert_eq!(held["account"]["available"], 0, "{held}");
    assert_eq!(held["account"]["escrow"], 0, "{held}");
    assert_reconciled(&machines, &all);
    let sums = &machines.souk("seller", &["balance"]).done();
    assert_eq!(sums["totals"]["balanced"], true);
    assert_eq!(sums["totals"]["withdrawals"], left);

    let history = machines.souk("buyer", &["account", "history"]).done();
    assert_adds_up(&history);
    machines.kill_and_run_again(0, "founder", "validator");
    let again = machines.until_done("buyer", &["account", "history"]);
    assert_eq!(
        history, again,
        "nothing is lost with its validator's process"
    );
}

/// The operator's program is given what waits, and its word counts only where it makes sense.
fn assert_decided_by_a_program(machines: &Machines) {
    let hook = machines.folder("hook");
    let decide = ["operator", "decide", "--once", "--hook", path(&hook)];
    for (says, decided) in [
        (r#"{"decision":"wait"}"#, 0),
        (r#"{"decision":"wait"}"#, 0),
        (r#"{"decision":"confirm"}"#, 1),
    ] {
        let script =
            format!("#!/bin/sh\ngrep -q '\"reference\":\"iban\"' || exit 1\necho '{says}'\n");
        std::fs::write(&hook, script).expect("a file is written");
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755))
            .expect("it may run");
        let ran = machines.souk("founder", &decide);
        assert_eq!(ran.code, 0, "{} {}", ran.stdout, ran.stderr);
        let lines = ran.stdout.lines().count();
        assert_eq!(lines, decided, "{says}: {} {}", ran.stdout, ran.stderr);
    }
}

/// What was confirmed is compared with an account outside, and what is missing there is named.
fn assert_reconciled(machines: &Machines, withdrawn: &str) {
    let file = machines.folder("bank.csv");
    let reconcile = ["operator", "reconcile", path(&file)];
    let deposit = "direction,amount,reference\ndeposit,10,invoice 7\n";
    std::fs::write(&file, format!("{deposit}withdrawal,{withdrawn},iban\n")).expect("written");
    let same = machines.souk("founder", &reconcile).done();
    assert_eq!(same["matched"], 2, "{same}");
    std::fs::write(&file, format!("{deposit}deposit,10,invoice 7\n")).expect("written");
    let differs = machines.souk("founder", &reconcile);
    assert_eq!(differs.code, 7, "{} {}", differs.stdout, differs.stderr);
    std::fs::write(&file, "what,is,this\n1,2,3\n").expect("written");
    assert_eq!(machines.souk("founder", &reconcile).code, 3);
}

/// Each movement begins where the one before ended, from nothing to nothing, and says why.
fn assert_adds_up(history: &Value) {
    let movements = history["movements"].as_array().expect("movements");
    let nothing = json!({ "available": 0, "escrow": 0, "stake": 0 });
    let mut before = &nothing;
    for movement in movements {
        assert_eq!(movement["before"], *before, "{history}");
        before = &movement["after"];
    }
    assert_eq!(*before, nothing, "all of it was withdrawn");
    let whys: Vec<&str> = movements
        .iter()
        .filter_map(|it| it["why"].as_str())
        .collect();
    assert_eq!(whys[0], "deposit 1 confirmed \"invoice 7\"");
    assert_eq!(whys[1], "credited by the operator");
    assert!(whys[2].starts_with("lease 1 bought"), "{whys:?}");
    assert_eq!(whys.last(), Some(&"withdrawal 3 confirmed \"iban\""));
}

/// The market's data tell of the job's one trade, to whoever asks.
fn assert_is_told(machines: &Machines) -> String {
    let classes = machines.souk("buyer", &["market", "classes"]).done();
    let class = text(&classes[0]["class"]);
    assert_eq!(classes[0]["last"]["price"], 100_000);
    assert!(
        class.starts_with("cpu-m") && class.ends_with("-emulated"),
        "{class}"
    );
    for view in ["depth", "trades", "candles"] {
        let told = machines.souk("founder", &["market", view, "cpu"]).done();
        assert_eq!(told["class"], class, "{told}");
    }
    let trades = machines.souk("buyer", &["market", "trades", &class]).done();
    assert_eq!(trades["trades"].as_array().map(Vec::len), Some(1));
    let prices = machines.souk("buyer", &["market", "price"]).done();
    assert!(
        prices[0]["index"]["per_tera_operation"]["f32"].is_u64(),
        "{prices}"
    );
    let unknown = machines.souk("buyer", &["market", "depth", "gpu"]);
    assert_eq!(unknown.code, 3, "{}", unknown.stdout);
    class
}

/// A provider's folder trades with its own account.
fn assert_trades_its_own(machines: &Machines, class: &str) {
    let seller = "seller/provider";
    let orders = machines.souk(seller, &["order", "list"]).done();
    assert_eq!(orders[0]["class"], class);
    let earned = machines.souk(seller, &["account", "show"]).done();
    assert!(
        earned["account"]["available"].as_u64() > Some(0),
        "{earned}"
    );
    machines
        .souk(seller, &["account", "stake", "0.000001"])
        .done();
    let lease = machines.souk("buyer", &["lease", "show", "1"]).done();
    assert_eq!(lease["provider"], earned["account"]["account"]);
    let ended = machines.souk("buyer", &["lease", "end", "1"]);
    assert_eq!(ended.code, 8, "{}", ended.stdout);
}

pub fn path(path: &Path) -> &str {
    path.to_str().expect("it is UTF-8")
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_line_of_another_market_is_refused_and_markets_are_found_by_name() {
    let mut machines = Machines::new();
    let first = found(&machines, "tree/one", "first");
    let second = found(&machines, "tree/two", "second");
    machines.run("tree/one", "validator");
    // The id of one market, the address of another.
    let (id, _) = second.split_once('@').expect("a line");
    let (_, address) = first.split_once('@').expect("a line");
    machines.until_done("here", &["market", "join", &first]);
    let mixed = format!("{id}@{address}");
    let refused = machines.souk("there", &["market", "join", &mixed]);
    assert_eq!(refused.code, 7, "{}", refused.stdout);
    assert!(!machines.folder("there").exists(), "nothing is kept");
    // A folder is of one market.
    let refused = machines.souk("here", &["market", "join", &second]);
    assert_eq!(refused.code, 8, "{}", refused.stdout);
    let again = machines.souk("tree/one", &["market", "create", "--name", "again"]);
    assert_eq!(again.code, 8, "{}", again.stdout);

    let named = machines
        .souk("tree", &["--market", "second", "market", "show"])
        .done();
    assert_eq!(text(&named["invitation"]), second);
    let unknown = machines.souk("tree", &["--market", "third", "market", "show"]);
    assert_eq!(unknown.code, 8, "{}", unknown.stdout);
    // Reading takes no account.
    let book = machines.souk("tree", &["--market", "first", "book"]).done();
    assert_eq!(book.as_array().map(Vec::len), Some(0));
}
