//! Defines the command line of `souk-lab`: [`Args`], with the commands of `souk` that this program
//! carries out. `souk` starts it with its own arguments, so help and messages name `souk`.

mod bench;
mod examples;
mod testnet;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use souk_cli::options::{GlobalArgs, apply_color_choice};

pub use bench::{
    Bench, BenchNodeArgs, BenchTensorsArgs, CertificatesArgs, ConsensusArgs, CostArgs, FlowName,
    LeaseBenchArgs, MachineArgs, MarketBenchArgs, ModelArgs, ModelSetArgs, ModelsArgs, ProofsArgs,
    SubmitBenchArgs, TokensBenchArgs,
};
pub use testnet::{ChaosArgs, CrowdArgs, GossipArgs, HostileArgs, LiarsArgs, SimArgs, Testnet};

/// Test and measure souk: `souk` runs this program for the commands below.
#[derive(Debug, Parser)]
#[command(name = "souk-lab", bin_name = "souk", version, max_term_width = 100)]
pub struct Args {
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure souk.
    #[command(subcommand)]
    Bench(Bench),
    /// Simulate, break or attack a whole market on this machine.
    #[command(subcommand)]
    Testnet(Testnet),
}

impl Args {
    /// Parses the arguments of this process.
    ///
    /// # Errors
    /// Fails with clap's message if the arguments do not parse or ask for help.
    pub fn parse_arguments() -> Result<Args, clap::Error> {
        let command = examples::with(Args::command());
        let matches = apply_color_choice(command).try_get_matches()?;
        Args::from_arg_matches(&matches)
    }

    /// Returns the number of threads for the network if the command needs another number than one
    /// per core. A benchmark's replica shares its cores with all others, and each message would
    /// wake a second thread.
    pub fn network_threads(&self) -> Option<usize> {
        matches!(self.command, Command::Bench(Bench::Node(_))).then_some(1)
    }
}
