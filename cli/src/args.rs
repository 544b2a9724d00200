//! The command line.

mod account;
mod demo;
mod device;
mod everywhere;
mod examples;
#[cfg(feature = "generate")]
mod generate;
mod groups;
#[cfg(test)]
mod help;
mod job;
mod market;
mod operator;
#[cfg(feature = "gateway")]
mod serve;
mod testnet;
mod trade;

#[cfg(feature = "gateway")]
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use souk_node::protocols::regions::NamedRegion;

pub use account::{Account, Movement, credits};
pub use demo::DemoArgs;
pub use device::{Backend, Device, Probe};
pub use everywhere::{Everywhere, Output, apply_color_choice};
pub use examples::{Example, add_examples};
#[cfg(feature = "generate")]
pub use generate::{ChatArgs, GenerateArgs, LeaseArgs, OpenaiArgs, PlaceArgs, SamplingArgs};
pub use job::{Format, JobArgs, JobCommand, Priority, SubmitArgs};
pub use market::{FoundArgs, Market};
pub use operator::{DecideArgs, Operator, OperatorKey, OperatorRules, RulesChangeArgs};
#[cfg(feature = "gateway")]
pub use serve::{PageArgs, ServeArgs};
pub use testnet::{FundArgs, LogsArgs, Testnet, UpArgs};
pub use trade::{AskArgs, BidArgs, Lease, Order, RestArgs, Tif, bytes, duration};

/// A market for compute: sell device time, buy it, run ONNX models on it.
///
/// Try it all on this machine with `souk demo`. For your own model: `souk testnet up` in one
/// terminal and `souk submit model.onnx -i name=file.npy -o out` in another.
#[derive(Debug, Parser)]
#[command(name = "souk", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 unexpected, 2 usage, 3 bad input, 4 no plan fits,\n\
5 network, 6 job failed, 7 a signature or result does not hold,\n\
8 wrong state of a folder, 9 budget, 10 deadline, 130 interrupted.\n\
-v or SOUK_LOG=info shows more."
)]
pub struct Args {
    #[command(flatten)]
    pub everywhere: Everywhere,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Args {
    /// Parses the arguments of this process.
    ///
    /// # Errors
    /// Fails with clap's message if the arguments do not parse or ask for help.
    pub fn parse_arguments() -> Result<Args, clap::Error> {
        let matches = apply_color_choice(Args::build_command()).try_get_matches()?;
        Args::from_arg_matches(&matches)
    }

    /// Returns all commands in groups, with their examples.
    pub fn build_command() -> clap::Command {
        groups::with(examples::with(Args::command()))
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring up a market on this machine, run a real model through it, and take it down.
    Demo(DemoArgs),
    /// A whole market of real processes on this machine.
    #[command(subcommand)]
    Testnet(Testnet),
    /// Show what would run where, for how long and at what price. No money moves.
    Plan(JobArgs),
    /// Buy device time for a model, run it, fetch the outputs and pay.
    Submit(SubmitArgs),
    /// Jobs that were submitted from this folder: how they stand; go on with one.
    #[command(subcommand)]
    Job(JobCommand),
    /// Answer programs on this machine over HTTP: the market, and jobs of --dir's account; until
    /// Ctrl-C.
    #[cfg(feature = "gateway")]
    Serve(ServeArgs),
    /// Print the address that opens the gateway's page in a browser. Whoever has it may look, or
    /// with --trade spend.
    #[cfg(feature = "gateway")]
    Dashboard(PageArgs),
    /// Show who the node in --dir is connected to, by which way, and whom it keeps out; it need not
    /// run.
    Peers,
    /// Accounts: open one, look at one, credits in and out.
    #[command(subcommand)]
    Account(Account),
    /// Orders of --dir's account in the books.
    #[command(subcommand)]
    Order(Order),
    /// Leases of --dir's account.
    #[command(subcommand)]
    Lease(Lease),
    /// What only a market's operator may do.
    #[command(subcommand)]
    Operator(Operator),
    /// Markets as such: found one, join one, show the one of --dir.
    #[command(subcommand)]
    Market(Market),
    /// List what is on offer.
    Book(Freshness),
    /// Show what accounts hold, and the sums over the whole market.
    Balance(Freshness),
    /// Receipts of finished work.
    #[command(subcommand)]
    Receipt(Receipt),
    /// Models: look into one; bring a language model into souk's form.
    #[command(subcommand)]
    Model(Model),
    /// Go on with a text by a language model, token by token.
    #[cfg(feature = "generate")]
    Generate(GenerateArgs),
    /// Talk with a language model: a line is a message, Ctrl-C ends an answer, or at the prompt the
    /// conversation.
    #[cfg(feature = "generate")]
    Chat(ChatArgs),
    /// Answer programs that speak OpenAI's HTTP with a language model; until Ctrl-C.
    #[cfg(feature = "generate")]
    Openai(OpenaiArgs),
    /// Processors: this machine's, and those souk knows by name.
    #[command(subcommand)]
    Device(Device),
    /// Look at this machine, the folder and its market for what stands in the way, and say what to
    /// do about it; fails where something will.
    Doctor,
    /// Show the market in the terminal as it goes: validators, offers, trades, and --dir's account
    /// and jobs; until Ctrl-C.
    Top(TopArgs),
    /// What souk is told by options, variables and files.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Help others to find out what is wrong.
    #[command(subcommand)]
    Debug(DebugCommand),
    /// Print what completes souk's words in a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual's pages, one for each command.
    Man {
        /// Where to; it is made where there is none.
        folder: PathBuf,
    },
    /// Replay a stopped validator's log and compare every digest it ever wrote down.
    Audit {
        /// The validator's folder, such as souk-testnet/validator-1.
        folder: PathBuf,
    },
    /// Measure souk, with `souk-lab`.
    #[command(disable_help_flag = true)]
    Bench(LabArgs),
    /// A validator: replicates the market.
    #[command(subcommand)]
    Validator(Validator),
    /// A provider: sells a device.
    #[command(subcommand)]
    Provider(Provider),
    /// The secret key of the node or account whose folder --dir is.
    #[command(subcommand)]
    Key(Key),
}

/// The arguments of a command of `souk-lab`, which parses them.
#[derive(Clone, Debug, clap::Args)]
pub struct LabArgs {
    /// What `souk-lab` should do; --help lists it.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub arguments: Vec<std::ffi::OsString>,
}

/// What a terminal shows.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct TopArgs {
    /// How often it is asked anew.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = duration)]
    pub every: Duration,
    /// Print it once and end, as where standard output is no terminal.
    #[arg(long)]
    pub once: bool,
}

/// Commands on what souk is told.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show each value that holds for --dir, and where it comes from: an option, a variable, a file
    /// or souk itself.
    Show,
}

/// Commands for reports.
#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// Write what a report needs into one file that can be read before it is sent: versions, what
    /// `doctor` and `config show` say, names and sizes of files, the ends of logs, how jobs stand.
    /// No key, token, passphrase or tensor is in it.
    Bundle {
        /// Where to.
        #[arg(short, long, default_value = "souk-debug.json", value_name = "FILE")]
        out: PathBuf,
    },
}

/// Whose answer is taken.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Freshness {
    /// Take what one validator has, also while no majority of them runs; its age is shown. Without
    /// this the answer holds everything that was acknowledged before the question
    #[arg(long)]
    pub stale: bool,
}

/// Commands on receipts.
#[derive(Debug, Subcommand)]
pub enum Receipt {
    /// Check arithmetic and both signatures of a receipt, with no node running.
    Verify {
        /// The receipt, as `souk submit` wrote it.
        file: PathBuf,
    },
    /// Prove a fault: two receipts of one lease, both signed by its provider, that name unlike
    /// outputs for the same graph and inputs. The provider loses its stake, of which the buyer gets
    /// what the lease cost. Any account may prove it, once.
    Prove {
        /// One receipt.
        first: PathBuf,
        /// The other; it takes no signature of the buyer.
        second: PathBuf,
    },
}

/// Commands on models.
#[derive(Debug, Subcommand)]
pub enum Model {
    /// Count nodes, weights, operations and bytes.
    Inspect {
        /// The ONNX model.
        file: PathBuf,
        /// The extent of a symbolic dimension: NAME=N. Others count as 1.
        #[arg(long, value_name = "NAME=N")]
        symbol: Vec<String>,
    },
    /// Write a language model as an ONNX decoder with its weights, tokeniser and template in one
    /// folder.
    #[cfg(feature = "generate")]
    Import {
        /// A folder as Hugging Face's tools leave it, or a GGUF file.
        from: PathBuf,
        /// The folder; it is made where there is none.
        to: PathBuf,
        /// Positions a text may have; as many as the model was made for, and 4096 at most, unless
        /// given.
        #[arg(long, value_name = "POSITIONS", value_parser = generate::positions)]
        context: Option<usize>,
    },
}

/// Commands of a validator.
#[derive(Debug, Subcommand)]
pub enum Validator {
    /// Run the validator whose folder --dir is, until Ctrl-C.
    Run(RunArgs),
    /// Make --dir the folder of a new validator: a key, and where it listens.
    Init(ValidatorInitArgs),
    /// Add a validator that runs and waits to be added; returns once it votes.
    Add {
        /// Its address, as `souk validator init` and `run` print it.
        address: String,
        #[command(flatten)]
        order: OrderArgs,
    },
    /// Remove a validator for good; returns once it has left. Its id never comes back.
    Remove {
        /// Its id, from `souk validator list`.
        id: u64,
        #[command(flatten)]
        order: OrderArgs,
    },
    /// List the validators: ids, addresses, votes, and how far each is.
    List,
    /// Have another validator lead.
    Transfer {
        /// Its id.
        id: u64,
        #[command(flatten)]
        order: OrderArgs,
    },
    /// Save the whole market as one running validator has it, as one file that checks itself.
    Backup {
        /// The file.
        file: PathBuf,
        /// Which validator; --dir's own, or the leader where --dir is a market's folder.
        #[arg(long, value_name = "ID")]
        from: Option<u64>,
        #[command(flatten)]
        order: OrderArgs,
    },
    /// Make a backup what the validator in --dir begins with; it must not have begun yet.
    Restore {
        /// The file.
        file: PathBuf,
        /// Begin the whole market again from it: every validator of market.json is restored from
        /// the same file, and what came after it is lost.
        #[arg(long)]
        found: bool,
    },
}

/// A new validator.
#[derive(Debug, clap::Args)]
pub struct ValidatorInitArgs {
    /// Where it listens, and is reached by the others, such as /ip4/192.0.2.7/tcp/4001.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// The folder was a validator's: put its log aside and begin anew with the same key.
    #[arg(long)]
    pub anew: bool,
}

/// Who orders, and for how long it is waited.
#[derive(Debug, clap::Args)]
pub struct OrderArgs {
    #[command(flatten)]
    pub key: OperatorKey,
    /// How long to wait until it has happened.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub wait: u64,
}

/// Commands about a key.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Make an operator's key in --dir for a market that is to be founded with several, unless
    /// there is one; prints its account.
    New,
    /// Encrypt it under the passphrase in the file that SOUK_PASSPHRASE_FILE names, or in
    /// SOUK_PASSPHRASE, or typed; from then on every command that uses it needs it.
    Lock,
    /// Write it bare again.
    Unlock,
}

/// Commands of a provider.
#[derive(Debug, Subcommand)]
pub enum Provider {
    /// Run the provider whose folder --dir is, until Ctrl-C; then end or give back its leases.
    Run(ProviderRunArgs),
    /// Make --dir the folder of a new provider: measures the device, proposes a price from
    /// the market's history, asks for limits, and writes a commented provider.toml.
    Init(Box<ProviderInitArgs>),
    /// Measure the CPU that the provider in --dir sells anew, for its next start. What was measured
    /// is kept for a day, or until the machine, souk or the provider's file changes.
    Measure,
    /// Show the price of a device-second in the file of the provider in --dir, or write another; a
    /// provider that runs takes it within seconds. Leases that were sold keep theirs.
    Price {
        /// In credits; none shows it.
        credits: Option<f64>,
    },
    /// Show what the provider in --dir sells, its leases, what it earned and what its devices did;
    /// it need not run.
    Status {
        /// Show the sums of what its devices did and what was learned of their speed, then begin
        /// both anew.
        #[arg(long)]
        reset: bool,
    },
}

/// A new provider. What is not given is asked for, with a proposal.
#[derive(Debug, clap::Args)]
pub struct ProviderInitArgs {
    /// Take the proposals for what is not given, and ask nothing.
    #[arg(long)]
    pub yes: bool,
    /// Show the ask that would be placed now, and write nothing. In the folder of a provider: that
    /// of its file.
    #[arg(long)]
    pub dry_run: bool,
    /// The name it registers under.
    #[arg(long)]
    pub name: Option<String>,
    /// Where it listens.
    #[arg(long, value_name = "ADDRESS", default_value = "/ip4/0.0.0.0/tcp/0")]
    pub listen: String,
    /// `cpu`, `gpu` (or `gpu:` and a part of its name), or a name from `souk device list` to
    /// emulate.
    #[arg(long)]
    pub device: Option<String>,
    /// Where the device is, for buyers who ask for a region, such as europe-west; a wrong one lists
    /// all.
    #[arg(long, value_name = "REGION")]
    pub region: Option<NamedRegion>,
    /// The library of ONNX Runtime to use, else the one that is found.
    #[arg(long, value_name = "PATH")]
    pub onnxruntime: Option<PathBuf>,
    /// The price of a device-second, in credits.
    #[arg(long, value_name = "CREDITS")]
    pub price: Option<f64>,
    /// Run jobs in the provider's own process: for buyers you trust, on a machine of your own.
    #[arg(long)]
    pub no_isolation: bool,
    #[command(flatten)]
    pub pricing: PricingArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// How the price comes about.
#[derive(Debug, clap::Args)]
pub struct PricingArgs {
    /// The price as given, what it costs and a margin, or what the market pays.
    #[arg(long, value_enum, default_value_t = StrategyName::Fixed)]
    pub strategy: StrategyName,
    /// Following the market: per cent of what it paid lately.
    #[arg(long, default_value_t = 100)]
    pub percent: u32,
    /// Cost plus: watts it draws while it works; the device's own figure if it has one.
    #[arg(long)]
    pub watts: Option<u32>,
    /// Cost plus: credits for a kilowatt-hour.
    #[arg(long, default_value_t = 0.0, value_name = "CREDITS")]
    pub kwh_price: f64,
    /// Cost plus: credits for an hour of everything else.
    #[arg(long, default_value_t = 0.0, value_name = "CREDITS")]
    pub hour_price: f64,
    /// Cost plus: per cent on top.
    #[arg(long, default_value_t = 20, value_name = "PERCENT")]
    pub margin: u32,
    /// Another price at a time of the day (UTC), such as 22:00-06:00=70. May be given again.
    #[arg(long, value_name = "HOURS=PERCENT")]
    pub band: Vec<String>,
    /// Another price for spot leases that may be taken back at so much notice, such as 5s=40; the
    /// longer the notice, the dearer. May be given four times.
    #[arg(long, value_name = "TIME=PERCENT", value_parser = trade::spot_share)]
    pub spot: Vec<(u32, u32)>,
}

/// A strategy of pricing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StrategyName {
    /// The price as given.
    Fixed,
    /// What it costs, and a margin.
    CostPlus,
    /// What the market pays.
    Follow,
}

/// What a provider does not do, whatever is paid.
#[derive(Debug, clap::Args)]
pub struct LimitArgs {
    /// Leases that are sold at once, each of such a part of the device.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub leases: Option<u32>,
    /// Threads that jobs may use at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cores: Option<u32>,
    /// Mebibytes that a job may bring at most, and that are offered.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub memory: Option<u64>,
    /// Sell only at this time of the day (UTC), such as 20:00-08:00. May be given again.
    #[arg(long, value_name = "HOURS")]
    pub hours: Vec<String>,
    /// Sell only devices of this kind, such as cpu. May be given again.
    #[arg(long = "class", value_name = "KIND")]
    pub classes: Vec<String>,
    /// Run only graphs of this operator, such as MatMul. May be given again.
    #[arg(long = "operator", value_name = "NAME")]
    pub operators: Vec<String>,
    /// Do not run buyers' own kernels in WebAssembly.
    #[arg(long)]
    pub no_wasm: bool,
    /// Do not run buyers' own kernels in WGSL.
    #[arg(long)]
    pub no_wgsl: bool,
    /// The least price of a device-second, in credits, whatever the pricing says.
    #[arg(long, value_name = "CREDITS")]
    pub min_price: Option<f64>,
    /// Per cent of its price that a second costs in which a buyer holds the device and does not use
    /// it. The market's reserve (10) where that is more.
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=100))]
    pub idle_percent: u16,
    /// Sell only to buyers of at least this reputation, 0 to 1000. Who is new has 500.
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub min_reputation: u16,
    /// Limit what a power domain draws while the provider runs, such as intel-rapl:0=65, in watts.
    /// `souk device power` shows the domains. May be given again.
    #[arg(long = "power-limit", value_name = "DOMAIN=WATTS")]
    pub power_limits: Vec<String>,
}

/// How a provider runs.
#[derive(Debug, clap::Args)]
pub struct ProviderRunArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// How long leases at work may go on after a stop before they are given back.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub drain: u64,
}

/// How a node runs.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Stop when standard input closes, as it does when the process that started this one ends.
    #[arg(long)]
    pub until_stdin_closes: bool,
    /// Look for peers on the local network by multicast, and be found so.
    #[arg(long)]
    pub mdns: bool,
    /// Relay for peers that nobody can dial, within limits. Only of use on a node that others can
    /// dial.
    #[arg(long)]
    pub relay: bool,
    /// Tell Prometheus how it does, at http://ADDRESS/metrics: a loopback address, such as
    /// 127.0.0.1:9464.
    #[cfg(feature = "gateway")]
    #[arg(long, alias = "metrics", value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
}
