//! `souk receipt verify`: arithmetic and signatures, with no node running.

use souk_node::market::Receipt as Signed;

use crate::args::{Output, Receipt};
use crate::failure::{Failure, Kind, Outcome};
use crate::{files, show};

/// Runs a command on receipts.
pub fn run(output: Output, command: &Receipt) -> Outcome {
    let Receipt::Verify { file } = command;
    let receipt: Signed = files::read_receipt(file)?;
    receipt.verify().map_err(|fault| {
        let cause = format!("{} does not hold: {fault}", file.display());
        Failure::new(
            Kind::Verification,
            cause,
            "do not count it as paid or done work",
        )
    })?;
    match output {
        Output::Json => show::json(&serde_json::json!({ "valid": true, "receipt": receipt })),
        Output::Text => {
            show::receipt::print(&receipt, &show::Names::new());
            show::say("valid: the arithmetic and both signatures hold");
        }
    }
    Ok(())
}
