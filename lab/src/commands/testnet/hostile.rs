//! `souk testnet hostile`: attacks a market of real processes with hostile peers, and reports which
//! guarantees held.

use crate::hostile::{self, HostileConfig, HostileReport};

use super::chaos::from_chaos;
use crate::args::HostileArgs;
use crate::scratch_market;
use souk_cli::failure::Outcome;
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};
use souk_cli::stop;

/// Starts a market in a temporary folder, attacks it, and reports which promises held.
pub async fn run(output: Output, args: &HostileArgs) -> Outcome {
    let length = scratch_market::minutes_to_duration(args.minutes)?;
    let stops = stop::Requests::new();
    let folder = souk_cli::folder::create_temp_folder("souk-hostile")?;
    let config = HostileConfig {
        seed: args.seed,
        length,
        buyers: args.buyers,
    };
    let binary = souk_cli::program::souk_path()?;
    let test = hostile::run(&binary, folder.path(), &config);
    let report = scratch_market::run_until_stopped(stops, test, from_chaos).await?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_report(&report),
    }
    scratch_market::check_violations(folder, report.seed, &report.violations)
}

fn print_report(report: &HostileReport) {
    let runs = [
        ("before", &report.before),
        ("under attack", &report.under),
        ("after", &report.after),
    ];
    for (when, run) in runs {
        print_line(&format!(
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
        print_line(&format!(
            "  {:?}: {} acts, {} refused, {} identities",
            done.attack, done.acts, done.refused, done.identities
        ));
    }
    for node in &report.nodes {
        let runs = [node.before, node.under, node.after];
        let [before, under, after] =
            runs.map(|took| format!("{} MiB {:.2} cpu", took.memory_mib_max, took.processors));
        print_line(&format!(
            "  {}: {before} before, {under} under attack, {after} after",
            node.node
        ));
    }
    print_line(&format!("  {} peers are kept out", report.kept_out));
    for violation in &report.violations {
        print_line(&format!("  broken: {violation}"));
    }
}
