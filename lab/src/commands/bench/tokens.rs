//! `souk bench tokens`: measures how much time the market adds to the answers of an inference
//! engine, and whether answers survive the loss of providers.

use std::time::Duration;

use crate::token_bench::{self, PathReport, TokenBenchConfig, TokenBenchReport};

use crate::args::TokensBenchArgs;
use crate::scratch_market::run_until_stopped;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::folder::create_temp_folder;
use souk_cli::options::Output;
use souk_cli::program::souk_path;
use souk_cli::show::{self, Table, print_line};
use souk_cli::stop;

/// Starts a market, asks the questions, and shows the times.
pub async fn run(output: Output, args: &TokensBenchArgs) -> Outcome {
    let stops = stop::Requests::new();
    let scratch = create_temp_folder("souk-bench-")?;
    let config = TokenBenchConfig {
        validators: args.validators,
        providers: args.providers,
        rate: args.rate,
        rounds: args.rounds,
        phase: Duration::from_secs(args.seconds),
        questions: args.questions,
        clients: args.clients,
        kills: args.kills,
    };
    let program = souk_path()?;
    let test = token_bench::run(&program, scratch.path(), config);
    let report = run_until_stopped(stops, test, |error| {
        let hint = "try fewer providers on this machine";
        Failure::new(Kind::Unexpected, error, hint)
    });
    let report = report.await?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_report(&report),
    }
    check_report(&report)
}

/// Fails if an answer through the market was not whole.
fn check_report(report: &TokenBenchReport) -> Outcome {
    let lost = |lost: &std::collections::BTreeMap<String, usize>| lost.values().sum::<usize>();
    let lost = lost(&report.through.lost) + lost(&report.kills.lost);
    if lost == 0 {
        return Ok(());
    }
    let cause = format!("{lost} answers through the market were lost");
    let hint = "the report names the causes";
    Err(Failure::new(Kind::Verification, cause, hint))
}

fn print_report(report: &TokenBenchReport) {
    let mut table = Table::new(&["ms", ">answers", ">p50", ">p90", ">p99", ">longest"]);
    let mut add_rows = |name: &str, path: &PathReport| {
        let rows = [
            ("first piece", &path.to_first),
            ("whole answer", &path.to_end),
        ];
        for (part, times) in rows {
            let figures = [times.p50_ms, times.p90_ms, times.p99_ms, times.max_ms];
            let [p50, p90, p99, max] = figures.map(|ms| format!("{ms:.2}"));
            let name = format!("{name}, {part}");
            table.add_row([name, path.whole.to_string(), p50, p90, p99, max]);
        }
    };
    add_rows("engine alone", &report.direct);
    add_rows("through the market", &report.through);
    table.print();
    let (direct, through) = (&report.direct, &report.through);
    print_line(&format!(
        "added       {:.2} ms (p50), {:.2} ms (p99) to the first piece; {:.2} and {:.2} ms in all",
        through.to_first.p50_ms - direct.to_first.p50_ms,
        through.to_first.p99_ms - direct.to_first.p99_ms,
        through.to_end.p50_ms - direct.to_end.p50_ms,
        through.to_end.p99_ms - direct.to_end.p99_ms,
    ));
    print_line(&format!(
        "first tab   {:.1} ms to the first piece, with its purchase",
        report.first_purchase_ms
    ));
    let processor = report
        .server_ms_per_token
        .zip(report.providers_ms_per_token);
    if let Some((server, providers)) = processor {
        print_line(&format!(
            "processor   {server:.3} ms a token in the server, {providers:.3} ms in the providers"
        ));
    }
    let kills = &report.kills;
    print_line(&format!(
        "kills       {} of {} answers whole with {} providers killed; {} continued, longest pause \
         {:.2} s (p50), {:.2} s (most)",
        kills.whole,
        kills.questions,
        kills.kills,
        kills.continued,
        kills.pauses.p50_ms / 1e3,
        kills.pauses.max_ms / 1e3,
    ));
    let paths = [
        ("alone", &direct.lost),
        ("market", &through.lost),
        ("kills", &kills.lost),
    ];
    for (path, lost) in paths {
        for (cause, count) in lost {
            print_line(&format!("  lost {count} ({path}): {cause}"));
        }
    }
}
