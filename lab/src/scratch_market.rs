//! Functions that the commands share that test a temporary market. They run the test until it is
//! done or the user stops it; if the market broke a guarantee, the command fails and keeps the
//! market's folder.

use std::time::Duration;

use tempfile::TempDir;

use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::stop;

/// Converts minutes, which must not be negative, to a duration.
pub fn minutes_to_duration(minutes: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| {
        let cause = format!("--minutes {minutes} is not a time: {error}");
        Failure::new(Kind::Input, cause, "give minutes from 0")
    })
}

/// Runs a test of a temporary market until it is done or the user stops it. It then drops the test,
/// which kills the market's nodes.
pub async fn run_until_stopped<T, E>(
    mut stops: stop::Requests,
    test: impl Future<Output = Result<T, E>>,
    from_error: impl FnOnce(E) -> Failure,
) -> Result<T, Failure> {
    tokio::select! {
        done = test => done.map_err(from_error),
        () = stops.next() => Err(Failure::new(Kind::Interrupted, "interrupted", "")),
    }
}

/// Fails if a promise was broken, and then keeps the folder with the nodes' logs for analysis.
pub fn check_violations(folder: TempDir, seed: u64, violations: &[String]) -> Outcome {
    if violations.is_empty() {
        return Ok(());
    }
    let count = violations.len();
    let cause = format!("{count} promise(s) broken by seed {seed}");
    let hint = format!("its folder is {}", folder.keep().display());
    Err(Failure::new(Kind::Verification, cause, hint))
}
