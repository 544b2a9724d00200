//! `souk testnet chaos`: faults on real processes under a stream of jobs.

use std::time::Duration;

use souk_testnet::chaos::{self, ChaosError, Config, Report};

use crate::args::{ChaosArgs, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, say};

/// Brings a market up in a folder of its own, plays the faults, and says what held.
pub async fn run(output: Output, args: &ChaosArgs) -> Outcome {
    let length = Duration::try_from_secs_f64(args.minutes * 60.0).map_err(|error| {
        let cause = format!("--minutes {} is no time: {error}", args.minutes);
        Failure::new(Kind::Input, cause, "give minutes from 0")
    })?;
    let folder = tempfile::Builder::new()
        .prefix("souk-chaos")
        .tempdir()
        .map_err(|error| {
            let cause = format!("cannot make a folder: {error}");
            Failure::new(
                Kind::State,
                cause,
                "check the space left for temporary files",
            )
        })?;
    let config = Config {
        seed: args.seed,
        length,
        per_hour: args.per_hour,
        namespaces: args.netns,
        buyers: args.buyers,
    };
    let binary = super::testnet::binary()?;
    let report = chaos::run(&binary, folder.path(), &config)
        .await
        .map_err(from_chaos)?;
    match output {
        Output::Json => show::json(&report),
        Output::Text => print(&report),
    }
    if report.violations.is_empty() {
        return Ok(());
    }
    // What the nodes wrote is looked at by whoever finds out why.
    let kept = folder.keep();
    let cause = format!(
        "{} promise(s) broken by seed {}",
        report.violations.len(),
        report.seed
    );
    Err(Failure::new(
        Kind::Verification,
        cause,
        format!("its folder is {}", kept.display()),
    ))
}

fn print(report: &Report) {
    let jobs = &report.jobs;
    say(&format!(
        "seed {}: {} faults in {} s, {} jobs submitted, {} finished, {} wrong though checked, {} \
         deceived unchecked, {} times went on without a provider, the longest took {} ms",
        report.seed,
        report.faults.len(),
        report.seconds,
        jobs.submitted,
        jobs.finished,
        jobs.wrong,
        jobs.deceived,
        jobs.survived,
        jobs.longest_ms,
    ));
    for (reason, count) in &jobs.ended {
        say(&format!("  {count} ended: {reason}"));
    }
    for violation in &report.violations {
        say(&format!("  broken: {violation}"));
    }
    if report.violations.is_empty() {
        say(&format!("  everything held in {} checks", report.checks));
    }
}

pub fn from_chaos(error: ChaosError) -> Failure {
    let (kind, hint) = match error {
        ChaosError::Hosts(_) => (Kind::State, "run it as root, or without --netns"),
        ChaosError::Load(_) => (
            Kind::Job,
            "the market did not come up; try `souk testnet up`",
        ),
        _ => (Kind::Unexpected, "the nodes' logs say more"),
    };
    Failure::new(kind, error, hint)
}
