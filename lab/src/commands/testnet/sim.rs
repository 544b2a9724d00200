//! `souk testnet sim` and `attacks`: simulates a market with faults from a seed, and tries every
//! way to cheat the other party of a lease.

use serde::Serialize;
use souk_sim::attacks::AttackCost;
use souk_sim::{COVERAGE_SEEDS_MIN, Config, Report, Sums};

use crate::args::SimArgs;
use crate::engine_attacks::{EngineTrial, play_engine_attacks, trial_rows};
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, Table, print_line};

/// What was found of an attack, as JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Finding<'a> {
    /// Of one on a lease.
    Cost(&'a AttackCost),
    /// Of one on an inference engine.
    Trial(&'a EngineTrial),
}

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

/// Plays all attacks on a lease and on an inference engine, and reports what each costs, or how
/// often it succeeded. An attack on an engine must not succeed.
pub fn play_attacks(output: Output) -> Outcome {
    let mut costs = souk_sim::attacks::search_attacks();
    costs.extend(souk_sim::attacks::tabs::play_tabs());
    costs.extend(souk_sim::attacks::unpaid_answers::play_unpaid_answers());
    costs.extend(souk_sim::attacks::cheap_models::play_cheap_models());
    costs.extend(souk_sim::attacks::training::play_workers());
    let trials = play_engine_attacks();
    let trials = trials.map_err(|error| {
        let hint = "see that this machine has a free port and a folder for temporary files";
        Failure::new(Kind::Unexpected, error.to_string(), hint)
    })?;
    match output {
        Output::Json => {
            let costs = costs.iter().map(Finding::Cost);
            let findings = costs.chain(trials.iter().map(Finding::Trial));
            show::print_json(&findings.collect::<Vec<Finding<'_>>>());
        }
        Output::Text => print_attacks(&costs, &trials),
    }
    let passed: Vec<&str> = trials
        .iter()
        .filter(|trial| trial.passed > 0)
        .map(|trial| trial.attack)
        .collect();
    match passed.is_empty() {
        true => Ok(()),
        false => {
            let cause = format!("an attack on an engine succeeded: {}", passed.join("; "));
            let hint = "this is a fault of souk: please report it";
            Err(Failure::new(Kind::Verification, cause, hint))
        }
    }
}

fn print_attacks(costs: &[AttackCost], trials: &[EngineTrial]) {
    let mut table = Table::new(&["attack", ">planned s", ">lost s", ">costs s", ">reputation"]);
    for row in souk_sim::attacks::table_rows(costs) {
        table.add_row(row);
    }
    table.print();
    print_line(
        "seconds of the device, at the price of the lease: what the honest side loses at most, and \
         what that costs the other",
    );
    let mut table = Table::new(&["attack on an engine", ">tried", ">passed"]);
    for row in trial_rows(trials) {
        table.add_row(row);
    }
    table.print();
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
