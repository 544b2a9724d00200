//! Runs a validator outside the testnet's supervisor, for tests that add and remove members.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use souk_testnet::ports::Ports;

use crate::common::{Market, Ran, SOUK, souk};

/// How long a market may take to come to what a test waits for.
const PATIENCE: Duration = Duration::from_secs(300);

/// A validator's folder beside the testnet's, and its process while it runs.
pub struct Newcomer {
    pub folder: String,
    pub address: String,
    child: Option<Child>,
    /// What it is started with beside.
    more: Vec<String>,
    _ports: Ports,
}

impl Newcomer {
    /// Makes the folder; nothing runs yet.
    pub fn init(market: &Market, name: &str) -> Newcomer {
        let folder = market.path(&format!("net/{name}"));
        let ports = Ports::reserve_free(1).expect("a port is free");
        let listen = format!("/ip4/127.0.0.1/tcp/{}", ports.numbers()[0]);
        let made = souk(folder.as_ref(), &["validator", "init", "--listen", &listen]);
        let address = made.done()["address"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        Newcomer {
            folder,
            address,
            child: None,
            more: Vec::new(),
            _ports: ports,
        }
    }

    /// A newcomer whose process runs and waits to be added.
    pub fn run(market: &Market, name: &str) -> Newcomer {
        let mut newcomer = Newcomer::init(market, name);
        newcomer.start();
        newcomer
    }

    /// Has it tell how it does, from its next start on; where.
    pub fn watch(&mut self) -> String {
        let address = format!("127.0.0.1:{}", free_port());
        self.more = vec!["--metrics".to_owned(), address.clone()];
        address
    }

    /// Starts the process.
    pub fn start(&mut self) {
        let started = Command::new(SOUK)
            .args([
                "--dir",
                &self.folder,
                "validator",
                "run",
                "--until-stdin-closes",
            ])
            .args(&self.more)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        self.child = Some(started.expect("the binary runs"));
    }

    /// Has the market add it, once it listens.
    pub fn add(&self, market: &Market) -> Value {
        let begin = Instant::now();
        loop {
            let added = market.souk(&["validator", "add", &self.address]);
            if !added
                .stdout
                .contains("the leader cannot reach the new validator")
            {
                return added.done();
            }
            assert!(begin.elapsed() < PATIENCE, "{}", added.stdout);
        }
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ended");
        }
    }

    /// Waits until the process ends by itself; its exit code and what it said.
    pub fn ended(&mut self) -> (i32, String) {
        let mut child = self.child.take().expect("it was started");
        let begin = Instant::now();
        while child.try_wait().expect("it can be asked").is_none() {
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
        let code = child.wait().expect("it ended").code().unwrap_or(-1);
        let mut said = String::new();
        let stderr = child.stderr.as_mut().expect("it was asked for");
        stderr.read_to_string(&mut said).expect("it is UTF-8");
        (code, said)
    }

    /// A command on its folder.
    pub fn souk(&self, arguments: &[&str]) -> Ran {
        souk(self.folder.as_ref(), arguments)
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The validators as the leader sees them.
pub fn list(market: &Market) -> Value {
    market.souk(&["validator", "list"]).done()
}

/// Has the market remove one. On a busy machine a validator that runs may not have been heard of
/// lately; nobody is removed meanwhile.
pub fn remove(market: &Market, id: u64) {
    let begin = Instant::now();
    loop {
        let removed = market.souk(&["validator", "remove", &id.to_string()]);
        if !removed.stdout.contains("needed for a quorum") {
            removed.done();
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{}", removed.stdout);
    }
}

/// The ids of those with this standing.
pub fn with(members: &Value, standing: &str) -> Vec<u64> {
    let all = members["validators"].as_array().expect("a list");
    let those = all.iter().filter(|member| member["standing"] == standing);
    those
        .map(|member| member["id"].as_u64().expect("an id"))
        .collect()
}

/// Waits until these validators, and no others, answer with one state at one entry.
pub fn agree(market: &Market, ids: &[u64]) -> Value {
    let begin = Instant::now();
    loop {
        let status = market.souk(&["testnet", "status"]).done();
        let all = status["validators"].as_array().expect("a list").clone();
        let mut answered: Vec<u64> = all.iter().filter_map(|v| v["id"].as_u64()).collect();
        answered.sort_unstable();
        let state = |v: &Value| (v["applied"].clone(), v["digest"].clone());
        let up: Vec<&Value> = all.iter().filter(|v| v["digest"].is_string()).collect();
        let same = up.iter().all(|v| state(v) == state(up[0]));
        if answered == ids && same {
            return up[0].clone();
        }
        assert!(begin.elapsed() < PATIENCE, "{status}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A port that nobody listens at.
pub fn free_port() -> u16 {
    let held = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    held.local_addr().expect("it is bound").port()
}
