//! `souk testnet chaos`: faults on real processes under a stream of jobs.

use souk_testnet::chaos::{self, ChaosConfig, ChaosError, ChaosReport};

use crate::args::{ChaosArgs, Output};
use crate::commands::trial;
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, say};
use crate::stop;

/// Brings a market up in a folder of its own, plays the faults, and says what held.
pub async fn run(output: Output, args: &ChaosArgs) -> Outcome {
    let length = trial::length(args.minutes)?;
    let folder = trial::folder("souk-chaos")?;
    let config = ChaosConfig {
        seed: args.seed,
        length,
        per_hour: args.per_hour,
        namespaces: args.netns,
        buyers: args.buyers,
    };
    let binary = crate::commands::testnet::binary()?;
    let report = chaos::run(&binary, folder.path(), &config, stop::asked())
        .await
        .map_err(from_chaos)?;
    match output {
        Output::Json => show::json(&report),
        Output::Text => print(&report),
    }
    trial::verdict(folder, report.seed, &report.violations)
}

fn print(report: &ChaosReport) {
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
        ChaosError::Interrupted => (Kind::Interrupted, ""),
        ChaosError::Load(_) => (
            Kind::Job,
            "the market did not come up; try `souk testnet up`",
        ),
        _ => (Kind::Unexpected, "the nodes' logs say more"),
    };
    Failure::new(kind, error, hint)
}
