//! Tests and measures souk: the simulator, faults and attacks on real processes, and the
//! benchmarks.
//!
//! `souk bench …` and `souk testnet sim|attacks|chaos|hostile|liars|gossip` run this program, which
//! must be in the same folder as `souk`. It starts the nodes of its markets with that `souk`.

#![forbid(unsafe_code)]

mod args;
pub mod certificate_bench;
pub mod chaos;
pub mod choose_bench;
mod commands;
pub mod consensus_bench;
pub mod content_bench;
pub mod engine_attacks;
pub mod gossip;
pub mod hostile;
pub mod lease_bench;
pub mod liars;
pub mod proof_bench;
pub mod readers;
mod scratch_market;
pub mod submissions;
pub mod token_bench;
pub mod traders;

use std::process::ExitCode;

use souk_cli::{Program, start};

use args::Args;

/// Runs `souk-lab` with the arguments of this process.
pub fn main() -> ExitCode {
    start(Args::parse_arguments, |args: Args| Program {
        global: args.global.clone(),
        network_threads: args.network_threads(),
        command: commands::run(args),
    })
}
