//! `souk bench submit`: measures how long each step of a small job takes, from its submission to
//! its output, in a market of real processes.

use souk_folder::config::Isolation;

use crate::submissions::{self, STEPS, SubmissionConfig, SubmissionReport, TimePercentiles};

use crate::args::SubmitBenchArgs;
use crate::scratch_market::run_until_stopped;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::folder::create_temp_folder;
use souk_cli::options::Output;
use souk_cli::program::souk_path;
use souk_cli::show::{self, Table, print_line};
use souk_cli::stop;

/// Starts a market, runs the jobs, and shows their times.
pub async fn run(output: Output, args: &SubmitBenchArgs) -> Outcome {
    let stops = stop::Requests::new();
    let scratch = create_temp_folder("souk-bench-")?;
    let shape = SubmissionConfig {
        validators: args.validators,
        providers: args.providers,
        buyers: args.buyers,
        jobs: args.jobs,
        isolation: match args.no_isolation {
            true => Isolation::None,
            false => Isolation::strongest_supported(),
        },
    };
    let program = souk_path()?;
    let test = submissions::run(&program, scratch.path(), shape);
    let report = run_until_stopped(stops, test, |error| {
        let hint = "try fewer providers on this machine";
        Failure::new(Kind::Unexpected, error, hint)
    });
    let report = report.await?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_report(&report),
    }
    if report.lost.is_empty() {
        return Ok(());
    }
    let lost: usize = report.lost.values().sum();
    let cause = format!("{lost} of {} jobs were lost", report.jobs);
    Err(Failure::new(
        Kind::Job,
        cause,
        "the reasons are named above",
    ))
}

fn print_report(report: &SubmissionReport) {
    print_line(&format!(
        "{} of {} jobs in {:.1} s, {:.1} per second; {} failed attempts",
        report.finished, report.jobs, report.seconds, report.jobs_per_second, report.retries,
    ));
    for (reason, count) in &report.lost {
        print_line(&format!("  lost {count}: {reason}"));
    }
    let mut table = Table::new(&["ms", ">p50", ">p90", ">p99", ">longest"]);
    let mut row = |name: &str, spread: &TimePercentiles| {
        let text = |ms: f64| format!("{ms:.1}");
        let figures = [spread.p50_ms, spread.p90_ms, spread.p99_ms, spread.max_ms].map(text);
        let [p50, p90, p99, max] = figures;
        table.add_row([name.to_owned(), p50, p90, p99, max]);
    };
    row("to output", &report.to_output);
    for step in STEPS {
        row(&format!("  {step}"), &report.steps[step]);
    }
    row("to settlement", &report.to_settlement);
    table.print();
}
