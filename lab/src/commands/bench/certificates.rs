//! `souk bench certificates`: measures how soon validators certify what they committed, what
//! cosigning costs, and how fast a log is audited.

use std::time::Duration;

use serde_json::json;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::folder::create_temp_folder;
use souk_cli::options::Output;
use souk_cli::program::{program_path, souk_path};
use souk_cli::show::{self, print_line};
use souk_cli::stop;

use crate::args::CertificatesArgs;
use crate::certificate_bench::{
    CertificateReport, CosigningCost, measure_certificates, measure_cosigning,
};
use crate::consensus_bench::{Bench, Signing};
use crate::lease_bench::LeaseConfig;
use crate::scratch_market::run_until_stopped;

/// The size of a command in bytes while the rate is measured.
const COMMAND_BYTES: usize = 256;

/// Measures certificates in a market, then the rate of signed commands, and shows both.
pub async fn run(output: Output, args: &CertificatesArgs) -> Outcome {
    let stops = stop::Requests::new();
    let scratch = create_temp_folder("souk-bench-")?;
    let market = LeaseConfig {
        validators: args.validators,
        pairs: args.pairs,
        streams: args.streams,
        length: Duration::from_secs(args.seconds),
    };
    let bench = Bench {
        nodes: u64::from(args.validators),
        clients: args.clients,
        size_bytes: COMMAND_BYTES,
        seconds: args.seconds,
        signed: Signing::Each,
        is_cosigned: false,
        folder: scratch.path().join("replicas"),
        program: (program_path()?, vec!["bench".to_owned(), "node".to_owned()]),
    };
    let souk = souk_path()?;
    let test = async {
        let folder = scratch.path().join("market");
        let certificates = measure_certificates(&souk, &folder, market).await?;
        let cosigning = measure_cosigning(&bench, args.rounds).await?;
        Ok((certificates, cosigning))
    };
    let measured = run_until_stopped(
        stops,
        test,
        |error: crate::certificate_bench::CertificateError| {
            Failure::new(Kind::Unexpected, error, "try fewer pairs on this machine")
        },
    );
    let (certificates, cosigning) = measured.await?;
    match output {
        Output::Json => show::print_json(&json!({
            "certificates": certificates, "cosigning": cosigning,
        })),
        Output::Text => print_report(&certificates, &cosigning),
    }
    Ok(())
}

fn print_report(found: &CertificateReport, cost: &CosigningCost) {
    print_line(&format!(
        "certificates  {} validators, {} settlements: certified {:.0} ms (p50) and {:.0} ms (p99) \
         after the answer; goal 300 ms (p99)",
        found.validators, found.certified, found.certificate.p50_ms, found.certificate.p99_ms,
    ));
    print_line(&format!(
        "load          {} signed commands, {:.0} a second",
        found.commands, found.commands_per_second,
    ));
    print_line(&format!(
        "audit         {} commands of one log in {:.2} s of a core: {:.0} a second; goal 60000",
        found.audited, found.audit_core_seconds, found.audited_per_second,
    ));
    let rates = |rates: &[f64]| {
        let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        rates.join(", ")
    };
    print_line(&format!(
        "cosigning     {} signed commands a second without, {} with it: {:.3} of the rate; goal \
         0.95",
        rates(&cost.without),
        rates(&cost.with),
        cost.ratio,
    ));
}
