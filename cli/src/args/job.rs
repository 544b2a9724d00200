//! The arguments of `souk plan`, `souk submit` and `souk job …`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use souk_node::scheduler::planning::Objective;
use souk_vocabulary::profile::Backend as Through;

use super::{account, bytes, duration};

/// Commands on jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the jobs submitted from this folder: the newest first, as JSON last.
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
    /// Follow a job that another process runs, to its end: what happened and what happens.
    Watch {
        /// Its name, or the first digits of it.
        name: String,
    },
    /// End a job: the process that runs it ends its leases; where that is gone, this one does.
    Cancel {
        /// Its name, or the first digits of it.
        name: String,
        /// How long to wait for the process that runs it.
        #[arg(long, default_value_t = 30, value_name = "SECONDS")]
        wait: u64,
    },
    /// Show what happened to a job, with the time of each step.
    Logs {
        /// Its name, or the first digits of it.
        name: String,
    },
    /// Say why a job's parts went where they did, which offers were refused, and what went wrong.
    Explain {
        /// Its name, or the first digits of it.
        name: String,
    },
    /// Show where a job's outputs are, checked against what its journal says; or write them again.
    Result {
        /// Its name, or the first digits of it.
        name: String,
        /// Write them again in this folder.
        #[arg(short, long = "out", value_name = "DIR")]
        out: Option<PathBuf>,
        /// The format to write them in.
        #[arg(long, value_enum, default_value_t = Format::Npy, requires = "out")]
        format: Format,
    },
    /// Write when what ran where, for <https://ui.perfetto.dev>, at any time.
    Trace {
        /// Its name, or the first digits of it.
        name: String,
        /// The file; `JOB.trace.json` in this folder if none is named.
        #[arg(short, long = "out", value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// A job: the model, its inputs, and limits.
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
    /// Do not buy from this provider: its name or account, or what either begins with. May be
    /// given again.
    #[arg(long, value_name = "PROVIDER")]
    pub exclude: Vec<String>,
    /// Take emulated devices too. Only a testnet's buyers take them unasked.
    #[arg(long, conflicts_with = "real")]
    #[serde(default)]
    pub emulated: bool,
    /// Only devices that are really there, no emulated ones: in a testnet, too.
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
    /// What matters most. Balanced is the knee between fastest and cheapest: the least of time
    /// multiplied by price.
    #[arg(long, value_parser = objective(), default_value_t = Objective::Balanced)]
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
    /// Only devices in this region, such as europe-west; europe is all that begin so. May be given
    /// again.
    #[arg(long, value_name = "REGION")]
    #[serde(default, deserialize_with = "words_or_numbers")]
    pub region: Vec<String>,
    /// Only providers of at least this reputation, 0 to 1000.
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub min_reputation: u16,
    /// Run each part on so many providers and compare; where two differ, a third decides.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=2))]
    pub verify: u8,
    /// The most that a run may take of which nobody knows beforehand how long it takes, such as a
    /// loop by a count that comes in the run: 30s, 10m or 2h. Its leases are made longer until
    /// then, within the budget.
    #[arg(long, default_value = "600", value_name = "TIME", value_parser = seconds)]
    #[serde(default = "time_max")]
    pub max_time: f64,
    /// How long to wait for devices that others have leased, or for a --bid to be matched, such as
    /// 30s, 10m or 2h.
    #[arg(long, default_value = "5", value_name = "TIME", value_parser = seconds)]
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

/// A job and where its results go.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub struct SubmitArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// The folder for outputs and receipts.
    #[arg(short, long = "out", value_name = "DIR")]
    pub out: PathBuf,
    /// Bid so many credits a device-second, less than what is asked: the bid rests for --wait, and
    /// the job runs once it is matched. It takes one device.
    #[arg(long, value_name = "CREDITS", value_parser = account::credits,
          conflicts_with_all = ["min_providers", "verify", "max_price"])]
    #[serde(default)]
    pub bid: Option<u64>,
    /// Have the bid displace a spot lease of a lower price whose notice is at most this long.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "bid")]
    #[serde(default)]
    pub displace: Option<Duration>,
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
    /// Submit only what `souk plan` showed under this hash (eight digits of it will do), or what is
    /// as good within --slippage.
    #[arg(long, value_name = "HASH")]
    pub check_plan: Option<String>,
    /// How much more than the checked plan the job may cost and take.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub slippage: f64,
    /// Send no more than this a second to providers, such as 2MiB.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    #[serde(default)]
    pub upload_limit: Option<u64>,
    /// Receive no more than this a second from providers, such as 2MiB.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
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
