//! The arguments of `souk testnet sim|attacks|chaos|hostile|gossip`.

use clap::Subcommand;

/// What to try a market with.
#[derive(Debug, Subcommand)]
pub enum Testnet {
    /// Simulate a market with faults: replicas, log and exchange as they are, in one thread, on
    /// simulated networks, disks and clocks, everything from one seed.
    Sim(SimArgs),
    /// Try every way there is to cheat the other party of a lease, on the market's real rules, and
    /// tell the most it can lose.
    Attacks,
    /// Kill, stop and cut off nodes of a new market under a stream of jobs, and check what holds;
    /// with --running kill nodes of the testnet in --dir, which come back.
    Chaos(ChaosArgs),
    /// Attack a market of real processes in every way known while honest buyers go on, and check
    /// what held and what it cost the nodes.
    Hostile(HostileArgs),
    /// Run the gossip of many nodes in this process and count what each pays for it.
    Gossip(GossipArgs),
}

/// How a market is attacked.
#[derive(Debug, clap::Args)]
pub struct HostileArgs {
    /// Everything drawn follows from it.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long the attacks go on.
    #[arg(long, default_value_t = 2.0, value_name = "MINUTES")]
    pub minutes: f64,
    /// Honest buyers that submit jobs at the same time.
    #[arg(long, default_value_t = 3)]
    pub buyers: usize,
}

/// A network to measure.
#[derive(Debug, clap::Args)]
pub struct GossipArgs {
    /// Draws who knows whom and who speaks when.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Nodes, each of them a provider.
    #[arg(long, default_value_t = 1000)]
    pub nodes: usize,
    /// Seconds in which each provider speaks once.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub period: u64,
    /// Seconds before anything is counted.
    #[arg(long, default_value_t = 30)]
    pub warm: u64,
    /// Seconds that are counted.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
}

/// What to do to a market.
#[derive(Debug, clap::Args)]
pub struct ChaosArgs {
    /// Kill nodes of the testnet that runs in --dir, one at a time, as kill -9 does: its supervisor
    /// starts them again.
    #[arg(long, conflicts_with_all = ["buyers", "netns"])]
    pub running: bool,
    /// Kill its gateway as well.
    #[arg(long, requires = "running")]
    pub gateway: bool,
    /// Everything drawn follows from it.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long faults go on.
    #[arg(long, default_value_t = 10.0, value_name = "MINUTES")]
    pub minutes: f64,
    /// Faults an hour.
    #[arg(long, default_value_t = 100)]
    pub per_hour: u32,
    /// Buyers that submit jobs at the same time.
    #[arg(long, default_value_t = 3)]
    pub buyers: usize,
    /// Give each node a network namespace of its own and cut links as well; takes root.
    #[arg(long)]
    pub netns: bool,
}

/// What to simulate.
#[derive(Debug, clap::Args)]
pub struct SimArgs {
    /// Everything follows from it.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many seeds to simulate, from --seed on.
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// Simulated minutes with faults, for each seed.
    #[arg(long, default_value_t = 1)]
    pub minutes: u64,
    /// Validators.
    #[arg(long, default_value_t = 5)]
    pub nodes: usize,
    /// Market commands a simulated second.
    #[arg(long, default_value_t = 100)]
    pub commands: u64,
    /// Live through these faults of the schedule alone, as a failing run names them, or `none`.
    #[arg(long, value_name = "N,N", value_parser = chosen_faults)]
    pub faults: Option<ChosenFaults>,
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
