//! The arguments of `souk plan`, `souk submit` and `souk job …`. A job runs a model of the user on
//! devices that it leases.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use souk_node::market::Permille;
use souk_node::scheduler::planning::Objective;
use souk_vocabulary::profile::Backend as Through;

use super::{account, bytes, duration, share};

/// Commands on jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the jobs submitted from this folder: newest first, as JSON newest last.
    List,
    /// Show a job: its rounds, leases, receipts and cost.
    Status {
        /// The job's name, or its first digits.
        name: String,
    },
    /// Resume a job whose process died or was interrupted; finished work does not run again.
    Resume {
        /// The job's name, or its first digits.
        name: String,
    },
    /// Follow a job that another process runs, until it ends: past events and new ones.
    Watch {
        /// The job's name, or its first digits.
        name: String,
    },
    /// Cancel a job: the process that runs it ends its leases; if that process is gone, this one
    /// does.
    Cancel {
        /// The job's name, or its first digits.
        name: String,
        /// How long to wait for the process that runs the job, such as 30s or 10m.
        #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration)]
        wait: Duration,
    },
    /// Show the events of a job, with the time of each step.
    Logs {
        /// The job's name, or its first digits.
        name: String,
    },
    /// Explain why a job's parts went where they did, which offers were refused, and what failed.
    Explain {
        /// The job's name, or its first digits.
        name: String,
    },
    /// Show where a job's outputs are, after a check against its journal; or write them again.
    Result {
        /// The job's name, or its first digits.
        name: String,
        /// Write the outputs again, into this folder.
        #[arg(short, long = "out", value_name = "DIR")]
        out: Option<PathBuf>,
        /// The format of the outputs.
        #[arg(long, value_enum, default_value_t = Format::Npy, requires = "out")]
        format: Format,
    },
    /// Write a timeline of a job for <https://ui.perfetto.dev>, at any time.
    Trace {
        /// The job's name, or its first digits.
        name: String,
        /// The output file; by default `JOB.trace.json` in this folder.
        #[arg(short, long = "out", value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// A job: the model, its inputs, and limits.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub struct JobArgs {
    /// The ONNX model.
    pub model: PathBuf,
    /// An input: NAME=FILE.npy, or FILE.safetensors with tensors named like the inputs.
    #[arg(short, long = "input", value_name = "NAME=FILE")]
    pub input: Vec<String>,
    /// The maximum cost of the job, in credits, including failed attempts. A hard limit.
    #[arg(long, value_name = "CREDITS", allow_negative_numbers = true)]
    pub budget: Option<f64>,
    /// The maximum price of a device-second, in credits.
    #[arg(long, value_name = "CREDITS", allow_negative_numbers = true)]
    pub max_price: Option<f64>,
    /// Spread the job over at least this many providers.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub min_providers: usize,
    /// Use at most this many providers.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub max_providers: usize,
    /// Do not buy from this provider: its name, its account, or the beginning of either. Can be
    /// given several times.
    #[arg(long, value_name = "PROVIDER")]
    pub exclude: Vec<String>,
    /// Also use emulated devices. Only buyers in a testnet use them by default.
    #[arg(long, conflicts_with = "real")]
    #[serde(default)]
    pub emulated: bool,
    /// Use only real devices, no emulated ones, even in a testnet.
    #[arg(long)]
    pub real: bool,
    /// Use only devices of this kind (cpu, gpu, tpu, ...) or with this in their model's name, as
    /// `souk book` shows them. Can be given several times; one match suffices.
    #[arg(long, value_name = "NAME",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    #[serde(default)]
    pub device: Vec<String>,
    /// Use only devices that run operators through this backend.
    #[arg(long, value_name = "NAME", value_parser = backend())]
    #[serde(default)]
    pub backend: Option<Through>,
    /// Use only providers that promise results of the same bits on every machine (exact-1), so that
    /// you can find a wrong result with --audit and accuse its provider with `souk dispute open`.
    #[arg(long)]
    #[serde(default)]
    pub exact: bool,
    /// The objective. Balanced is the knee between fastest and cheapest: the minimum of time
    /// multiplied by price.
    #[arg(long, value_parser = objective(), default_value_t = Objective::Balanced)]
    pub prefer: Objective,
    /// The maximum time of the job, from its plan to its last output, such as 30s, 10m or 2h.
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub deadline: Option<f64>,
    /// The minimum notice that a provider must give before it takes its device back, such as 30s.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = seconds)]
    pub min_notice: f64,
    /// Use spot leases, which a provider can end with the notice it states and a higher bid can
    /// take; the job keeps what it computed until then.
    #[arg(long)]
    pub spot: bool,
    /// Use only devices in this region, such as europe-west; europe matches all regions that begin
    /// with it. Can be given several times.
    #[arg(long, value_name = "REGION")]
    #[serde(default, deserialize_with = "words_or_numbers")]
    pub region: Vec<String>,
    /// Use only providers with at least this reputation, 0 to 1000.
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub min_reputation: u16,
    /// Run each part on this many providers and compare; if two differ, a third decides.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=2))]
    pub verify: u8,
    /// The maximum time of a run whose length is unknown beforehand, such as a loop whose count
    /// comes in the run: 30s, 10m or 2h. souk extends its leases until then, within the budget.
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = seconds)]
    #[serde(default = "time_max")]
    pub max_time: f64,
    /// How long to wait for devices that others have leased, or for a match of `souk submit --bid`,
    /// such as 30s, 10m or 2h.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = seconds)]
    pub wait: f64,
}

/// Default for stored jobs from before this option existed.
fn time_max() -> f64 {
    souk_node::buyer::job::TIME_MAX.as_secs_f64()
}

/// Reads regions as words. Jobs stored before regions had names hold numbers.
fn words_or_numbers<'d, D: serde::Deserializer<'d>>(from: D) -> Result<Vec<String>, D::Error> {
    let values = Vec::<serde_json::Value>::deserialize(from)?;
    let word = |value: serde_json::Value| match value {
        serde_json::Value::String(word) => word,
        other => other.to_string(),
    };
    Ok(values.into_iter().map(word).collect())
}

/// Parses a duration into seconds.
fn seconds(text: &str) -> Result<f64, String> {
    duration(text).map(|time| time.as_secs_f64())
}

/// Parses the name of the backend that devices use.
fn backend() -> impl TypedValueParser<Value = Through> {
    let names = PossibleValuesParser::new(Through::ALL.map(Through::name));
    names.try_map(|name| Through::from_name(&name).ok_or("it is none of them"))
}

/// Parses the buyer's objective: time, money, or energy by the power that providers state.
pub(super) fn objective() -> impl TypedValueParser<Value = Objective> {
    let names = PossibleValuesParser::new(Objective::NAMED.map(|(name, _)| name));
    names.try_map(|name| name.parse::<Objective>())
}

/// A job, and where its results go.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub struct SubmitArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// The folder for outputs and receipts.
    #[arg(short, long = "out", value_name = "DIR")]
    pub out: PathBuf,
    /// Bid this many credits per device-second, less than the asks: the bid rests for --wait, and
    /// the job runs once it matches. The job uses one device.
    #[arg(long, value_name = "CREDITS", value_parser = account::credits,
          conflicts_with_all = ["min_providers", "verify", "max_price"])]
    #[serde(default)]
    pub bid: Option<u64>,
    /// Let the bid displace a spot lease with a lower price whose notice is at most this long.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "bid")]
    #[serde(default)]
    pub displace: Option<Duration>,
    /// The priority among your own jobs that want the same devices. Against the jobs of others only
    /// the price counts.
    #[arg(long, value_enum, default_value_t = Priority::Normal)]
    #[serde(default)]
    pub priority: Priority,
    /// Compute this share of the requests again on this machine, such as 5%, after the provider
    /// signed their outputs, and compare each bit. Nobody can know which requests these are. If the
    /// provider lied, the command fails and names the receipt for `souk dispute open`.
    #[arg(long, value_name = "PERCENT", value_parser = share, requires = "exact")]
    #[serde(default)]
    pub audit: Option<Permille>,
    /// The format of the outputs.
    #[arg(long, value_enum, default_value_t = Format::Npy)]
    pub format: Format,
    /// Write a timeline of the run for <https://ui.perfetto.dev>.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Submit only the plan that `souk plan` showed under this hash (eight digits suffice), or one
    /// that is as good within --slippage.
    #[arg(long, value_name = "HASH")]
    pub check_plan: Option<String>,
    /// How much more than the checked plan the job can cost and take.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub slippage: f64,
    /// Send at most this many bytes per second to providers, such as 2MiB.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    #[serde(default)]
    pub upload_limit: Option<u64>,
    /// Receive at most this many bytes per second from providers, such as 2MiB.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    #[serde(default)]
    pub download_limit: Option<u64>,
    /// Use only libp2p to send and receive, without a direct channel for large content.
    #[arg(long)]
    #[serde(default)]
    pub no_direct: bool,
    /// Run the model once for each file of a folder, in the order of their names, while several
    /// providers work on different files at once: FOLDER with .safetensors files, or NAME=FOLDER
    /// with .npy files for the input of that name. Inputs given with -i are the same for all files.
    #[arg(long, value_name = "[NAME=]FOLDER")]
    #[serde(default)]
    pub stream: Option<String>,
    /// How many requests of a stream can be in progress at once.
    #[arg(long, value_name = "N", default_value_t = WINDOW, requires = "stream",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    #[serde(default = "window")]
    pub window: u32,
}

/// Default number of concurrent requests: two for each of four providers.
const WINDOW: u32 = 8;

fn window() -> u32 {
    WINDOW
}

/// Which of a buyer's own jobs goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Priority {
    /// After all others.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before all others.
    High,
}

/// A file format for tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Format {
    /// One NumPy file per output.
    Npy,
    /// All outputs in `outputs.safetensors`.
    Safetensors,
}
