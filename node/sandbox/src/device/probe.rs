//! Asks drivers and makers' libraries for their devices in a separate process: if one crashes or
//! hangs, only that process ends, and this one reports it.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

/// The environment variable that names the ONNX Runtime library.
pub const LIBRARY_VARIABLE: &str = "SOUK_ONNXRUNTIME";

/// A driver must answer within this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// The environment of a process that opens an ONNX Runtime library. Without it, the library starts
/// a thread that reports to its maker, and a sandbox could not confine that thread.
pub(crate) const TOLD: (&str, &str) = ("ORT_DISABLE_TELEMETRY", "1");

/// How often the process is checked.
const PERIOD: Duration = Duration::from_millis(5);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The system did not start the process.
    #[error("the driver could not be queried: {0}")]
    Start(#[from] io::Error),
    /// The process hung.
    #[error("the driver did not answer within {PATIENCE:?}")]
    Silent,
    /// The process crashed.
    #[error("the driver crashed when it was queried ({0})")]
    Crashed(ExitStatus),
    /// The answer is not valid JSON of the expected type.
    #[error("the driver could not be queried: {0}")]
    Garbled(#[from] serde_json::Error),
    /// The process itself reported an error.
    #[error("{0}")]
    Refused(String),
}

/// Runs `souk device probe` with these words and parses its JSON answer. `program` must be souk;
/// `library` names an ONNX Runtime library to use.
///
/// # Errors
/// [`ProbeError`].
pub fn run_probe<T: DeserializeOwned>(
    program: &Path,
    words: &[&str],
    library: Option<&Path>,
) -> Result<T, ProbeError> {
    let answer = run_probe_raw(program, words, library)?;
    let said: Result<T, String> = serde_json::from_slice(&answer)?;
    said.map_err(ProbeError::Refused)
}

/// Runs the same command and returns its raw output, which shows that the process did not crash.
///
/// # Errors
/// [`ProbeError`].
pub fn run_probe_raw(
    program: &Path,
    words: &[&str],
    library: Option<&Path>,
) -> Result<Vec<u8>, ProbeError> {
    let mut command = Command::new(program);
    command.args(["--output", "json", "device", "probe"]);
    // Drivers write many messages there, none of which matters.
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
        // If bytes are missing, parsing the JSON fails.
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
