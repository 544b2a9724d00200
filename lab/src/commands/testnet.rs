//! `souk testnet sim|attacks|chaos|hostile|liars|gossip`: runs the tests of a whole market: a
//! simulation, faults or attacks on real processes, and the cost of gossip.

mod chaos;
mod crowd;
mod gossip;
mod hostile;
mod liars;
mod sim;

use std::path::Path;

use souk_cli::failure::Outcome;
use souk_cli::options::Output;

use crate::args::Testnet;

/// Runs a command.
pub async fn run(folder: &Path, output: Output, command: &Testnet) -> Outcome {
    match command {
        Testnet::Sim(args) if args.crowd.is_wanted() => {
            crowd::run_crowds(output, args.seed, &args.crowd)
        }
        Testnet::Sim(args) => sim::run(output, args),
        Testnet::Attacks => sim::play_attacks(output),
        Testnet::Chaos(args) if args.running => chaos::kill_nodes(folder, output, args).await,
        Testnet::Chaos(args) => chaos::run(output, args).await,
        Testnet::Hostile(args) => hostile::run(output, args).await,
        Testnet::Liars(args) => liars::run(output, args).await,
        Testnet::Gossip(args) => gossip::run(output, args).await,
    }
}
