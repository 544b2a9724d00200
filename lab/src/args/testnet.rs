//! Defines the subcommands `souk testnet sim|attacks|chaos|hostile|liars|gossip` and their
//! arguments. Their doc comments are the text of `--help`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use souk_cli::options::duration;

/// Commands that test a market.
#[derive(Debug, Subcommand)]
pub enum Testnet {
    /// Simulate a market with faults: the real replicas, log and exchange, in one thread, on
    /// simulated networks, disks and clocks, all from one seed.
    Sim(SimArgs),
    /// Try every way to cheat the other party of a lease, on the market's real rules, and print the
    /// most that it can lose.
    Attacks,
    /// Kill, stop and disconnect nodes of a new market under a stream of jobs, and check the
    /// guarantees; with --running, kill nodes of the testnet in --dir, which restart.
    Chaos(ChaosArgs),
    /// Attack a market of real processes in every known way while honest buyers continue, and check
    /// the guarantees and the cost to the nodes.
    Hostile(HostileArgs),
    /// Make one of four validators lie in each way that the protocol can express, and show what two
    /// clients see, and whom their files name without a network.
    Liars(LiarsArgs),
    /// Run the gossip of many nodes in this process, and count the bytes of each.
    Gossip(GossipArgs),
}

/// How to attack a market.
#[derive(Debug, clap::Args)]
pub struct HostileArgs {
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The duration of the attacks.
    #[arg(long, default_value_t = 2.0, value_name = "MINUTES")]
    pub minutes: f64,
    /// The number of honest buyers that submit jobs at the same time.
    #[arg(long, default_value_t = 3)]
    pub buyers: usize,
}

/// Where the lies are kept.
#[derive(Debug, clap::Args)]
pub struct LiarsArgs {
    /// The folder for the files of each lie; by default they are removed.
    #[arg(short = 'o', long = "out", value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// A network to measure.
#[derive(Debug, clap::Args)]
pub struct GossipArgs {
    /// The seed of the random choices: the peers of each node, and its first time to publish.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The number of nodes, each a provider.
    #[arg(long, default_value_t = 1000)]
    pub nodes: usize,
    /// How often each node publishes its profile, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub period: u64,
    /// How long the network warms up before the count, in seconds.
    #[arg(long, default_value_t = 30)]
    pub warm_up: u64,
    /// How long the count lasts, in seconds.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
}

/// The faults to inject into a market.
#[derive(Debug, clap::Args)]
pub struct ChaosArgs {
    /// Kill nodes of the running testnet in --dir, one at a time, as kill -9 does; its supervisor
    /// restarts them.
    #[arg(long, conflicts_with_all = ["buyers", "netns"])]
    pub running: bool,
    /// Also kill its gateway.
    #[arg(long, requires = "running")]
    pub gateway: bool,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long to inject faults.
    #[arg(long, default_value_t = 10.0, value_name = "MINUTES")]
    pub minutes: f64,
    /// The number of faults per hour.
    #[arg(long, default_value_t = 100)]
    pub per_hour: u32,
    /// The number of buyers that submit jobs at the same time.
    #[arg(long, default_value_t = 3)]
    pub buyers: usize,
    /// Give each node its own network namespace, and cut links too; needs root.
    #[arg(long)]
    pub netns: bool,
}

/// What to simulate.
#[derive(Debug, clap::Args)]
pub struct SimArgs {
    /// The seed of the whole simulation.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The number of seeds to simulate, from --seed on.
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// The simulated minutes with faults, for each seed.
    #[arg(long, default_value_t = 1)]
    pub minutes: u64,
    /// The number of validators.
    #[arg(long, default_value_t = 5)]
    pub nodes: usize,
    /// The number of market commands per simulated second.
    #[arg(long, default_value_t = 100)]
    pub commands: u64,
    /// Simulate only these faults of the schedule, as a failing run names them, or `none`.
    #[arg(long, value_name = "N,N", value_parser = chosen_faults)]
    pub faults: Option<ChosenFaults>,
    /// A crowd to simulate instead of the faults.
    #[command(flatten)]
    pub crowd: CrowdArgs,
}

/// A crowd of providers and buyers in virtual time.
#[derive(Debug, clap::Args)]
pub struct CrowdArgs {
    /// Simulate a day of so many providers with their buyers, without faults of the network and
    /// with modelled consensus.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub providers: Option<u32>,
    /// Simulate a crowd of each of these sizes, one after the other, and compare them.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        conflicts_with = "providers"
    )]
    pub growth: Vec<u32>,
    /// The number of buyers; a tenth of the providers by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub buyers: Option<u32>,
    /// The virtual hours of demand; leases can end after them.
    #[arg(long, value_name = "HOURS", default_value_t = 1.0)]
    pub hours: f64,
    /// The mean time for which a provider is there.
    #[arg(long, value_name = "TIME", default_value = "2h", value_parser = duration)]
    pub churn: Duration,
    /// The part of providers that vanish or bill too much, such as 1% or 0.5%.
    #[arg(long, value_name = "PART", default_value = "1%", value_parser = permille)]
    pub liars: u64,
    /// The number of validators, each a queue with measured costs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=15))]
    pub replicas: u32,
    /// Where to write the picture of --growth, an SVG file.
    #[arg(long, short = 'o', value_name = "FILE", requires = "growth")]
    pub picture: Option<PathBuf>,
}

impl CrowdArgs {
    /// Returns whether to simulate a crowd.
    pub fn is_wanted(&self) -> bool {
        self.providers.is_some() || !self.growth.is_empty()
    }
}

/// Parses a part such as 1% or 0.5% into thousandths.
fn permille(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    let part = number.ok().filter(|part| (0.0..=100.0).contains(part));
    let part = part.ok_or_else(|| "a part is like 1% or 0.5%".to_owned())?;
    Ok((part * 10.0).round() as u64)
}

/// Faults by their numbers in a seed's schedule.
#[derive(Clone, Debug)]
pub struct ChosenFaults(pub Vec<usize>);

fn chosen_faults(text: &str) -> Result<ChosenFaults, String> {
    if text == "none" {
        return Ok(ChosenFaults(Vec::new()));
    }
    let number = |word: &str| word.parse().map_err(|_| format!("`{word}` is no number"));
    let numbers = text.split(',').map(number).collect::<Result<_, _>>();
    numbers.map(ChosenFaults)
}
