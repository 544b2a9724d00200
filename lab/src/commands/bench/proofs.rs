//! `souk bench proofs`: measures the proofs of receipts and of balances, and what the state root
//! costs a validator.

use serde_json::json;
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};

use crate::args::ProofsArgs;
use crate::proof_bench::{
    ProofCost, RootCost, measure_account_proof, measure_receipt_proof, measure_roots,
};

/// Measures both kinds of proofs and the state roots, and shows the figures.
pub fn run(output: Output, args: &ProofsArgs) {
    let receipt = measure_receipt_proof(args.leaves);
    let account = measure_account_proof(args.accounts);
    let roots = measure_roots(args.operations as usize, args.rate);
    match output {
        Output::Json => show::print_json(&json!({
            "receipt": receipt, "account": account, "roots": roots,
        })),
        Output::Text => print_report(receipt, account, &roots),
    }
}

fn print_report(receipt: ProofCost, account: ProofCost, roots: &[RootCost]) {
    print_line(&format!(
        "receipt proof  {} leaves: {} bytes of {} tiles, checked in {:.0} us; goal 2048 bytes, \
         300 us",
        receipt.of, receipt.bytes, receipt.tiles, receipt.check_us,
    ));
    print_line(&format!(
        "account proof  {} accounts: {} bytes, checked in {:.0} us",
        account.of, account.bytes, account.check_us,
    ));
    for root in roots {
        print_line(&format!(
            "state root     {} flow, every {} commands: {:.2} us for each of {:.0} rows; goal 1 us",
            root.flow, root.commands_per_root, root.root_us_per_row, root.rows_per_root,
        ));
        print_line(&format!(
            "               a command: root {:.2} us, apply {:.2} us, check {:.2} us; the root is \
             {:.1} % of them; goal 10 %",
            root.root_us_per_command,
            root.apply_us_per_command,
            root.check_us_per_command,
            root.part * 100.0,
        ));
    }
}
