//! `souk testnet sim`: a market with faults, simulated from a seed.

use souk_sim::{Config, Report};

use crate::args::{Output, SimArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, say};

/// Simulates one seed after another, and stops at the first that breaks a promise.
pub fn run(output: Output, args: &SimArgs) -> Outcome {
    if args.nodes < 3 {
        let cause = format!("{} nodes cannot lose one and go on", args.nodes);
        return Err(Failure::new(Kind::Input, cause, "give --nodes 3 or more"));
    }
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let config = Config {
            nodes: args.nodes,
            commands_per_second: args.commands,
            faults: args.faults.as_ref().map(|chosen| chosen.0.clone()),
            bug: args.bug,
            ..Config::new(seed, args.minutes)
        };
        let report = souk_sim::run(&config);
        match output {
            Output::Json => show::json(&report),
            Output::Text => print(&report),
        }
        if let Some(failure) = report.failure {
            let cause = format!("seed {seed} breaks a promise: {:?}", failure.violation);
            return Err(Failure::new(Kind::Verification, cause, failure.replay));
        }
    }
    Ok(())
}

fn print(report: &Report) {
    let counts = &report.counts;
    say(&format!(
        "seed {}: {:.1} simulated minutes, {} replicas, {} batches acknowledged, {} commands \
         applied, {} elections, {} crashes, history {}",
        report.seed,
        counts.simulated_ms as f64 / 60_000.0,
        report.nodes,
        counts.acknowledged,
        counts.applied,
        counts.elections,
        counts.crashes,
        show::short(&report.history),
    ));
    for fault in report.failure.iter().flat_map(|failure| &failure.schedule) {
        say(&format!("  {fault:?}"));
    }
}
