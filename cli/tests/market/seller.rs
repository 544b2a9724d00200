//! Runs a provider outside the testnet's supervisor, for tests that stop it or change its files.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use souk_folder::clock::CLOCK_VARIABLE;
use souk_folder::key::NodeKey;
use souk_node::market::AccountKey;

use crate::common::{Market, SOUK, kill, souk};
use crate::validator::free_port;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(300);

/// A provider's folder in the testnet's, and its process while it runs.
pub struct Seller {
    pub folder: String,
    key: NodeKey,
    child: Option<Child>,
    /// What its environment has beside.
    environment: Vec<(&'static str, String)>,
    /// How many seconds leases at work have to end when it is to stop.
    pub drain: u64,
    /// Where it tells how it does.
    watched_at: Option<String>,
}

impl Seller {
    /// Makes the folder of a provider of an emulated device; nothing runs yet.
    pub fn init(market: &Market, name: &str) -> Seller {
        let folder = market.path(&format!("net/{name}"));
        let key = NodeKey::generate();
        key.store(format!("{folder}/key").as_ref())
            .expect("a key is written");
        let file = json!({
            "format": 1, "name": name, "listen": "/ip4/127.0.0.1/tcp/0", "price": 1000,
            "device": { "emulated": { "profile": "amd-epyc-9654" } },
        });
        let path = format!("{folder}/provider.json");
        std::fs::write(path, file.to_string()).expect("a file is written");
        Seller {
            folder,
            key,
            child: None,
            environment: Vec::new(),
            drain: 1,
            watched_at: None,
        }
    }

    /// Makes the folder with `souk provider init` and these options.
    pub fn set_up(market: &Market, name: &str, options: &[&str]) -> (Seller, Value) {
        let device = ["--yes", "--device", "amd-epyc-9654"];
        Seller::init_with(market, name, &[&device[..], options].concat())
    }

    /// Makes the folder of a provider that sells a model of the engine at a URL.
    #[cfg(feature = "generate")]
    pub fn of_engine(market: &Market, name: &str, url: &str, more: &[&str]) -> Seller {
        let endpoint = ["--endpoint", url, "--model", "qwen/qwen3-8b"];
        Seller::init_with(market, name, &[&endpoint[..], more].concat()).0
    }

    /// Makes the folder of a provider that serves the model that comes with souk, by this name.
    #[cfg(feature = "generate")]
    pub fn of_served_model(market: &Market, name: &str, model: &str, more: &[&str]) -> Seller {
        Seller::of_model(market, name, ("bundled", model), more)
    }

    /// Makes the folder of a provider that serves the model at a path, by this name.
    #[cfg(feature = "generate")]
    pub fn of_model(
        market: &Market,
        name: &str,
        (path, model): (&str, &str),
        more: &[&str],
    ) -> Seller {
        let serve = ["--serve", path, "--model", model];
        Seller::init_with(market, name, &[&serve[..], more].concat()).0
    }

    fn init_with(market: &Market, name: &str, options: &[&str]) -> (Seller, Value) {
        let folder = market.path(&format!("net/{name}"));
        let mut arguments = vec!["provider", "init", "--listen", "/ip4/127.0.0.1/tcp/0"];
        arguments.extend_from_slice(options);
        let made = souk(folder.as_ref(), &arguments).done();
        let key = NodeKey::load(format!("{folder}/key").as_ref()).expect("init made a key");
        let seller = Seller {
            folder,
            key,
            child: None,
            environment: Vec::new(),
            drain: 1,
            watched_at: None,
        };
        (seller, made)
    }

    /// A provider whose process runs.
    pub fn run(market: &Market, name: &str) -> Seller {
        let mut seller = Seller::init(market, name);
        seller.start();
        seller
    }

    /// Has it sell an emulated device, and play this fault, from its next start on.
    pub fn sell(&self, profile: &str, fault: Option<&str>) {
        self.sell_device(json!({ "emulated": { "profile": profile } }), fault);
    }

    /// Has it sell what a library of ONNX Runtime reaches, from its next start on.
    pub fn sell_runtime(&mut self, library: String, provider: &str) {
        self.sell_driven_device(json!({ "onnxruntime": { "provider": provider } }));
        self.environment.push(("SOUK_ONNXRUNTIME", library));
    }

    /// Has it sell so many leases at once, from its next start on.
    pub fn sell_leases(&self, leases: u32) {
        self.set_in_file("limits", json!({ "leases": leases }));
    }

    /// Has it sell a thread of the CPU with a library of ONNX Runtime beside, from its next start
    /// on.
    pub fn sell_cpu_beside(&self, library: &str) {
        self.sell_device(json!({ "cpu": { "threads": 1 } }), None);
        self.set_in_file("onnxruntime", json!(library));
    }

    /// Has it sell what the library at a path reaches, from its next start on.
    pub fn sell_runtime_by(&self, library: &str, provider: &str) {
        self.sell_driven_device(json!({ "onnxruntime": { "provider": provider } }));
        self.set_in_file("onnxruntime", json!(library));
    }

    /// Has it sell a GPU by a part of its name, from its next start on.
    pub fn sell_gpu(&self, name: &str) {
        self.sell_driven_device(json!({ "gpu": { "name": name } }));
    }

    /// A build machine runs the tests as root, which a sandbox with a driver refuses unless its
    /// owner accepts what is missing.
    fn sell_driven_device(&self, device: Value) {
        self.sell_device(device, None);
        self.set_in_file("isolation", json!("partial"));
    }

    fn sell_device(&self, device: Value, fault: Option<&str>) {
        self.set_in_file("device", device);
        self.set_in_file("fault", fault.into());
    }

    /// Sets an entry of its file.
    fn set_in_file(&self, entry: &str, value: Value) {
        let path = format!("{}/provider.json", self.folder);
        let text = std::fs::read_to_string(&path).expect("a provider's file");
        let mut file: Value = serde_json::from_str(&text).expect("a provider's file is JSON");
        file[entry] = value;
        std::fs::write(path, file.to_string()).expect("a provider's file is written");
    }

    /// Has its clock be so many milliseconds behind, from its next start on.
    pub fn slow_clock(&mut self, behind_ms: u64) {
        let path = format!("{}/clock", self.folder);
        std::fs::write(&path, format!("-{behind_ms}")).expect("a file is written");
        self.environment.push((CLOCK_VARIABLE, path));
    }

    /// Has it tell how it does, from its next start on; where.
    pub fn watch(&mut self) -> String {
        let address = format!("127.0.0.1:{}", free_port());
        self.watched_at = Some(address.clone());
        address
    }

    /// Starts the process.
    pub fn start(&mut self) {
        let drain = self.drain.to_string();
        let mut arguments = vec!["--dir", &self.folder, "provider", "run", "--drain", &drain];
        if let Some(address) = &self.watched_at {
            arguments.extend(["--metrics", address]);
        }
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log());
        let started = Command::new(SOUK)
            .args(arguments)
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::null())
            .stderr(log.expect("a log is opened"))
            .spawn();
        self.child = Some(started.expect("the binary runs"));
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ended");
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: &str) {
        kill(self.child.as_ref().expect("it runs").id(), signal);
    }

    /// Whether its process has not ended.
    pub fn is_alive(&mut self) -> bool {
        let child = self.child.as_mut().expect("it was started");
        child.try_wait().expect("it can be asked").is_none()
    }

    /// Waits until it says that it is to stop.
    pub fn until_it_stops(&self) {
        let said = |log: String| log.contains("stopping: ");
        let log = || std::fs::read_to_string(self.log());
        until("it says that it stops", || log().is_ok_and(said));
    }

    /// Asks it to stop; its exit code.
    pub fn terminate(&mut self) -> i32 {
        self.signal("-TERM");
        self.ended()
    }

    /// Its exit code, once it has ended.
    pub fn ended(&mut self) -> i32 {
        let mut child = self.child.take().expect("it runs");
        let begin = Instant::now();
        while child.try_wait().expect("it can be asked").is_none() {
            assert!(begin.elapsed() < PATIENCE, "it does not stop");
            std::thread::sleep(Duration::from_millis(20));
        }
        child.wait().expect("it ended").code().unwrap_or(-1)
    }

    /// The file with what it says.
    pub fn log(&self) -> String {
        format!("{}/log.txt", self.folder)
    }

    /// Its account.
    pub fn account(&self) -> AccountKey {
        AccountKey(self.key.public_key())
    }

    /// What `souk provider status` says.
    pub fn status(&self) -> Value {
        souk(self.folder.as_ref(), &["provider", "status"]).done()
    }
}

impl Drop for Seller {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until something holds.
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
