//! `souk receipt …`: verifies a receipt, proves that the market settled it, checks those of a job
//! together, and proves a contradiction between two of them.

mod chain;

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use souk_folder::market_file::MarketFile;
use souk_node::client::history::CountedRoster;
use souk_node::client::reach;
use souk_node::client::settlement::{
    ProofFault, ReceiptProof, Settlement, SettlementError, prove_receipt,
};
use souk_node::market::{Acceptance, Command, Genesis, Receipt, ReceiptFault};

use super::account::{from_trade, out_of_turn, own_trader};
use super::roster::{self, KnownRoster, ProofRefusal};
use super::uncertified::fail_uncertified;
use crate::args::{Output, ReceiptCommand};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, from_reach};
use crate::{files, show};

/// How often a settlement that is not certified yet is looked for, and the pause between.
const TRIES_MAX: u32 = 8;
const TRY_PAUSE: Duration = Duration::from_millis(500);

/// Runs a command on receipts.
pub async fn run(folder: &Path, output: Output, command: &ReceiptCommand) -> Outcome {
    match command {
        ReceiptCommand::Verify {
            file,
            certified,
            proof_output,
            proof,
        } => match (proof, certified) {
            (Some(proof), _) => verify_proof(folder, output, file, proof),
            (None, true) => certify_receipt(folder, output, file, proof_output.as_deref()).await,
            (None, false) => verify_receipt(output, file),
        },
        ReceiptCommand::Chain(args) => chain::check_chain(folder, output, args),
        ReceiptCommand::Prove { first, second } => prove(folder, output, [first, second]).await,
    }
}

/// Verifies arithmetic and signatures. It can do so without a running node.
fn verify_receipt(output: Output, file: &Path) -> Outcome {
    let receipt = read_signed(file)?;
    match output {
        Output::Json => show::print_json(&json!({ "valid": true, "receipt": receipt })),
        Output::Text => {
            show::receipt::print_receipt(&receipt, &show::Names::new());
            show::print_line("valid: the arithmetic and both signatures hold");
        }
    }
    Ok(())
}

/// Reads a receipt and verifies its arithmetic and signatures.
fn read_signed(file: &Path) -> Result<Receipt, Failure> {
    let receipt = files::read_receipt(file)?;
    receipt.verify().map_err(|fault| {
        let hint = "do not count it as paid or done work";
        receipt_failure(file, &fault, hint)
    })?;
    Ok(receipt)
}

/// Proves by the validators' history that the market settled the receipt.
async fn certify_receipt(
    folder: &Path,
    output: Output,
    file: &Path,
    proof_output: Option<&Path>,
) -> Outcome {
    let receipt = read_signed(file)?;
    let market = read_market(folder)?;
    check_market(&receipt, &market.genesis)?;
    let (broker, _) = reach::connect_read_only(&market)
        .await
        .map_err(from_reach)?;
    let mut tries = 1;
    let proven = loop {
        match prove_receipt(&broker, &market.genesis, &receipt).await {
            // Validators sign the history several times a second.
            Err(SettlementError::Uncertified(_)) if tries < TRIES_MAX => {
                tries += 1;
                tokio::time::sleep(TRY_PAUSE).await;
            }
            proven => break proven.map_err(from_settlement)?,
        }
    };
    if let Some(path) = proof_output {
        std::fs::write(path, proven.proof.encode()).map_err(|error| {
            let cause = format!("cannot write {}: {error}", path.display());
            Failure::new(Kind::State, cause, "give a file that you can write with -o")
        })?;
    }
    print_settlement(output, &receipt, &proven.settlement, proven.members, None);
    roster::keep_orders(folder, &proven.orders)?;
    let alone = KnownRoster::of_genesis(&market.genesis);
    if proof_output.is_some()
        && let Err(fault) = check_proof(&proven.proof, &receipt, &alone)
    {
        show::print_notice(&format!(
            "without the market nobody can check the saved proof: {fault}"
        ));
    }
    Ok(())
}

/// Checks a saved proof without a network.
fn verify_proof(folder: &Path, output: Output, file: &Path, proof: &Path) -> Outcome {
    let receipt = read_signed(file)?;
    let known = KnownRoster::read(folder)?;
    check_market(&receipt, &known.genesis)?;
    let named = |fault: &dyn Display| {
        let cause = format!("{}: {fault}", proof.display());
        let hint = "it proves nothing: make another with `souk receipt verify --certified -o`";
        Failure::new(Kind::Verification, cause, hint)
    };
    let bytes = files::read(proof)?;
    let decoded = ReceiptProof::decode(&bytes).map_err(|fault| named(&fault))?;
    let checked = check_proof(&decoded, &receipt, &known);
    let (settlement, counted) = checked.map_err(|refusal| named(&refusal))?;
    print_settlement(
        output,
        &receipt,
        &settlement,
        counted.roster.members,
        Some(&counted),
    );
    Ok(())
}

/// Checks a proof by what a folder knows about the validators. Returns the settlement, and the
/// roster that certifies it.
fn check_proof(
    proof: &ReceiptProof,
    receipt: &Receipt,
    known: &KnownRoster,
) -> Result<(Settlement, CountedRoster), ProofRefusal<ProofFault>> {
    known.check_proof(proof.orders(), |market, roster| {
        proof.verify(receipt, market, roster)
    })
}

fn read_market(folder: &Path) -> Result<MarketFile, Failure> {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    Ok(market.with_known(folder))
}

/// Refuses a receipt of another market before anybody is asked.
fn check_market(receipt: &Receipt, genesis: &Genesis) -> Outcome {
    let (found, wanted) = (receipt.body.market, genesis.market_id());
    if found == wanted {
        return Ok(());
    }
    let cause = format!("the receipt is of the market {found}, and this folder's is {wanted}");
    let hint = "name a folder of the receipt's market with --dir";
    Err(Failure::new(Kind::Verification, cause, hint))
}

/// Prints a settlement, and by which roster it was checked without the market.
fn print_settlement(
    output: Output,
    receipt: &Receipt,
    found: &Settlement,
    members: usize,
    counted: Option<&CountedRoster>,
) {
    match output {
        Output::Json => {
            let facts = json!({
                "valid": true,
                "receipt": receipt,
                "settled": {
                    "step": found.step,
                    "time": found.time.0,
                    "payment": found.payment,
                    "signers": found.signers,
                    "validators": members,
                    "certified": found.certified_s,
                },
            });
            let roster = counted.map(roster::to_json);
            show::print_json(&show::with(facts, [("roster", json!(roster))]));
        }
        Output::Text => {
            show::receipt::print_receipt(receipt, &show::Names::new());
            show::print_line(&format!(
                "signed by both · settled at {} · certified by {} of {members} at {}",
                found.step,
                found.signers.len(),
                show::time_of_day(found.certified_s.saturating_mul(1_000)),
            ));
            counted.into_iter().for_each(roster::print_counted);
        }
    }
}

fn from_settlement(error: SettlementError) -> Failure {
    let (kind, hint) = match &error {
        SettlementError::Unknown { .. } => (
            Kind::Verification,
            "do not count it as paid: a receipt that both signed is paid once the market settles \
             it. If it was settled long ago, ask whoever saved a proof",
        ),
        SettlementError::Silent(_) => (
            Kind::Network,
            "see with `souk market verify` who answers, and try again",
        ),
        SettlementError::Other(..) => (Kind::Verification, "do not count it as paid"),
        SettlementError::Uncertified(history) => {
            return fail_uncertified(&error, history);
        }
        SettlementError::Unproven(_) => (
            Kind::Verification,
            "try again; if it stays so, run `souk market verify`",
        ),
    };
    Failure::new(kind, error, hint)
}

/// Submits a contradiction to the market's log. Each receipt must have its provider's valid
/// signature. It reports pairs that the market would refuse, and does not submit them.
async fn prove(folder: &Path, output: Output, files: [&Path; 2]) -> Outcome {
    let mut receipts = Vec::with_capacity(files.len());
    for file in files {
        let receipt = files::read_receipt(file)?;
        receipt.verify_provider().map_err(|fault| {
            let hint = "only what a provider signed is evidence against it";
            receipt_failure(file, &fault, hint)
        })?;
        receipts.push(receipt);
    }
    let pair: [Receipt; 2] = receipts.try_into().expect("each file is one receipt");
    if let Some(cause) = reason_not_contradictory(&pair) {
        let hint =
            "give two receipts of one lease for the same graph and inputs, with different outputs";
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    let trader = own_trader(folder).await?;
    let proof = Command::ProveFault(Box::new(pair));
    let done = trader.submit_one(proof).await.map_err(from_trade)?;
    let Acceptance::Slashed {
        slashed,
        compensated,
    } = done
    else {
        return Err(out_of_turn(&done));
    };
    let text = show::trade::describe_acceptance(&done);
    let facts = json!({ "slashed": slashed, "compensated": compensated });
    show::print_result(output, &facts, &text);
    Ok(())
}

/// Returns why two receipts do not contradict each other, or `None` if they do.
fn reason_not_contradictory([first, second]: &[Receipt; 2]) -> Option<String> {
    let (one, other) = (&first.body, &second.body);
    let differs = [
        ("markets", one.market != other.market),
        ("leases", one.lease != other.lease),
        ("providers", one.provider != other.provider),
        ("graphs", one.graph != other.graph),
        ("inputs", one.inputs != other.inputs),
    ];
    let differing = differs.iter().find(|(_, differ)| *differ);
    match differing {
        Some((what, _)) => Some(format!(
            "they are of different {what}: neither contradicts the other"
        )),
        None if one.outputs == other.outputs => {
            Some("they name the same outputs: neither contradicts the other".to_owned())
        }
        None => None,
    }
}

fn receipt_failure(file: &Path, fault: &ReceiptFault, hint: &str) -> Failure {
    let cause = format!("{} is not valid: {fault}", file.display());
    Failure::new(Kind::Verification, cause, hint)
}
