//! `souk bench memory`: measures the peak memory of whole models in souk and, for comparison, in
//! rten alone (the engine of souk's CPU backend) on the same files.
//!
//! Each figure comes from a separate process, because a process can keep memory that it once
//! touched.

use std::process::Command;

use serde::Serialize;
use souk_devices_bench::models::ModelTime;

use super::models::parse_model_spec;
use crate::args::ModelSetArgs;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};

/// Runs in each process: the second run reuses the memory of the first.
const RUNS: &str = "3";

/// The peaks of souk and of rten.
#[derive(Serialize)]
struct MemoryPeaks {
    model: String,
    threads: usize,
    peak_bytes: u64,
    /// `None` if rten lacks an operator of the model.
    alone_peak_bytes: Option<u64>,
    ratio: Option<f64>,
}

/// Measures each model twice: with souk, then with rten alone.
pub fn run(output: Output, args: &ModelSetArgs) -> Outcome {
    for model in &args.models {
        let own = measure_peak(args, model, false)?;
        let alone = measure_peak(args, model, true).ok();
        let peaks = MemoryPeaks {
            model: model.clone(),
            threads: args.threads.get(),
            peak_bytes: own,
            alone_peak_bytes: alone,
            ratio: alone.map(|alone| own as f64 / alone as f64),
        };
        match output {
            Output::Json => show::print_json(&peaks),
            Output::Text => print_peaks(&peaks),
        }
    }
    Ok(())
}

/// Returns the peak memory of a process that runs a model.
fn measure_peak(args: &ModelSetArgs, model: &str, alone: bool) -> Result<u64, Failure> {
    let unexpected = |cause: String| {
        let fix = "run `souk bench models` on it by itself";
        Failure::new(Kind::Unexpected, format!("{model}: {cause}"), fix)
    };
    let (file, sizes) = parse_model_spec(model)?;
    let souk = std::env::current_exe().map_err(|error| unexpected(error.to_string()))?;
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let mut command = Command::new(souk);
    command.args(["--json", "bench", "models", "--runs", RUNS]);
    command.arg("--threads").arg(args.threads.to_string());
    command.arg(file);
    if !sizes.is_empty() {
        command.arg("--sizes").arg(sizes.join(","));
    }
    if alone {
        command.arg("--rten-only");
    }
    let ended = command
        .output()
        .map_err(|error| unexpected(error.to_string()))?;
    if !ended.status.success() {
        return Err(unexpected(failure_cause(&ended)));
    }
    let time: ModelTime = serde_json::from_slice(&ended.stdout)
        .map_err(|error| unexpected(format!("no figures: {error}")))?;
    let unknown = "this system does not report the peak of memory";
    time.memory_peak_bytes
        .ok_or_else(|| unexpected(unknown.to_owned()))
}

/// Returns why a process failed: the cause in its JSON result, or else its standard error.
fn failure_cause(ended: &std::process::Output) -> String {
    let told: Option<serde_json::Value> = serde_json::from_slice(&ended.stdout).ok();
    let cause = told.and_then(|told| Some(told["error"]["cause"].as_str()?.to_owned()));
    cause.unwrap_or_else(|| String::from_utf8_lossy(&ended.stderr).trim().to_owned())
}

fn print_peaks(peaks: &MemoryPeaks) {
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let alone = match (peaks.alone_peak_bytes, peaks.ratio) {
        (Some(alone), Some(ratio)) => {
            format!("rten alone {}, ratio {ratio:.2}", megabytes(alone))
        }
        _ => "rten alone cannot run it".to_owned(),
    };
    let (model, own) = (&peaks.model, megabytes(peaks.peak_bytes));
    print_line(&format!("{model}: peak {own}, {alone}"));
}
