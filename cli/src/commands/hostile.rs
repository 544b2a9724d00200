//! `souk testnet hostile`: hostile peers against real processes, and what held.

use std::time::Duration;

use souk_testnet::hostile::{self, Config, Report};

use super::chaos::from_chaos;
use crate::args::{HostileArgs, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, say};

/// Brings a market up in a folder of its own, attacks it, and says what held.
pub async fn run(output: Output, args: &HostileArgs) -> Outcome {
    let length = Duration::try_from_secs_f64(args.minutes * 60.0).map_err(|error| {
        let cause = format!("--minutes {} is no time: {error}", args.minutes);
        Failure::new(Kind::Input, cause, "give minutes from 0")
    })?;
    let folder = tempfile::Builder::new().prefix("souk-hostile").tempdir();
    let folder = folder.map_err(|error| {
        let cause = format!("cannot make a folder: {error}");
        let hint = "check the space left for temporary files";
        Failure::new(Kind::State, cause, hint)
    })?;
    let config = Config {
        seed: args.seed,
        length,
        buyers: args.buyers,
    };
    let binary = super::testnet::binary()?;
    let report = hostile::run(&binary, folder.path(), &config)
        .await
        .map_err(from_chaos)?;
    match output {
        Output::Json => show::json(&report),
        Output::Text => print(&report),
    }
    if report.violations.is_empty() {
        return Ok(());
    }
    let kept = folder.keep();
    let count = report.violations.len();
    let cause = format!("{count} promise(s) broken by seed {}", report.seed);
    let hint = format!("its folder is {}", kept.display());
    Err(Failure::new(Kind::Verification, cause, hint))
}

fn print(report: &Report) {
    let runs = [
        ("before", &report.before),
        ("under attack", &report.under),
        ("after", &report.after),
    ];
    for (when, run) in runs {
        say(&format!(
            "{when}: {:.1} jobs/s over {:.0} s, {} finished of {}, {} wrong, the longest {} ms",
            run.per_second,
            run.seconds,
            run.jobs.finished,
            run.jobs.submitted,
            run.jobs.wrong,
            run.jobs.longest_ms,
        ));
    }
    for done in &report.attacks {
        say(&format!(
            "  {:?}: {} acts, {} refused, {} identities",
            done.attack, done.acts, done.refused, done.identities
        ));
    }
    for node in &report.nodes {
        say(&format!(
            "  {}: {} MiB before, {} at most, {} after, {:.2} processors",
            node.node,
            node.memory_mib_before,
            node.memory_mib_max,
            node.memory_mib_after,
            node.processors
        ));
    }
    say(&format!("  {} peers are kept out", report.kept_out));
    for violation in &report.violations {
        say(&format!("  broken: {violation}"));
    }
}
