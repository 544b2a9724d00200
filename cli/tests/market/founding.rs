//! A market as people make one: founded, joined by its line, funded, used, by commands alone.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{IMAGES, Ran, SOUK, digits, images, souk};

/// Machines of a market, each with an empty folder, and the nodes that run on them.
struct Machines {
    home: TempDir,
    nodes: Vec<Child>,
}

impl Machines {
    fn new() -> Machines {
        Machines {
            home: tempfile::tempdir().expect("a temporary folder"),
            nodes: Vec::new(),
        }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn souk(&self, machine: &str, arguments: &[&str]) -> Ran {
        souk(&self.folder(machine), arguments)
    }

    /// Runs a node until the test ends.
    fn run(&mut self, machine: &str, role: &str) {
        let started = Command::new(SOUK)
            .arg("--dir")
            .arg(self.folder(machine))
            .args([role, "run", "--until-stdin-closes"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.nodes.push(started.expect("the binary runs"));
    }

    /// A command that another process must be up for; what else it says it says at once.
    fn until_done(&self, machine: &str, arguments: &[&str]) -> Value {
        let begin = std::time::Instant::now();
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

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value}"))
        .to_owned()
}

fn found(machines: &Machines, machine: &str, name: &str) -> String {
    let listen = "/ip4/127.0.0.1/tcp/0";
    let founded = ["market", "found", "--name", name, "--listen", listen];
    text(&machines.souk(machine, &founded).done()["line"])
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
    let paid = machines
        .souk("founder", &["operator", "confirm", "3"])
        .done();
    assert_eq!(paid["confirmed"][0]["available_micro_credits"], 0);
    let sums = &machines.souk("seller", &["balance"]).done();
    assert_eq!(sums["balanced"], true);
    assert_eq!(sums["totals"]["withdrawals"], left);
}

/// The market's data tell of the job's one trade, to whoever asks.
fn assert_is_told(machines: &Machines) -> String {
    let classes = machines.souk("buyer", &["market", "classes"]).done();
    let class = text(&classes[0]["name"]);
    assert_eq!(classes[0]["last"]["price"], 100_000);
    assert!(
        class.starts_with("cpu-m") && class.ends_with("-emulated"),
        "{class}"
    );
    for view in ["depth", "trades", "candles"] {
        let told = machines.souk("founder", &["market", view, "cpu"]).done();
        assert_eq!(told["name"], class, "{told}");
    }
    let trades = machines.souk("buyer", &["market", "trades", &class]).done();
    assert_eq!(trades["trades"].as_array().map(Vec::len), Some(1));
    let prices = machines.souk("buyer", &["market", "price"]).done();
    assert!(
        prices[0]["nano_credits"]["per_tera_operation"][1].is_u64(),
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
    assert_eq!(orders[0]["class_name"], class);
    let earned = machines.souk(seller, &["account", "show"]).done();
    assert!(
        earned["account"]["available"].as_u64() > Some(0),
        "{earned}"
    );
    machines
        .souk(seller, &["account", "stake", "0.000001"])
        .done();
    let lease = machines.souk("buyer", &["lease", "show", "1"]).done();
    assert_eq!(lease["provider"], earned["account"]["key"]);
    let ended = machines.souk("buyer", &["lease", "end", "1"]);
    assert_eq!(ended.code, 8, "{}", ended.stdout);
}

fn path(path: &Path) -> &str {
    path.to_str().expect("it is UTF-8")
}

#[test]
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
    let again = machines.souk("tree/one", &["market", "found", "--name", "again"]);
    assert_eq!(again.code, 8, "{}", again.stdout);

    let named = machines
        .souk("tree", &["--market", "second", "market", "show"])
        .done();
    assert_eq!(text(&named["line"]), second);
    let unknown = machines.souk("tree", &["--market", "third", "market", "show"]);
    assert_eq!(unknown.code, 8, "{}", unknown.stdout);
    // Reading takes no account.
    let book = machines.souk("tree", &["--market", "first", "book"]).done();
    assert_eq!(book.as_array().map(Vec::len), Some(0));
}
