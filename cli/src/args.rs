//! The command line.

mod account;
mod bench;
mod device;
mod market;
mod testnet;
mod trade;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use souk_node::scheduler::planning::Objective;
use souk_vocabulary::profile::Backend as Through;

pub use account::{Account, Movement, Operator, OperatorKey};
pub use bench::{
    Bench, BenchNodeArgs, BenchTensorsArgs, ConsensusArgs, CostArgs, FlowName, MachineArgs,
    ModelArgs, ModelSetArgs, ModelsArgs, SubmitBenchArgs,
};
pub use device::{Backend, Device, Probe};
pub use market::{FoundArgs, Market};
pub use testnet::{ChaosArgs, GossipArgs, HostileArgs, SimArgs, Testnet};
pub use trade::{Lease, Order};

/// A market for compute: sell device time, buy it, run ONNX models on it.
///
/// Try it all on this machine with `souk demo`. For your own model: `souk testnet up` in one
/// terminal and `souk submit model.onnx -i name=file.npy -o out` in another.
#[derive(Debug, Parser)]
#[command(name = "souk", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 unexpected, 2 usage, 3 bad input, 4 no plan fits, \
5 network, 6 job failed,\n7 a signature or result does not hold, 8 wrong state of a folder, \
9 budget, 10 deadline,\n130 interrupted. SOUK_LOG=info shows more."
)]
pub struct Args {
    /// The folder of the testnet or node.
    #[arg(
        long,
        global = true,
        env = "SOUK_DIR",
        default_value = "souk-testnet",
        value_name = "DIR"
    )]
    pub dir: PathBuf,
    /// The market of this name in a folder below --dir, where that holds several.
    #[arg(long, global = true, value_name = "NAME")]
    pub market: Option<String>,
    /// How results are printed.
    #[arg(long, global = true, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// Short for --output json.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Args {
    /// How results are printed.
    pub fn output(&self) -> Output {
        if self.json { Output::Json } else { self.output }
    }

    /// Threads for the network and all that waits, if the command wants another number than there
    /// are cores. A benchmark's replica shares its cores with all others, and each message would
    /// wake a second thread.
    pub fn threads(&self) -> Option<usize> {
        matches!(self.command, Command::Bench(Bench::Node(_))).then_some(1)
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs: one JSON value on standard output.
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring up a market on this machine, run a real model through it, and take it down.
    Demo,
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
    /// Look into an ONNX model.
    #[command(subcommand)]
    Model(Model),
    /// Processors: this machine's, and those souk knows by name.
    #[command(subcommand)]
    Device(Device),
    /// Replay a stopped validator's log and compare every digest it ever wrote down.
    Audit {
        /// The validator's folder, such as souk-testnet/validator-1.
        folder: PathBuf,
    },
    /// Measure souk.
    #[command(subcommand)]
    Bench(Bench),
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

/// Commands on jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the jobs submitted from this folder, oldest first.
    List,
    /// Show one job: its rounds, leases, receipts and what it has cost.
    Status {
        /// Its name, or the first digits of it.
        name: String,
    },
    /// Go on with a job whose process died or was interrupted: what was computed is not run again.
    Resume {
        /// Its name, or the first digits of it.
        name: String,
    },
}

/// A job: the model, its inputs, and limits.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Freshness {
    /// Take what one validator has, also while no majority of them runs; its age is shown. Without
    /// this the answer holds everything that was acknowledged before the question
    #[arg(long)]
    pub stale: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub struct JobArgs {
    /// The ONNX model.
    pub model: PathBuf,
    /// An input: NAME=FILE.npy, or FILE.safetensors whose tensors are named like the inputs.
    #[arg(short, long = "input", value_name = "NAME=FILE")]
    pub input: Vec<String>,
    /// The most the job may cost, in credits, failed attempts included. A hard stop.
    #[arg(long, value_name = "CREDITS", allow_negative_numbers = true)]
    pub budget: Option<f64>,
    /// The most to pay for a device-second, in credits.
    #[arg(long, value_name = "CREDITS", allow_negative_numbers = true)]
    pub max_price: Option<f64>,
    /// Spread the job over at least so many providers.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub min_providers: usize,
    /// Use at most so many providers.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub max_providers: usize,
    /// Do not buy from this account (64 hexadecimal digits). May be given again.
    #[arg(long, value_name = "ACCOUNT")]
    pub exclude: Vec<String>,
    /// Only devices that are really there, no emulated ones.
    #[arg(long)]
    pub real: bool,
    /// Only devices of this kind (cpu, gpu, tpu, ...) or with this in their model's name, as `souk
    /// book` shows them. May be given again: any of them will do.
    #[arg(long, value_name = "NAME",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    #[serde(default)]
    pub device: Vec<String>,
    /// Only devices that run operators through this.
    #[arg(long, value_name = "NAME", value_parser = backend())]
    #[serde(default)]
    pub backend: Option<Through>,
    /// What matters most.
    #[arg(long, value_parser = objective(), default_value_t = Objective::Fastest)]
    pub prefer: Objective,
    /// The most the job may take, from its plan to its last output.
    #[arg(long, value_name = "SECONDS")]
    pub deadline: Option<f64>,
    /// The least notice a provider must give before it takes its device back.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub min_notice: f64,
    /// Take leases that a provider may end with the notice it states, or lose to a higher bid; what
    /// was computed by then is kept.
    #[arg(long)]
    pub spot: bool,
    /// Only devices in this region, 0 to 31. May be given again.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..32))]
    pub region: Vec<u8>,
    /// Only providers of at least this reputation, 0 to 1000.
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub min_reputation: u16,
    /// Run each part on so many providers and compare; where two differ, a third decides.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=2))]
    pub verify: u8,
    /// How long to wait for devices that others have leased.
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    pub wait: f64,
}

/// Takes the names of what devices go through.
fn backend() -> impl TypedValueParser<Value = Through> {
    let names = PossibleValuesParser::new(Through::ALL.map(Through::name));
    names.try_map(|name| Through::named(&name).ok_or("it is none of them"))
}

/// Takes what matters most to a buyer: time, money, or energy by the power that providers state.
fn objective() -> impl TypedValueParser<Value = Objective> {
    let names = PossibleValuesParser::new(Objective::NAMED.map(|(name, _)| name));
    names.try_map(|name| name.parse::<Objective>())
}

/// A job and where its results go.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub struct SubmitArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// The folder for outputs and receipts.
    #[arg(short, long = "out", value_name = "DIR")]
    pub out: PathBuf,
    /// Which of your own jobs goes first where they want the same devices. To go before others'
    /// takes a price, not a priority.
    #[arg(long, value_enum, default_value_t = Priority::Normal)]
    #[serde(default)]
    pub priority: Priority,
    /// The format of the outputs.
    #[arg(long, value_enum, default_value_t = Format::Npy)]
    pub format: Format,
    /// Write when what ran on which device, for <https://ui.perfetto.dev>.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Submit only what `souk plan` showed under this hash, or what is as good within --slippage.
    #[arg(long, value_name = "HASH")]
    pub check_plan: Option<String>,
    /// How much more than the checked plan the job may cost and take.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub slippage: f64,
    /// Send no more than this a second to providers, such as 2MiB.
    #[arg(long, value_name = "BYTES", value_parser = bench::bytes)]
    #[serde(default)]
    pub upload_limit: Option<u64>,
    /// Receive no more than this a second from providers, such as 2MiB.
    #[arg(long, value_name = "BYTES", value_parser = bench::bytes)]
    #[serde(default)]
    pub download_limit: Option<u64>,
    /// Send and receive over libp2p alone, without a direct channel for large content.
    #[arg(long)]
    #[serde(default)]
    pub no_direct: bool,
    /// Run the model once for each file of a folder, in the order of their names, while several
    /// providers work on different files at once: FOLDER of .safetensors, or NAME=FOLDER of .npy
    /// for the input of that name. Inputs given with -i are the same for all.
    #[arg(long, value_name = "[NAME=]FOLDER")]
    #[serde(default)]
    pub stream: Option<String>,
    /// How many requests of a stream are under way at a time.
    #[arg(long, value_name = "N", default_value_t = WINDOW, requires = "stream",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    #[serde(default = "window")]
    pub window: u32,
}

/// Requests under way where nothing else is said: two for each of four providers.
const WINDOW: u32 = 8;

fn window() -> u32 {
    WINDOW
}

/// Which of a buyer's own jobs goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Priority {
    /// After all others.
    Low,
    /// Where nothing is said.
    #[default]
    Normal,
    /// Before all others.
    High,
}

/// A file format for tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Format {
    /// One NumPy file an output.
    Npy,
    /// All outputs in `outputs.safetensors`.
    Safetensors,
}

/// Commands on receipts.
#[derive(Debug, Subcommand)]
pub enum Receipt {
    /// Check arithmetic and both signatures of a receipt, with no node running.
    Verify {
        /// The receipt, as `souk submit` wrote it.
        file: PathBuf,
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
    /// Show what the provider in --dir sells, its leases, what it earned and what its devices did;
    /// it need not run.
    Status {
        /// Begin the sums of what its devices did anew, once they are shown.
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
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<SocketAddr>,
}
