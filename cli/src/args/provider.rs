//! The arguments of `souk provider …`. A provider sells the time of this machine's devices, or the
//! answers of a language model.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use souk_folder::limits::LEASES_MAX;
use souk_network::protocols::regions::NamedRegion;

use super::{RunArgs, duration, trade};

/// Commands of a provider.
#[derive(Debug, Subcommand)]
pub enum Provider {
    /// Run the provider in --dir, until Ctrl-C; then end its leases or give them back.
    Run(ProviderRunArgs),
    /// Create a new provider in --dir: measure the device, propose a price from the market's
    /// history, ask for limits, and write a commented provider.toml.
    Init(Box<ProviderInitArgs>),
    /// Measure the CPU of the provider in --dir again, for its next start. souk keeps the result
    /// for a day, or until the machine, souk or the provider's file changes.
    Measure,
    /// Show the price of a device-second in the file of the provider in --dir, or set another; a
    /// running provider uses it within seconds. Sold leases keep their price.
    Price {
        /// The new price, in credits; without it, souk shows the current price.
        credits: Option<f64>,
        /// The new price of a million output tokens, in credits, for a provider that sells a model
        /// by the token.
        #[arg(long, value_name = "CREDITS", conflicts_with = "credits")]
        out: Option<f64>,
    },
    /// Show what the provider in --dir sells, its leases, its earnings and its device statistics;
    /// the provider need not run.
    Status {
        /// Show the device statistics and the learned speeds, then reset both.
        #[arg(long)]
        reset: bool,
    },
}

/// The most requests that an endpoint answers at once.
const SLOTS_MAX: i64 = LEASES_MAX as i64;

/// The highest floor, in output tokens a second: souk's buyers avoid more than a tenth of the
/// price.
const FLOOR_TOKENS_MAX: i64 = 100;

/// A new provider. souk asks for each missing option, and proposes a value.
#[derive(Debug, clap::Args)]
pub struct ProviderInitArgs {
    /// Use the proposed value for each missing option, and ask nothing.
    #[arg(long)]
    pub yes: bool,
    /// Show the ask that the provider would place now, and write nothing. In a provider's folder,
    /// show the ask of its file.
    #[arg(long)]
    pub dry_run: bool,
    /// The name under which the provider registers.
    #[arg(long)]
    pub name: Option<String>,
    /// The address on which the provider listens.
    #[arg(long, value_name = "ADDRESS", default_value = "/ip4/0.0.0.0/tcp/0")]
    pub listen: String,
    /// The device, as `souk device list` names it: `cpu`, `exact` (the CPU, with results of the
    /// same bits on every machine, for which the stake answers), `gpu` (or `gpu:` and a part of its
    /// name), `cuda:N`, `onnxruntime:PROVIDER`, or one of the catalogue, which souk emulates.
    #[arg(long)]
    pub device: Option<String>,
    /// Sell a model of an inference engine instead of a device: the base URL of its OpenAI API,
    /// such as http://127.0.0.1:8000/v1; on another machine it must be https.
    #[arg(long, value_name = "URL", requires_all = ["model", "out"], group = "sells_tokens",
          conflicts_with_all = [
        "device", "price", "onnxruntime", "no_isolation", "strategy", "leases"])]
    pub endpoint: Option<String>,
    /// Sell a model that souk's own decoder runs on this machine, instead of a device: a Hugging
    /// Face folder, a GGUF file, or `bundled`. All buyers share its steps.
    #[cfg(feature = "generate")]
    #[arg(long, value_name = "MODEL", requires = "out", group = "sells_tokens",
          conflicts_with_all = [
        "device", "price", "onnxruntime", "no_isolation", "strategy", "leases", "key_file",
        "ca_file", "resold", "field"])]
    pub serve: Option<PathBuf>,
    /// With --endpoint: the model, as the engine names it. With --serve: the name under which it is
    /// sold; by default the model's own.
    #[arg(long, value_name = "NAME", requires = "sells_tokens")]
    pub model: Option<String>,
    /// With --endpoint or --serve: the price of a million output tokens, in credits.
    #[arg(long, value_name = "CREDITS", requires = "sells_tokens")]
    pub out: Option<f64>,
    /// With --endpoint or --serve: the price of a million input tokens, in credits; by default a
    /// quarter of that of output tokens.
    #[arg(long = "in", value_name = "CREDITS", requires = "sells_tokens")]
    pub input: Option<f64>,
    /// With --endpoint or --serve: the price of a million cached input tokens, in credits: of
    /// messages with which an earlier request of the tab began too. By default as for others.
    #[arg(long, value_name = "CREDITS", requires = "sells_tokens")]
    pub cached: Option<f64>,
    /// With --endpoint or --serve: how many output tokens a buyer pays at least for each second in
    /// which it holds a slot without a request. By default --serve takes half of what it measures
    /// for one of the slots, and --endpoint 0. Idle time costs at least the market's reserve.
    #[arg(long, value_name = "TOKENS", requires = "sells_tokens",
          value_parser = clap::value_parser!(u32).range(0..=FLOOR_TOKENS_MAX))]
    pub floor: Option<u32>,
    /// With --endpoint: the file with the engine's key, which no other user should be able to read.
    #[arg(long, value_name = "PATH", requires = "endpoint")]
    pub key_file: Option<PathBuf>,
    /// With --endpoint: the certificate authorities for an https engine, in place of the system's.
    #[arg(long, value_name = "PATH", requires = "endpoint")]
    pub ca_file: Option<PathBuf>,
    /// With --endpoint: tell buyers that the engine is not yours but a service's.
    #[arg(long, requires = "endpoint")]
    pub resold: bool,
    /// With --endpoint: send this field with each request to the engine too, such as
    /// `repeat_penalty=1.0`, which switches off a penalty that llama-cpp-python applies by itself.
    /// Can be given several times.
    #[arg(long, value_name = "NAME=VALUE", requires = "endpoint", value_parser = engine_field)]
    pub field: Vec<EngineField>,
    /// With --endpoint or --serve: how many buyers can be answered at once.
    #[arg(long, value_name = "N", requires = "sells_tokens", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=SLOTS_MAX))]
    pub slots: u32,
    /// With --serve: the number of positions for the messages and the answer of a request; by
    /// default the model's own, at most 4096.
    #[cfg(feature = "generate")]
    #[arg(long, value_name = "N", requires = "serve",
          value_parser = clap::value_parser!(u32).range(2..))]
    pub context: Option<u32>,
    /// With --serve: the number of threads that compute; by default one for each core.
    #[cfg(feature = "generate")]
    #[arg(long, value_name = "N", requires = "serve",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// The region of the device, such as europe-west, for buyers who ask for one; an unknown region
    /// lists all.
    #[arg(long, value_name = "REGION")]
    pub region: Option<NamedRegion>,
    /// The ONNX Runtime library to use; by default the one that souk finds.
    #[arg(long, value_name = "PATH")]
    pub onnxruntime: Option<PathBuf>,
    /// The price of a device-second, in credits.
    #[arg(long, value_name = "CREDITS")]
    pub price: Option<f64>,
    /// Run jobs in the provider's own process: for buyers you trust, on your own machine.
    #[arg(long)]
    pub no_isolation: bool,
    #[command(flatten)]
    pub pricing: PricingArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// How the provider sets its price.
#[derive(Debug, clap::Args)]
pub struct PricingArgs {
    /// The pricing strategy: the price as given, the cost plus a margin, or the market's price.
    #[arg(long, value_enum, default_value_t = StrategyName::Fixed)]
    pub strategy: StrategyName,
    /// With follow: the price, in per cent of what the market paid recently.
    #[arg(long, default_value_t = 100)]
    pub percent: u32,
    /// With cost-plus: the watts that the device draws at work; by default the device's own figure,
    /// if it has one.
    #[arg(long)]
    pub watts: Option<u32>,
    /// With cost-plus: the price of a kilowatt-hour, in credits.
    #[arg(long, default_value_t = 0.0, value_name = "CREDITS")]
    pub kwh_price: f64,
    /// With cost-plus: all other costs of an hour, in credits.
    #[arg(long, default_value_t = 0.0, value_name = "CREDITS")]
    pub hour_price: f64,
    /// With cost-plus: the margin, in per cent.
    #[arg(long, default_value_t = 20, value_name = "PERCENT")]
    pub margin: u32,
    /// Set another price for a time of the day (UTC), such as 22:00-06:00=70. Can be given several
    /// times.
    #[arg(long, value_name = "HOURS=PERCENT")]
    pub band: Vec<String>,
    /// Set another price for spot leases with this notice, such as 5s=40; a longer notice must have
    /// a higher price. Can be given up to four times.
    #[arg(long, value_name = "TIME=PERCENT", value_parser = trade::spot_share)]
    pub spot: Vec<(u32, u32)>,
}

/// A strategy of pricing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StrategyName {
    /// The price as given.
    Fixed,
    /// The cost plus a margin.
    CostPlus,
    /// The market's price.
    Follow,
}

/// The limits of a provider, at any price.
#[derive(Debug, clap::Args)]
pub struct LimitArgs {
    /// How many leases to sell at once, each for an equal share of the device.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub leases: Option<u32>,
    /// The maximum number of threads for jobs.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cores: Option<u32>,
    /// The maximum memory that all jobs together can use, in MiB; the provider offers this much.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub memory: Option<u64>,
    /// Sell only at this time of the day (UTC), such as 20:00-08:00. Can be given several times.
    #[arg(long, value_name = "HOURS")]
    pub hours: Vec<String>,
    /// Sell only devices of this kind, such as cpu. Can be given several times.
    #[arg(long = "class", value_name = "KIND")]
    pub classes: Vec<String>,
    /// Run only graphs of this operator, such as MatMul. Can be given several times.
    #[arg(long = "operator", value_name = "NAME")]
    pub operators: Vec<String>,
    /// Do not run buyers' own kernels in WebAssembly.
    #[arg(long)]
    pub no_wasm: bool,
    /// Do not run buyers' own kernels in WGSL.
    #[arg(long)]
    pub no_wgsl: bool,
    /// The minimum price of a device-second, in credits, with any pricing strategy.
    #[arg(long, value_name = "CREDITS")]
    pub min_price: Option<f64>,
    /// The price of a second in which a buyer holds the device and does not use it, in per cent of
    /// the price. The market's reserve (10) applies if it is higher.
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=100))]
    pub idle_percent: u16,
    /// Sell only to buyers with at least this reputation, 0 to 1000. A new buyer has 500.
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub min_reputation: u16,
    /// Limit the power of a domain while the provider runs, such as intel-rapl:0=65, in watts.
    /// `souk device power` shows the domains. Can be given several times.
    #[arg(long = "power-limit", value_name = "DOMAIN=WATTS")]
    pub power_limits: Vec<String>,
}

/// A field that each request to an engine has.
#[derive(Clone, Debug)]
pub struct EngineField {
    /// The field's name.
    pub name: String,
    /// Its value.
    pub value: serde_json::Value,
}

/// Parses `NAME=VALUE`. A value that is not JSON is a text.
fn engine_field(text: &str) -> Result<EngineField, String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("give a name and a value, such as repeat_penalty=1.0")?;
    Ok(EngineField {
        name: name.to_owned(),
        value: serde_json::from_str(value).unwrap_or_else(|_| value.into()),
    })
}

/// How a provider runs.
#[derive(Debug, clap::Args)]
pub struct ProviderRunArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// How long running leases can continue after a stop before they end with what is done, such
    /// as 30s or 10m.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    pub drain: Duration,
}
