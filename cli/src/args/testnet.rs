//! The arguments of `souk testnet …`.

#[cfg(feature = "gateway")]
use std::net::SocketAddr;

use clap::Subcommand;

use super::LabArgs;
#[cfg(feature = "gateway")]
use super::PageArgs;
use super::account::credits;

/// Commands on a testnet.
#[derive(Debug, Subcommand)]
pub enum Testnet {
    /// Start the testnet in --dir, making it if there is none; stop with Ctrl-C.
    Up(UpArgs),
    /// Stop the testnet in --dir. Its market stays in the folder.
    Down,
    /// Show the validators and what they have agreed on.
    Status,
    /// Give credits to an account of the testnet: made by its operator, whose key lies in --dir.
    Fund(FundArgs),
    /// Print what its nodes logged, and with --follow what they log from now on.
    Logs(LogsArgs),
    /// Simulate a market with faults from one seed, with `souk-lab`.
    #[command(disable_help_flag = true)]
    Sim(LabArgs),
    /// Try every way to cheat the other party of a lease, with `souk-lab`.
    #[command(disable_help_flag = true)]
    Attacks(LabArgs),
    /// Kill nodes of a market and check what holds, with `souk-lab`.
    #[command(disable_help_flag = true)]
    Chaos(LabArgs),
    /// Attack a market of real processes, with `souk-lab`.
    #[command(disable_help_flag = true)]
    Hostile(LabArgs),
    /// Measure the gossip of many nodes, with `souk-lab`.
    #[command(disable_help_flag = true)]
    Gossip(LabArgs),
}

/// How a testnet is started.
#[derive(Clone, Debug, clap::Args)]
pub struct UpArgs {
    /// Return once it is up; stop it with `souk testnet down`.
    #[arg(long)]
    pub detach: bool,
    /// Validators of a new testnet, 1 to 7.
    #[arg(long, default_value_t = 3)]
    pub validators: u32,
    /// What providers of a new testnet sell: mixed (this machine's CPU and emulated devices),
    /// phones, datacenter, or a file that lists them.
    #[arg(long, default_value = "mixed", value_name = "WORD|FILE")]
    pub profile: String,
    /// Providers of a new testnet, 1 to 64, each a process; else as many as the profile lists.
    #[arg(long, value_name = "N")]
    pub providers: Option<usize>,
    /// Where its gateway answers over HTTP; else 127.0.0.1:7800, or a free port where that is
    /// taken.
    #[cfg(feature = "gateway")]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_http")]
    pub http: Option<SocketAddr>,
    /// Start no gateway.
    #[cfg(feature = "gateway")]
    #[arg(long)]
    pub no_http: bool,
    #[cfg(feature = "gateway")]
    #[command(flatten)]
    pub page: PageArgs,
}

/// What is printed of the nodes' logs.
#[derive(Clone, Debug, clap::Args)]
pub struct LogsArgs {
    /// Nodes, such as provider-2; else all of them.
    pub nodes: Vec<String>,
    /// Go on with what is logged, until Ctrl-C.
    #[arg(short, long)]
    pub follow: bool,
    /// The last so many lines of each.
    #[arg(short = 'n', long, default_value_t = 10, value_name = "N")]
    pub lines: usize,
}

/// Whom to give credits.
#[derive(Debug, clap::Args)]
pub struct FundArgs {
    /// A name of the testnet, such as buyer or provider-2, or an account (64 hexadecimal digits).
    pub account: String,
    /// How much, in credits.
    #[arg(value_parser = credits)]
    pub amount: u64,
}
