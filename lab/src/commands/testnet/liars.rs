//! `souk testnet liars`: makes one of four validators lie in each way that the protocol allows, and
//! reports which lies the clients detected and could prove.

use crate::args::LiarsArgs;
use crate::liars::{self, LiarsError, LiarsReport, LieReport, Verdict};
use crate::scratch_market;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};
use souk_cli::stop;

/// Starts a market of four validators in a temporary folder, has one of them lie, and reports which
/// lies named it.
pub async fn run(output: Output, args: &LiarsArgs) -> Outcome {
    let stops = stop::Requests::new();
    let folder = souk_cli::folder::create_temp_folder("souk-liars")?;
    let binary = souk_cli::program::souk_path()?;
    let market = folder.path().join("market");
    let out = folder.path().join("lies");
    let out = args.folder.as_deref().unwrap_or(&out);
    let test = liars::run(&binary, &market, out);
    let report = scratch_market::run_until_stopped(stops, test, from_liars).await?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_report(&report),
    }
    scratch_market::check_violations(folder, 0, &report.violations)
}

fn print_report(report: &LiarsReport) {
    for lie in &report.lies {
        print_line(&describe_lie(lie));
    }
    for violation in &report.violations {
        print_line(&format!("broken: {violation}"));
    }
}

fn describe_lie(lie: &LieReport) -> String {
    let files = lie.evidence.iter().map(|path| path.display().to_string());
    let files: Vec<String> = files.collect();
    let what = match lie.verdict {
        Verdict::Convicted => format!("convicts validator 4 by {}", files.join(" and ")),
        Verdict::Suspected => "contradicts what is certified; validator 4 is named".to_owned(),
        Verdict::Seen => "is seen by each client, and believed by none".to_owned(),
        Verdict::Outvoted => "has no effect on what is certified".to_owned(),
    };
    format!("{:<19} {what}", lie.lie.name())
}

fn from_liars(error: LiarsError) -> Failure {
    let (kind, hint) = match error {
        LiarsError::Layout(_) | LiarsError::System { .. } => {
            (Kind::State, "name a folder that you can write with -o")
        }
        _ => (Kind::Unexpected, "try again on a less busy machine"),
    };
    Failure::new(kind, error, hint)
}
