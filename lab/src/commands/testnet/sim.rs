//! `souk testnet sim` and `attacks`: simulates a market with faults from a seed, and tries every
//! way to cheat the other party of a lease.

use souk_sim::{COVERAGE_SEEDS_MIN, Config, Report, Sums};

use crate::args::SimArgs;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, Table, print_line};

/// Simulates one seed after another, and stops at the first that breaks a promise. There must be at
/// least three nodes, to lose one and go on.
pub fn run(output: Output, args: &SimArgs) -> Outcome {
    if args.nodes < 3 {
        let cause = format!("{} nodes cannot lose one and go on", args.nodes);
        return Err(Failure::new(Kind::Input, cause, "give --nodes 3 or more"));
    }
    let mut sums = Sums::default();
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let config = Config {
            nodes: args.nodes,
            commands_per_second: args.commands,
            faults: args.faults.as_ref().map(|chosen| chosen.0.clone()),
            ..Config::new(seed, args.minutes)
        };
        let report = souk_sim::run(&config);
        sums.add(&report.counts);
        match output {
            Output::Json => show::print_json(&report),
            Output::Text => print_report(&report),
        }
        if let Some(failure) = report.failure {
            let cause = format!("seed {seed} breaks a promise: {:?}", failure.violation);
            return Err(Failure::new(Kind::Verification, cause, failure.replay));
        }
    }
    let never = sums.missing_events();
    if !never.is_empty() && args.faults.is_none() {
        let cause = format!("never seen in {} seeds: {}", args.seeds, never.join(", "));
        let hint = format!("{COVERAGE_SEEDS_MIN} seeds and more must show all that is counted");
        return Err(Failure::new(Kind::Verification, cause, hint));
    }
    Ok(())
}

/// Plays all attacks on a lease and reports their cost.
pub fn play_attacks(output: Output) {
    let mut costs = souk_sim::attacks::search_attacks();
    costs.extend(souk_sim::attacks::tabs::play_tabs());
    costs.extend(souk_sim::attacks::training::play_workers());
    if let Output::Json = output {
        return show::print_json(&costs);
    }
    let mut table = Table::new(&["attack", ">planned s", ">lost s", ">costs s", ">reputation"]);
    for row in souk_sim::attacks::table_rows(&costs) {
        table.add_row(row);
    }
    table.print();
    print_line(
        "seconds of the device, at the price of the lease: what the honest side loses at most, and \
         what that costs the other",
    );
}

fn print_report(report: &Report) {
    let counts = &report.counts;
    print_line(&format!(
        "seed {}: {:.1} simulated minutes, {} replicas, {} batches acknowledged, {} commands \
         applied, {} elections, {} crashes, history {}",
        report.seed,
        counts.simulated_ms as f64 / 60_000.0,
        report.nodes,
        counts.acknowledged,
        counts.applied,
        counts.elections,
        counts.crashes,
        show::short_id(&report.history),
    ));
    for fault in report.failure.iter().flat_map(|failure| &failure.schedule) {
        print_line(&format!("  {fault:?}"));
    }
}
