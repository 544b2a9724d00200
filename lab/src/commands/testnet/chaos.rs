//! `souk testnet chaos`: injects faults into real processes under a stream of jobs, or kills nodes
//! of a running testnet.

use std::path::Path;
use std::time::Duration;

use crate::chaos::kills::{self, KillsConfig, KillsError, NodeKill};
use crate::chaos::{self, ChaosConfig, ChaosError, ChaosReport};
use serde_json::json;
use souk_testnet::supervisor;

use crate::args::ChaosArgs;
use crate::scratch_market;
use souk_cli::commands::testnet::from_supervisor;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::folder::connect_broker;
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};
use souk_cli::stop;

/// Hint to the logs of the nodes.
const LOGS_HINT: &str = "`souk testnet logs` shows what the nodes wrote";

/// Starts a market in a temporary folder, injects the faults, and reports which promises held.
pub async fn run(output: Output, args: &ChaosArgs) -> Outcome {
    let length = scratch_market::minutes_to_duration(args.minutes)?;
    let mut stops = stop::Requests::new();
    let folder = souk_cli::folder::create_temp_folder("souk-chaos")?;
    let config = ChaosConfig {
        seed: args.seed,
        length,
        per_hour: args.per_hour,
        namespaces: args.netns,
        buyers: args.buyers,
    };
    let binary = souk_cli::program::souk_path()?;
    let report = chaos::run(&binary, folder.path(), &config, stops.next())
        .await
        .map_err(from_chaos)?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_report(&report),
    }
    scratch_market::check_violations(folder, report.seed, &report.violations)
}

/// Kills nodes of the testnet in `folder` over time, and reports each kill and which promises held.
pub async fn kill_nodes(folder: &Path, output: Output, args: &ChaosArgs) -> Outcome {
    let config = KillsConfig {
        seed: args.seed,
        length: scratch_market::minutes_to_duration(args.minutes)?,
        per_hour: args.per_hour,
        gateway: args.gateway,
    };
    let mut stops = stop::Requests::new();
    supervisor::running_pid(folder).map_err(from_supervisor)?;
    let broker = connect_broker(folder).await?;
    let report = kills::run(folder, &config, &broker, stops.next(), |killed| {
        show::print_result(output, &json!(killed), &killed_text(killed));
    });
    let report = report.await.map_err(from_kills)?;
    let text = format!(
        "seed {}: {} kills in {} s",
        report.seed, report.kills, report.seconds
    );
    show::print_result(output, &json!(report), &text);
    match report.violations.first() {
        None => Ok(()),
        Some(first) => {
            let cause = format!("{} promise(s) broken: {first}", report.violations.len());
            Err(Failure::new(Kind::Verification, cause, LOGS_HINT))
        }
    }
}

fn killed_text(killed: &NodeKill) -> String {
    format!(
        "{:>7.1} s  {:<12} process {} killed, back after {:.1} s",
        Duration::from_millis(killed.at_ms).as_secs_f64(),
        killed.node,
        killed.process,
        Duration::from_millis(killed.away_ms).as_secs_f64(),
    )
}

fn from_kills(error: KillsError) -> Failure {
    match error {
        KillsError::Supervisor(error) => from_supervisor(error),
        KillsError::Control(_) => Failure::new(Kind::Unexpected, error, LOGS_HINT),
        KillsError::Gateway { .. } => {
            let hint = "leave --gateway out, or start the testnet without --no-http";
            Failure::new(Kind::State, error, hint)
        }
    }
}

fn print_report(report: &ChaosReport) {
    let jobs = &report.jobs;
    print_line(&format!(
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
        print_line(&format!("  {count} ended: {reason}"));
    }
    for violation in &report.violations {
        print_line(&format!("  broken: {violation}"));
    }
    if report.violations.is_empty() {
        print_line(&format!("  everything held in {} checks", report.checks));
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
