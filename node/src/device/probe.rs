//! Drivers and makers' libraries are asked in a process of their own: one that crashes or hangs
//! ends that process, and this one says so.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

/// The environment variable that names the library of ONNX Runtime.
pub const LIBRARY_VARIABLE: &str = "SOUK_ONNXRUNTIME";

/// How long a driver may take to say what it has.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the environment of a process says that opens a library of ONNX Runtime: it starts a thread
/// that reports to its maker unless it is told not to, and no sandbox would hold that one.
pub(crate) const TOLD: (&str, &str) = ("ORT_DISABLE_TELEMETRY", "1");

/// How often the process is looked at.
const PERIOD: Duration = Duration::from_millis(5);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The system starts no process.
    #[error("the driver was not asked: {0}")]
    Start(#[from] io::Error),
    /// It hung.
    #[error("the driver did not answer within {PATIENCE:?}")]
    Silent,
    /// The process ended.
    #[error("the driver crashed when it was asked what it has ({0})")]
    Crashed(ExitStatus),
    /// What it said is not what was asked for.
    #[error("the driver was not asked: {0}")]
    Garbled(#[from] serde_json::Error),
    /// It said itself why it has nothing.
    #[error("{0}")]
    Refused(String),
}

/// Asks by `souk device probe` with these words, where `program` is souk and the library of ONNX
/// Runtime that it uses may be named.
///
/// # Errors
/// [`ProbeError`].
pub fn ask<T: DeserializeOwned>(
    program: &Path,
    words: &[&str],
    library: Option<&Path>,
) -> Result<T, ProbeError> {
    let answer = answer(program, words, library)?;
    let said: Result<T, String> = serde_json::from_slice(&answer)?;
    said.map_err(ProbeError::Refused)
}

/// The same for what is said in whatever words: the process lived to say it.
///
/// # Errors
/// [`ProbeError`].
pub fn answer(
    program: &Path,
    words: &[&str],
    library: Option<&Path>,
) -> Result<Vec<u8>, ProbeError> {
    let mut command = Command::new(program);
    command.args(["--output", "json", "device", "probe"]);
    // Drivers have much to say there, of which nothing is an error.
    command
        .args(words)
        .env(TOLD.0, TOLD.1)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    if let Some(library) = library {
        command.env(LIBRARY_VARIABLE, library);
    }
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut read = Vec::new();
        // What was not read is missing in the JSON, which whoever asked finds.
        let _ = stdout.map(|mut stdout| stdout.read_to_end(&mut read));
        read
    });
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        match child.try_wait()? {
            Some(ended) => break ended,
            None if Instant::now() < deadline => thread::sleep(PERIOD),
            None => {
                child.kill().and_then(|()| child.wait())?;
                return Err(ProbeError::Silent);
            }
        }
    };
    let read = reader.join().unwrap_or_default();
    match ended.success() {
        true => Ok(read),
        false => Err(ProbeError::Crashed(ended)),
    }
}
