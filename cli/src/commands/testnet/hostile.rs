//! `souk testnet hostile`: attacks real processes with hostile peers.

use souk_testnet::hostile::{self, HostileConfig, HostileReport};

use super::chaos::from_chaos;
use crate::args::{HostileArgs, Output};
use crate::commands::trial;
use crate::failure::Outcome;
use crate::show::{self, say};

/// Starts a market in a temporary folder, attacks it, and reports which promises held.
pub async fn run(output: Output, args: &HostileArgs) -> Outcome {
    let length = trial::length(args.minutes)?;
    let folder = trial::folder("souk-hostile")?;
    let config = HostileConfig {
        seed: args.seed,
        length,
        buyers: args.buyers,
    };
    let binary = crate::commands::testnet::binary()?;
    let report = hostile::run(&binary, folder.path(), &config)
        .await
        .map_err(from_chaos)?;
    match output {
        Output::Json => show::json(&report),
        Output::Text => print(&report),
    }
    trial::verdict(folder, report.seed, &report.violations)
}

fn print(report: &HostileReport) {
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
        let runs = [node.before, node.under, node.after];
        let [before, under, after] =
            runs.map(|took| format!("{} MiB {:.2} cpu", took.memory_mib_max, took.processors));
        say(&format!(
            "  {}: {before} before, {under} under attack, {after} after",
            node.node
        ));
    }
    say(&format!("  {} peers are kept out", report.kept_out));
    for violation in &report.violations {
        say(&format!("  broken: {violation}"));
    }
}
