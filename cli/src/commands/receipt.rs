//! `souk receipt …`: verifies a receipt, and proves a contradiction between two of them.

use std::path::Path;

use serde_json::json;
use souk_node::market::{Acceptance, Command, Receipt as Signed, ReceiptFault};

use super::account::{from_trade, out_of_turn, own_trader};
use crate::args::{Output, Receipt};
use crate::failure::{Failure, Kind, Outcome};
use crate::{files, show};

/// Runs a command on receipts.
pub async fn run(folder: &Path, output: Output, command: &Receipt) -> Outcome {
    match command {
        Receipt::Verify { file } => verify_receipt(output, file),
        Receipt::Prove { first, second } => prove(folder, output, [first, second]).await,
    }
}

/// Verifies arithmetic and signatures. It can do so without a running node.
fn verify_receipt(output: Output, file: &Path) -> Outcome {
    let receipt = files::read_receipt(file)?;
    receipt.verify().map_err(|fault| {
        let hint = "do not count it as paid or done work";
        receipt_failure(file, &fault, hint)
    })?;
    match output {
        Output::Json => show::print_json(&json!({ "valid": true, "receipt": receipt })),
        Output::Text => {
            show::receipt::print_receipt(&receipt, &show::Names::new());
            show::print_line("valid: the arithmetic and both signatures hold");
        }
    }
    Ok(())
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
    let pair: [Signed; 2] = receipts.try_into().expect("each file is one receipt");
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
fn reason_not_contradictory([first, second]: &[Signed; 2]) -> Option<String> {
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
