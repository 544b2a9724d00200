//! The arguments of `souk testnet …`. A testnet is a whole market (validators, providers, a buyer)
//! on this machine.

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
    /// Start the testnet in --dir, and create it if there is none; stop it with Ctrl-C.
    Up(UpArgs),
    /// Stop the testnet in --dir. Its market stays in the folder.
    Down,
    /// Show the validators and the state that they agreed on.
    Status,
    /// Create credits for an account of the testnet, with the operator's key in --dir.
    Fund(FundArgs),
    /// Print the logs of the nodes, and with --follow new lines as they come.
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
    /// Make one of four validators lie in each way, with `souk-lab`.
    #[command(disable_help_flag = true)]
    Liars(LabArgs),
    /// Measure the gossip of many nodes, with `souk-lab`.
    #[command(disable_help_flag = true)]
    Gossip(LabArgs),
}

/// How to start a testnet.
#[derive(Clone, Debug, clap::Args)]
pub struct UpArgs {
    /// Return once the testnet is up; stop it with `souk testnet down`.
    #[arg(long)]
    pub detach: bool,
    /// The number of validators of a new testnet, 1 to 15.
    #[arg(long, default_value_t = 3)]
    pub validators: u32,
    /// The devices that providers of a new testnet sell: mixed (this machine's CPU and emulated
    /// devices), phones, datacenter, or a file that lists them.
    #[arg(long, default_value = "mixed", value_name = "WORD|FILE")]
    pub profile: String,
    /// The number of providers of a new testnet, 1 to 64, each a process; by default as many as
    /// the profile lists.
    #[arg(long, value_name = "N")]
    pub providers: Option<usize>,
    /// The address of its gateway; by default 127.0.0.1:7800, or a free port if that is taken.
    #[cfg(feature = "gateway")]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_http")]
    pub http: Option<SocketAddr>,
    /// Do not start a gateway.
    #[cfg(feature = "gateway")]
    #[arg(long)]
    pub no_http: bool,
    #[cfg(feature = "gateway")]
    #[command(flatten)]
    pub page: PageArgs,
}

/// Which logs to print.
#[derive(Clone, Debug, clap::Args)]
pub struct LogsArgs {
    /// The nodes, such as provider-2; by default all of them.
    pub nodes: Vec<String>,
    /// Continue with new lines, until Ctrl-C.
    #[arg(short, long)]
    pub follow: bool,
    /// The number of lines to print from the end of each log.
    #[arg(short = 'n', long, default_value_t = 10, value_name = "N")]
    pub lines: usize,
}

/// The account that gets the credits.
#[derive(Debug, clap::Args)]
pub struct FundArgs {
    /// A name in the testnet, such as buyer or provider-2, or an account (64 hexadecimal digits).
    pub account: String,
    /// The amount, in credits.
    #[arg(value_parser = credits)]
    pub amount: u64,
}
