//! `souk bench market --readers N`: measures how much many readers (open dashboards) slow down the
//! commits of a market.

use crate::readers::{self, ReadingShape, Round};
use serde_json::json;

use crate::args::MarketBenchArgs;
use crate::scratch_market::run_until_stopped;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::folder::create_temp_folder;
use souk_cli::options::Output;
use souk_cli::program::souk_path;
use souk_cli::show::{self, Table, print_line};
use souk_cli::stop;

/// Starts a market, runs readers against it, and shows the time of its commits with and without
/// readers.
pub async fn run(output: Output, args: &MarketBenchArgs) -> Outcome {
    let stops = stop::Requests::new();
    let scratch = create_temp_folder("souk-bench-")?;
    let shape = ReadingShape {
        readers: args.readers,
        closed_leases: args.closed_leases,
        validators: args.validators,
        rounds: args.rounds,
        seconds: args.seconds,
    };
    let program = souk_path()?;
    let test = readers::run(&program, scratch.path(), shape);
    let rounds = run_until_stopped(stops, test, |error| {
        Failure::new(Kind::Unexpected, error, "try fewer readers on this machine")
    });
    let rounds = rounds.await?;
    let (without, with): (Vec<Round>, Vec<Round>) =
        rounds.iter().partition(|round| round.readers == 0);
    let median = |of: fn(&Round) -> f64, rounds: &[Round]| {
        let mut figures: Vec<f64> = rounds.iter().map(of).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    let ratio = |of| median(of, &with) / median(of, &without);
    let (p50, p99) = (
        ratio(|round| round.commit.p50_ms),
        ratio(|round| round.commit.p99_ms),
    );
    let core = median(|round| round.core, &with) - median(|round| round.core, &without);
    match output {
        Output::Json => show::print_json(&json!({
            "rounds": rounds, "p50_ratio": p50, "p99_ratio": p99, "core": core,
        })),
        Output::Text => {
            print_rounds(&rounds);
            print_line(&format!(
                "medians: p50 {:.2} times and p99 {:.2} times what they are without; the busiest \
                 validator takes {:.0} % of a core more",
                p50,
                p99,
                core * 100.0,
            ));
        }
    }
    Ok(())
}

fn print_rounds(rounds: &[Round]) {
    let mut table = Table::new(&[
        ">readers", ">commits", ">p50 ms", ">p99 ms", ">answers", ">core",
    ]);
    for round in rounds {
        table.add_row([
            round.readers.to_string(),
            round.commits.to_string(),
            format!("{:.2}", round.commit.p50_ms),
            format!("{:.2}", round.commit.p99_ms),
            round.answers.to_string(),
            format!("{:.2}", round.core),
        ]);
    }
    table.print();
}
