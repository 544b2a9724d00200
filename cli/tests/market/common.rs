//! A market of real processes for a test: brought up, used through the command line, taken down.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use souk_node::memory::{Tensor, npy};
use tempfile::TempDir;

/// The binary under test.
pub const SOUK: &str = env!("CARGO_BIN_EXE_souk");

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
    /// Starts a market of three validators and four providers.
    pub fn up() -> Market {
        let market = Market {
            home: tempfile::tempdir().expect("a temporary folder"),
        };
        market.souk(&["testnet", "up", "--detach"]).done();
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
        let mut arguments = vec!["submit", &model, "-i", &images, "-o", &out];
        arguments.extend_from_slice(more);
        self.souk(&arguments)
    }

    /// Writes an array and returns its path.
    pub fn write(&self, name: &str, tensor: &Tensor) -> String {
        let bytes = npy::write(tensor).expect("a tensor NumPy can hold");
        fs::write(self.folder().join(name), bytes).expect("a file is written");
        self.path(name)
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

/// Reads an array of floats.
pub fn floats(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    npy::read(&bytes.into())
        .expect("an array")
        .to_vec()
        .expect("of floats")
}
