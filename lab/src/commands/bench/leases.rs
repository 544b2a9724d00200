//! `souk bench leases`: counts the leases per second of a market of real validators.

use std::time::Duration;

use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::folder::create_temp_folder;
use souk_cli::options::Output;
use souk_cli::program::souk_path;
use souk_cli::show::{self, print_line};
use souk_cli::stop;

use crate::args::LeaseBenchArgs;
use crate::lease_bench::{self, LeaseConfig};
use crate::scratch_market::run_until_stopped;

/// Starts a market, trades in it, and shows the rate and the times of leases.
pub async fn run(output: Output, args: &LeaseBenchArgs) -> Outcome {
    let stops = stop::Requests::new();
    let scratch = create_temp_folder("souk-bench-")?;
    let config = LeaseConfig {
        validators: args.validators,
        pairs: args.pairs,
        streams: args.streams,
        length: Duration::from_secs(args.seconds),
    };
    let program = souk_path()?;
    let test = lease_bench::run(&program, scratch.path(), config);
    let report = run_until_stopped(stops, test, |error| {
        Failure::new(Kind::Unexpected, error, "try fewer pairs on this machine")
    });
    let report = report.await?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_line(&format!(
            "{} validators: {} leases in {:.1} s, {:.0} per second; from bid to receipt p50 {:.1} \
             ms, p99 {:.1} ms",
            report.validators,
            report.leases,
            report.seconds,
            report.leases_per_second,
            report.lease.p50_ms,
            report.lease.p99_ms,
        )),
    }
    Ok(())
}
