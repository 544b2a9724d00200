//! Starts a market of real processes for a test, runs `souk` commands in it, and stops it
//! afterwards.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use souk_folder::key::NodeKey;
use souk_node::market::AccountKey;
use souk_node::memory::{Tensor, npy};
use souk_testnet::ports::Ports;
use tempfile::TempDir;

/// The binary under test.
pub const SOUK: &str = env!("CARGO_BIN_EXE_souk");

/// The file in which a provider stores how fast its CPU is.
const MEASURED_FILE: &str = "measured.json";

/// The first provider of a market, which sells this machine's CPU.
const CPU_PROVIDER: &str = "provider-1";

/// The measurement of the first market's CPU. It takes two seconds of a core, and the providers of
/// all others sell the same one.
static MEASURED: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// A testnet in a folder of its own.
pub struct Market {
    home: TempDir,
}

/// What a command printed and how it ended.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The one JSON value it printed.
    pub fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        parsed.unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr))
    }

    /// The JSON value of a command that must have succeeded.
    pub fn done(&self) -> Value {
        assert_eq!(self.code, 0, "{} {}", self.stdout, self.stderr);
        self.json()
    }
}

impl Market {
    /// Starts a market of one validator and four providers: what is tried here is seldom how the
    /// log is replicated, and each process more takes its time from all others.
    pub fn up() -> Market {
        Market::of("1", &["--no-http"])
    }

    /// The same with a gateway, and where that answers.
    pub fn with_gateway() -> (Market, String) {
        let ports = Ports::reserve_free(1).expect("a port is free");
        let address = format!("127.0.0.1:{}", ports.numbers()[0]);
        (Market::of("1", &["--http", &address]), address)
    }

    /// Starts a market of one validator and one provider, of this machine's CPU: for tests that
    /// sell by providers of their own.
    pub fn with_one_provider() -> Market {
        Market::of("1", &["--no-http", "--providers", "1"])
    }

    /// Starts a market of three validators and four providers.
    pub fn replicated() -> Market {
        Market::of("3", &["--no-http"])
    }

    /// The same with the fewest validators of which one may stop or lie.
    pub fn of_four() -> Market {
        Market::of("4", &["--no-http"])
    }

    /// A folder alone, in which nothing runs: for commands that need no market.
    #[cfg(feature = "generate")]
    pub fn without_nodes() -> Market {
        Market {
            home: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    fn of(validators: &str, more: &[&str]) -> Market {
        let market = Market {
            home: tempfile::tempdir().expect("a temporary folder"),
        };
        let up = || {
            let up = ["testnet", "up", "--detach", "--validators", validators];
            market.souk(&[&up[..], more].concat()).done();
        };
        // The first start has all processors for what it measures.
        let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
        let cpu_provider = market.folder().join("net").join(CPU_PROVIDER);
        if let Some(known) = &*measured {
            write_measured(&cpu_provider, known);
            drop(measured);
            up();
        } else {
            up();
            *measured = fs::read(cpu_provider.join(MEASURED_FILE)).ok();
        }
        market
    }

    /// A folder for files of the test.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// A path in it, as text.
    pub fn path(&self, name: &str) -> String {
        self.home.path().join(name).to_string_lossy().into_owned()
    }

    /// Runs a command against this market, answers in JSON.
    pub fn souk(&self, arguments: &[&str]) -> Ran {
        souk(&self.home.path().join("net"), arguments)
    }

    /// Submits the digits model with further arguments.
    pub fn submit_digits(&self, out: &str, more: &[&str]) -> Ran {
        let images = format!("images={}", digits("images.npy").display());
        let model = digits("digits.onnx").to_string_lossy().into_owned();
        let out = self.path(out);
        let arguments = ["submit", &model, "-i", &images, "-o", &out];
        self.souk(&[&arguments[..], preferring(more), more].concat())
    }

    /// The same with few images, where a busy machine is not to be taken for a slow provider.
    pub fn submit_few(&self, out: &str, more: &[&str]) -> Ran {
        let images = format!("images={}", self.write("few.npy", &images(0, IMAGES)));
        let model = digits("digits.onnx").to_string_lossy().into_owned();
        let out = self.path(out);
        let arguments = ["submit", &model, "-i", &images, "-o", &out];
        self.souk(&[&arguments[..], preferring(more), more].concat())
    }

    /// What an account may spend, in micro-credits.
    pub fn available(&self, account: &str) -> u64 {
        let balances = self.souk(&["balance"]).done();
        let mut accounts = balances["accounts"].as_array().expect("a list").iter();
        let found = accounts.find(|one| one["account"] == account);
        let found = found.unwrap_or_else(|| panic!("no {account} in {balances}"));
        found["available"].as_u64().expect("it is there")
    }

    /// Writes an array and returns its path.
    pub fn write(&self, name: &str, tensor: &Tensor) -> String {
        let bytes = npy::write(tensor).expect("a tensor NumPy can hold");
        fs::write(self.folder().join(name), bytes).expect("a file is written");
        self.path(name)
    }

    /// Has a provider play a fault: its file says so, and it is started again by the supervisor.
    pub fn make_faulty(&self, name: &str, fault: &str) {
        self.set_in_provider(name, &[("fault", fault.into())]);
    }

    /// The device that a provider's file says it sells.
    pub fn device_of(&self, name: &str) -> Value {
        let file = self.folder().join("net").join(name).join("provider.json");
        let text = fs::read_to_string(file).expect("a provider's file");
        let config: Value = serde_json::from_str(&text).expect("a provider's file is JSON");
        config["device"].clone()
    }

    /// Changes entries of a provider's file; it is started again by the supervisor.
    pub fn set_in_provider(&self, name: &str, entries: &[(&str, Value)]) {
        self.set_in_providers([(name, entries.to_vec())]);
    }

    /// Changes entries of several providers' files; they are started again side by side.
    pub fn set_in_providers<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, Vec<(&'a str, Value)>)>,
    ) {
        let changes: Vec<_> = changes.into_iter().collect();
        for (name, entries) in &changes {
            self.write_in_provider(name, entries);
        }
        // The next plan goes by what providers state, as the first did: what a job saw of the
        // links on a busy machine might choose another provider than the one that was changed.
        let seen = self.folder().join("net/buyer/links.json");
        if fs::exists(&seen).expect("the folder can be read") {
            fs::remove_file(seen).expect("the buyer's file is removed");
        }
        let names: Vec<&str> = changes.iter().map(|(name, _)| *name).collect();
        self.restart(&names);
    }

    fn write_in_provider(&self, name: &str, entries: &[(&str, Value)]) {
        let file = self
            .home
            .path()
            .join("net")
            .join(name)
            .join("provider.json");
        let text = fs::read_to_string(&file).expect("a provider's file");
        let mut config: Value = serde_json::from_str(&text).expect("a provider's file is JSON");
        for (entry, value) in entries {
            config[*entry] = value.clone();
        }
        fs::write(&file, config.to_string()).expect("a provider's file is written");
    }

    /// Kills the processes of providers, and waits until they serve again.
    fn restart(&self, names: &[&str]) {
        let processes = |name: &str| self.processes(&format!("{name} "));
        let before: Vec<_> = names.iter().map(|name| (*name, processes(name))).collect();
        for id in before.iter().flat_map(|(_, processes)| processes) {
            kill(*id, "-9");
        }
        // An ask stays in the book; its provider serves again once it has replaced it. Before it
        // was killed it may have done so too.
        let asks: Vec<_> = names.iter().map(|name| self.asks_of(name)).collect();
        for ((name, before), asks) in before.into_iter().zip(asks) {
            self.until(|| {
                let (now, offered) = (processes(name), self.asks_of(name));
                !now.is_empty() && now != before && !offered.is_empty() && offered != asks
            });
        }
    }

    /// The sandboxes of a provider: the processes that it has started, one for each lease at work
    /// and one that waits.
    pub fn sandboxes_of(&self, name: &str) -> Vec<u32> {
        let provider = self.processes(&format!("{name} "));
        let is_child = |id: &u32| {
            let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
            let parent = parent.and_then(|parent| parent.trim().parse().ok());
            parent.is_some_and(|parent: u32| provider.contains(&parent))
        };
        let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
        let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        all.filter(is_child).collect()
    }

    /// The account of a node.
    pub fn account_key(&self, name: &str) -> AccountKey {
        let key = NodeKey::load(&self.home.path().join("net").join(name).join("key"));
        AccountKey(key.expect("a node has a key").public_key())
    }

    /// The same, as it is written.
    pub fn account_of(&self, name: &str) -> String {
        self.account_key(name).to_string()
    }

    /// The orders that a provider has in the book.
    fn asks_of(&self, name: &str) -> Vec<Value> {
        let account = self.account_of(name);
        let book = self.souk(&["book"]).done();
        let mine = book
            .as_array()
            .expect("a list")
            .iter()
            .filter(|ask| ask["provider"] == account);
        mine.map(|ask| ask["order"].clone()).collect()
    }

    /// Waits for something that happens within seconds.
    pub fn until(&self, mut holds: impl FnMut() -> bool) {
        let begin = std::time::Instant::now();
        while !holds() {
            assert!(begin.elapsed().as_secs() < 40, "it happens within 40 s");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// Asserts that nothing stays in escrow once the grace of ended leases is over.
    pub fn assert_escrow_returns(&self) {
        self.until(|| self.souk(&["balance"]).done()["totals"]["escrow"] == 0);
    }

    /// Starts a submission of the digits model and leaves it running.
    pub fn spawn_digits(&self, out: &str, more: &[&str]) -> std::process::Child {
        let images = format!("images={}", digits("images.npy").display());
        Command::new(SOUK)
            .arg("--dir")
            .arg(self.home.path().join("net"))
            .args(["--json", "submit"])
            .arg(digits("digits.onnx"))
            .args(["-i", &images, "-o", &self.path(out)])
            .args(preferring(more))
            .args(more)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the binary runs")
    }

    /// The process ids of the nodes whose names begin so, from the processes themselves.
    pub fn processes(&self, name: &str) -> Vec<u32> {
        let home = self.path("net");
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").expect("/proc is there").flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|id| id.parse().ok()) else {
                continue;
            };
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            if command.contains(&home) && command.contains(&format!("/{name}")) {
                found.push(id);
            }
        }
        found
    }
}

impl Drop for Market {
    fn drop(&mut self) {
        // A test that took it down itself is answered that none runs.
        self.souk(&["testnet", "down"]);
    }
}

/// Writes a provider's measurement as it does, before its folder is laid out.
fn write_measured(home: &Path, measured: &[u8]) {
    let folder = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(home);
    folder.expect("a folder is made");
    let mut options = fs::File::options();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(home.join(MEASURED_FILE));
    file.and_then(|mut file| file.write_all(measured))
        .expect("a measurement is written");
}

/// Tests that say nothing else want the fastest devices, which are emulated and hold the most.
fn preferring(more: &[&str]) -> &'static [&'static str] {
    match more.contains(&"--prefer") {
        true => &[],
        false => &["--prefer", "fastest"],
    }
}

/// Sends a signal to one process.
pub fn kill(process: u32, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
}

/// Runs a command in a folder, answers in JSON.
pub fn souk(folder: &Path, arguments: &[&str]) -> Ran {
    let ran = Command::new(SOUK)
        .arg("--dir")
        .arg(folder)
        .args(["--output", "json"])
        .args(arguments)
        .output()
        .expect("the binary runs");
    let Output {
        status,
        stdout,
        stderr,
    } = ran;
    let text = |bytes| String::from_utf8(bytes).expect("what it prints is UTF-8");
    Ran {
        code: status.code().unwrap_or(-1),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// A file of the bundled digits model.
pub fn digits(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testnet/models/digits")
        .join(name)
}

/// Images in a request of few: for a debug build on a busy machine.
pub const IMAGES: usize = 4;

/// Floats of one image.
const PIXELS: usize = 8 * 8;

/// So many images of the bundled ones, from `first` on, over again behind the last.
pub fn images(first: usize, count: usize) -> Tensor {
    let all = floats(&digits("images.npy"));
    let from = first * PIXELS;
    let pixels = all.into_iter().cycle().skip(from).take(count * PIXELS);
    Tensor::from_vec([count, 1, 8, 8], pixels.collect()).expect("a tensor of images")
}

/// Reads an array of floats.
pub fn floats(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    npy::read(&bytes.into())
        .expect("an array")
        .to_vec()
        .expect("of floats")
}
