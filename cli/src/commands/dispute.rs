//! `souk dispute …`: accuses a provider of a wrong output, and shows disputes.

use std::path::Path;

use serde_json::json;
use souk_node::buyer::Journal;
use souk_node::buyer::accusation::{AccusationError, Evidence};
use souk_node::buyer::exact_model::ExactModelError;
use souk_node::buyer::journal::Record;
use souk_node::market::{Dispute as Opened, DisputeState, JobId, Receipt, Verdict};

use super::account::from_trade;
use super::job::decode_command;
use super::submit::{self, JOBS_FOLDER};
use crate::args::{Dispute, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{connect_broker, join_as_buyer, unreachable_market};
use crate::{files, show};

/// Runs a command on disputes.
pub async fn run(folder: &Path, output: Output, command: &Dispute) -> Outcome {
    match command {
        Dispute::Open { receipt, unchecked } => {
            open_dispute(folder, output, receipt, *unchecked).await
        }
        Dispute::Check { receipt } => check_receipt(folder, output, receipt).await,
        Dispute::List => list_disputes(folder, output).await,
        Dispute::Show { dispute } => show_dispute(folder, output, *dispute).await,
    }
}

/// Accuses the provider of a receipt, and waits for the verdict.
async fn open_dispute(folder: &Path, output: Output, file: &Path, unchecked: bool) -> Outcome {
    let (receipt, evidence) = read_evidence(folder, file)?;
    if !unchecked {
        check_accusation(&receipt, &evidence).await?;
    }
    let buyer = join_as_buyer(folder).await?;
    let notice = |dispute: &Opened| {
        if output == Output::Text {
            show::print_notice(&show::dispute::describe_progress(dispute));
        }
    };
    let decided = buyer.accuse_provider(receipt, evidence, notice).await;
    let decided = decided.map_err(from_accusation)?;
    print_dispute(output, &decided);
    let (id, bond) = (decided.id, show::format_credits(decided.bond.0));
    match decided.state {
        DisputeState::Innocent { .. } => Err(Failure::new(
            Kind::Verification,
            format!(
                "dispute {id}: the provider's outputs are right, and it has your bond of {bond}"
            ),
            "accuse only after you computed the job on another exact device",
        )),
        DisputeState::Undecided { .. } => Err(Failure::new(
            Kind::Network,
            format!("dispute {id}: too few validators agreed in time; your bond is back"),
            "see with `souk market verify` who answers, and try again",
        )),
        DisputeState::Open { .. } | DisputeState::Guilty { .. } => Ok(()),
    }
}

/// Refuses an accusation that this machine's own result refutes.
async fn check_accusation(receipt: &Receipt, evidence: &Evidence) -> Outcome {
    let verdict = evidence.judge_receipt(receipt).await.map_err(|error| {
        let cause = format!("this machine cannot compute the work again: {error}");
        let hint = "nothing was sent; --unchecked accuses without knowing, and risks your bond";
        Failure::new(Kind::Unexpected, cause, hint)
    })?;
    let fault = match verdict {
        Some(Verdict::Guilty) => return Ok(()),
        Some(Verdict::Innocent) => "the provider's outputs are right",
        None => "the receipt names some of the right outputs only, which convicts nobody",
    };
    Err(Failure::new(
        Kind::Verification,
        format!("this machine computed the work again: {fault}"),
        "nothing was sent; an accusation would cost your bond (--unchecked accuses nevertheless)",
    ))
}

/// Computes the work of a receipt again on this machine.
async fn check_receipt(folder: &Path, output: Output, file: &Path) -> Outcome {
    let (receipt, evidence) = read_evidence(folder, file)?;
    let judged = evidence.judge_receipt(&receipt).await;
    let verdict = judged.map_err(submit::audit::from_check)?;
    let runs = receipt.body.inputs.len();
    match verdict {
        Some(Verdict::Innocent) => {}
        Some(Verdict::Guilty) => {
            return Err(Failure::new(
                Kind::Verification,
                format!(
                    "provider {} signed an output that exact-1 does not give",
                    receipt.body.provider
                ),
                format!("accuse it: souk dispute open {}", file.display()),
            ));
        }
        None => {
            return Err(Failure::new(
                Kind::Verification,
                "the receipt names some of the right outputs only",
                "validators give no verdict on it; compare the answers in their files",
            ));
        }
    }
    match output {
        Output::Json => show::print_json(&json!({ "outputs": "right", "runs": runs })),
        Output::Text if runs == 1 => {
            show::print_line("right: this machine computes the outputs that the provider signed");
        }
        Output::Text => show::print_line(&format!(
            "right: {runs} runs on this machine give the outputs that the provider signed"
        )),
    }
    Ok(())
}

/// Reads a receipt that its provider signed, and rebuilds what it ran.
fn read_evidence(folder: &Path, file: &Path) -> Result<(Receipt, Evidence), Failure> {
    let receipt = files::read_receipt(file)?;
    receipt.verify_provider().map_err(|fault| {
        let cause = format!("{}: {fault}", file.display());
        let hint = "only what a provider signed is evidence against it";
        Failure::new(Kind::Verification, cause, hint)
    })?;
    let evidence = gather_evidence(folder, file, &receipt)?;
    Ok((receipt, evidence))
}

/// Rebuilds what the provider ran from the job's files.
fn gather_evidence(folder: &Path, file: &Path, receipt: &Receipt) -> Result<Evidence, Failure> {
    let record = find_record(folder, receipt.body.job).ok_or_else(|| {
        let cause = format!("{}: its job is not one of this folder's", file.display());
        let hint = "name the folder that submitted it with --dir; souk keeps its last 256 jobs";
        Failure::new(Kind::State, cause, hint)
    })?;
    let args = decode_command(&record)?;
    let (requests, job) = submit::read_request_files(&args)?;
    Evidence::gather(&job, receipt, requests.all_inputs()).map_err(from_accusation)
}

/// Returns the job that bought leases under an id.
fn find_record(folder: &Path, job: JobId) -> Option<Record> {
    let records = Journal::list_records(&folder.join(JOBS_FOLDER));
    records.into_iter().find(|record| record.ids.contains(&job))
}

async fn list_disputes(folder: &Path, output: Output) -> Outcome {
    let broker = connect_broker(folder).await?;
    let disputes = broker.fetch_disputes().await.map_err(unreachable_market)?;
    match output {
        Output::Json => {
            let all: Vec<_> = disputes.iter().map(show::dispute::to_json).collect();
            show::print_json(&json!({ "disputes": all }));
        }
        Output::Text => show::dispute::print_list(&disputes),
    }
    Ok(())
}

async fn show_dispute(folder: &Path, output: Output, wanted: u64) -> Outcome {
    let broker = connect_broker(folder).await?;
    let disputes = broker.fetch_disputes().await.map_err(unreachable_market)?;
    let found = disputes.into_iter().find(|dispute| dispute.id.0 == wanted);
    let found = found.ok_or_else(|| {
        let cause = format!("the market knows no dispute {wanted}");
        Failure::new(
            Kind::State,
            cause,
            "`souk dispute list` shows those it knows",
        )
    })?;
    print_dispute(output, &found);
    Ok(())
}

fn print_dispute(output: Output, dispute: &Opened) {
    match output {
        Output::Json => show::print_json(&show::dispute::to_json(dispute)),
        Output::Text => show::dispute::print_one(dispute),
    }
}

fn from_accusation(error: AccusationError) -> Failure {
    match error {
        AccusationError::Trade(error) => from_trade(*error),
        AccusationError::Broker(error) => unreachable_market(error),
        AccusationError::Model(ExactModelError::Quote(error)) => submit::from_quote(error),
        error => Failure::new(
            Kind::Input,
            error,
            "nothing was sent or paid; `souk help dispute open` says what can be disputed",
        ),
    }
}
