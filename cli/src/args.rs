//! Defines the command line of `souk`: [`Args`] with every [`Command`] and its options, which clap
//! parses. Most submodules hold the arguments of one group of commands, and `commands` carries out
//! what they parse. The arguments' doc comments are the help text; `cli/tests/help` pins it.

mod account;
mod audit;
mod device;
mod dispute;
mod examples;
#[cfg(feature = "generate")]
mod generate;
mod global;
mod groups;
#[cfg(test)]
mod help;
mod job;
mod market;
mod model;
mod modes;
#[cfg(feature = "generate")]
mod openai_key;
mod operator;
mod provider;
mod receipt;
#[cfg(feature = "gateway")]
mod serve;
mod testnet;
mod trade;
mod train;

#[cfg(feature = "gateway")]
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use account::{Account, Movement, credits};
pub use audit::{AuditArgs, AuditCommand};
#[cfg(feature = "generate")]
pub use audit::{AuditRunArgs, ReferenceArgs};
pub use device::{Backend, Device, Probe};
pub use dispute::Dispute;
pub use examples::{Example, add_examples};
#[cfg(feature = "generate")]
pub use generate::{ChatArgs, GenerateArgs, LeaseArgs, OpenaiArgs, PlacementArgs, SamplingArgs};
pub use global::{GlobalArgs, Output, apply_color_choice};
pub use job::{Format, JobArgs, JobCommand, Priority, SubmitArgs};
pub use market::{Market, MarketCreateArgs, VerifyArgs, WitnessArgs, WitnessFile};
pub use model::Model;
#[cfg(feature = "generate")]
pub use openai_key::{OpenaiCommand, OpenaiKey, OpenaiKeyArgs};
pub use operator::{DecideArgs, Operator, OperatorKey, OperatorRules, RulesChangeArgs};
pub use provider::{
    LimitArgs, PricingArgs, Provider, ProviderInitArgs, ProviderRunArgs, StrategyName,
};
pub use receipt::{ChainArgs, ReceiptCommand};
#[cfg(feature = "gateway")]
pub use serve::{PageArgs, ServeArgs};
pub use testnet::{FundArgs, LogsArgs, Testnet, UpArgs};
pub use trade::{AskArgs, BidArgs, Lease, Order, RestArgs, Tif, bytes, duration, share};
pub use train::{
    DecayName, LossName, OptimizerName, Train, TrainArgs, TrainCommand, TrainLeaseArgs,
    TrainResumeArgs,
};

/// A market for compute: sell device time, buy it, and run ONNX models on it.
///
/// Try it on this machine with `souk demo`. To run your own model, use `souk testnet up` in one
/// terminal and `souk submit model.onnx -i name=file.npy -o out` in another.
#[derive(Debug, Parser)]
#[command(name = "souk", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 unexpected, 2 usage, 3 bad input, 4 no plan fits,\n\
5 network, 6 job failed, 7 invalid signature or result,\n\
8 wrong folder state, 9 budget, 10 deadline, 130 interrupted.\n\
Use -v or SOUK_LOG=info to log more."
)]
pub struct Args {
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What souk must do.
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
        modes::check_modes(&matches)?;
        Args::from_arg_matches(&matches)
    }

    /// Returns all commands in groups, with their examples.
    pub fn build_command() -> clap::Command {
        groups::with(examples::with(Args::command()))
    }
}

/// What the demo shows.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DemoArgs {
    /// Fine-tune the bundled language model in the market instead, and ask it the same questions
    /// before and after.
    #[cfg(feature = "generate")]
    #[arg(long)]
    pub train: bool,
}

/// The commands of souk.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a market on this machine, buy a text and the run of a model in it, and stop it.
    Demo(DemoArgs),
    /// Run and test a market of real processes on this machine.
    #[command(subcommand)]
    Testnet(Testnet),
    /// Show what would run where, for how long and at what price; spends nothing.
    Plan(JobArgs),
    /// Buy device time for a model, run it, fetch the outputs and pay.
    Submit(SubmitArgs),
    /// Train a model on examples from files, on devices that you lease; resume and list runs.
    Train(Box<Train>),
    /// List, follow, resume and cancel the jobs submitted from this folder.
    #[command(subcommand)]
    Job(JobCommand),
    /// Serve the market, and the jobs of --dir's account, to programs on this machine over HTTP,
    /// until Ctrl-C.
    #[cfg(feature = "gateway")]
    Serve(ServeArgs),
    /// Print the address that opens the gateway's page in a browser. Anyone who has the address can
    /// read the page, or with --trade spend credits.
    #[cfg(feature = "gateway")]
    Dashboard(PageArgs),
    /// List the peers that the node in --dir is connected to, how it reaches them, and the peers it
    /// blocks; the node need not run.
    Peers,
    /// Open an account, show it, and move credits in and out.
    #[command(subcommand)]
    Account(Account),
    /// Place, list, amend and cancel orders of --dir's account.
    #[command(subcommand)]
    Order(Order),
    /// List and manage the leases of --dir's account.
    #[command(subcommand)]
    Lease(Lease),
    /// Administer a market as its operator.
    #[command(subcommand)]
    Operator(Operator),
    /// Create, join and inspect markets.
    #[command(subcommand)]
    Market(Market),
    /// List all offers.
    Book(Freshness),
    /// Show the credits of each account, and the totals of the market.
    Balance(Freshness),
    /// Verify receipts of finished work, and prove faults with them.
    #[command(subcommand)]
    Receipt(ReceiptCommand),
    /// Accuse a provider of a wrong output, and see what the validators find.
    #[command(subcommand)]
    Dispute(Dispute),
    /// List the models that providers sell by the token, inspect a model, or import one.
    #[command(subcommand)]
    Model(Model),
    /// Continue a text with a language model, token by token.
    #[cfg(feature = "generate")]
    Generate(GenerateArgs),
    /// Chat with a language model: each line is a message; Ctrl-C ends an answer, or at the prompt
    /// the conversation.
    #[cfg(feature = "generate")]
    Chat(ChatArgs),
    /// Serve a language model over OpenAI's HTTP API, or all models that providers sell by the
    /// token, until Ctrl-C.
    #[cfg(feature = "generate")]
    Openai(OpenaiArgs),
    /// List, show and measure processors, and limit their power.
    #[command(subcommand)]
    Device(Device),
    /// Check this machine, the folder and its market for problems, and suggest a fix for each;
    /// exits with an error if there is a problem.
    Doctor,
    /// Show the market live in the terminal: validators, offers, trades, and the account and jobs
    /// of --dir; until Ctrl-C.
    Top(TopArgs),
    /// Show souk's settings and where they come from.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Collect the data for a problem report.
    #[command(subcommand)]
    Debug(DebugCommand),
    /// Print shell completions.
    Completions {
        /// The shell that must read them.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, one for each command.
    Man {
        /// The folder for the pages; souk creates it if necessary.
        folder: PathBuf,
    },
    /// Audit what others did: whether providers sold the model that they name, or whether a stopped
    /// validator's log gives the digests that it recorded.
    Audit(AuditArgs),
    /// Run benchmarks and conformance tests, with `souk-lab`.
    #[command(disable_help_flag = true)]
    Bench(LabArgs),
    /// Run and manage validators, which replicate the market.
    #[command(subcommand)]
    Validator(Validator),
    /// Run and manage a provider, which sells a device.
    #[command(subcommand)]
    Provider(Provider),
    /// Create, lock and unlock the secret key of the node or account in --dir.
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

/// Options of `souk top`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct TopArgs {
    /// The time between two updates.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = duration)]
    pub every: Duration,
    /// Print the state once and exit; the default if standard output is not a terminal.
    #[arg(long)]
    pub once: bool,
}

/// Commands on the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show each setting that applies to --dir, and its source: an option, a variable, a file or
    /// souk's default.
    Show,
}

/// Commands for reports.
#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// Write the data for a problem report into one file that you can read before you send it:
    /// versions, the output of `doctor` and `config show`, names and sizes of files, the ends of
    /// logs, and the states of jobs. The file contains no key, token, passphrase or tensor.
    Bundle {
        /// The output file.
        #[arg(short, long, default_value = "souk-debug.json", value_name = "FILE")]
        out: PathBuf,
    },
}

/// How fresh an answer must be.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Freshness {
    /// Answer with the state of one validator, even if the market has no majority; souk shows the
    /// age of that state. Without this option, the answer includes everything that was acknowledged
    /// before the question.
    #[arg(long)]
    pub stale: bool,
}

/// Commands of a validator.
#[derive(Debug, Subcommand)]
pub enum Validator {
    /// Run the validator in --dir, until Ctrl-C.
    Run(RunArgs),
    /// Create a new validator in --dir: a key and a listen address.
    Init(ValidatorInitArgs),
    /// Add a running validator that waits for admission, and wait until it votes.
    Add {
        /// The validator's address, as `souk validator init` and `run` print it.
        address: String,
        #[command(flatten)]
        order: OrderArgs,
    },
    /// Remove a validator for good, and wait until it has left. Its id is never used again.
    Remove {
        /// The validator's id, from `souk validator list`.
        id: u64,
        #[command(flatten)]
        order: OrderArgs,
    },
    /// List the validators: ids, addresses, votes and progress.
    List,
    /// Transfer the leadership to another validator.
    TransferLeader {
        /// The validator's id.
        id: u64,
        #[command(flatten)]
        order: OrderArgs,
    },
    /// Save the whole market, as one running validator has it, to one file with digests.
    Backup {
        /// The backup file.
        file: PathBuf,
        /// The validator to ask; by default that of --dir, or the leader if --dir is a market's
        /// folder.
        #[arg(long, value_name = "ID")]
        from: Option<u64>,
        #[command(flatten)]
        order: OrderArgs,
    },
    /// Restore a backup into the folder of the validator in --dir, which must not have a log yet.
    Restore {
        /// The backup file.
        file: PathBuf,
        /// Start the whole market again from the backup: you must restore every validator of
        /// market.json from the same file, and everything after the backup is lost.
        #[arg(long)]
        new_market: bool,
    },
}

/// A new validator.
#[derive(Debug, clap::Args)]
pub struct ValidatorInitArgs {
    /// The address on which the validator listens and the others reach it, such as
    /// /ip4/192.0.2.7/tcp/4001.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Move the log of an earlier validator in this folder aside, and start with an empty log and
    /// the same key.
    #[arg(long)]
    pub new_log: bool,
}

/// The operator's key, and how long to wait.
#[derive(Debug, clap::Args)]
pub struct OrderArgs {
    #[command(flatten)]
    pub key: OperatorKey,
    /// How long to wait until the change is complete, such as 30s or 10m.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    pub wait: Duration,
}

/// Commands about a key.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Create an operator's key in --dir, if there is none, before you create a market with several
    /// operators; prints its account.
    New,
    /// Encrypt the key with a passphrase: from the file that SOUK_PASSPHRASE_FILE names, from
    /// SOUK_PASSPHRASE, or typed. Every later command that uses the key needs the passphrase.
    Lock,
    /// Decrypt the key, and store it without a passphrase.
    Unlock,
}

/// How a node runs.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Stop when standard input closes, as it does when the process that started this one ends.
    #[arg(long)]
    pub until_stdin_closes: bool,
    /// Find peers on the local network by multicast, and let them find this node.
    #[arg(long)]
    pub mdns: bool,
    /// Relay, within limits, for peers that others cannot dial. Useful only on a node that others
    /// can dial.
    #[arg(long)]
    pub relay: bool,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, on a loopback address such as
    /// 127.0.0.1:9464.
    #[cfg(feature = "gateway")]
    #[arg(long, alias = "metrics", value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
}
