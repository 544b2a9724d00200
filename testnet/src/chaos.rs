//! Faults on real processes under a stream of jobs, drawn from a seed, and what must hold after.
//!
//! Nodes are killed, stopped and, where each has a network namespace and a disk of its own, cut
//! off, muted, filled up, given wrong clocks, or made to lie or do nothing, one fault after another
//! while buyers submit jobs. After each fault, once it is over: no credit was made or
//! lost, no lease keeps its escrow beyond its time, no device is sold twice. At the end every job
//! that bought leases has its right outputs or its money back.

pub(crate) mod checks;
mod clocks;
mod disks;
mod hosts;
pub mod kills;
pub(crate) mod load;
mod playing;
mod schedule;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use souk_node::buyer::{Buyer, JoinError};
use souk_node::folder::config::{ConfigError, KEY_FILE};
use souk_node::folder::key::{KeyError, NodeKey};
use souk_node::folder::market_file::{MARKET_FILE, MarketFile};
use tokio::time::Instant;

use crate::cluster::{Cluster, ControlError};
use crate::layout::{self, LayoutError};
use crate::process::StartError;
pub use clocks::ClockError;
use clocks::Clocks;
use disks::Disks;
pub use disks::DisksError;
use hosts::Hosts;
pub use hosts::HostsError;
pub use load::{Jobs, LoadError};
pub use schedule::{Fault, PlannedFault};

/// Validators: one may be away at a time.
const VALIDATORS: u32 = 3;

/// Providers, all emulated: what is tested is the market, not the machine's arithmetic.
const PROFILES: [(&str, u64); 6] = [
    ("nvidia-h100-sxm", 900_000),
    ("amd-epyc-9654", 250_000),
    ("apple-m3-max-gpu", 120_000),
    ("nvidia-h100-sxm", 800_000),
    ("amd-epyc-9654", 200_000),
    ("apple-m3-max-gpu", 100_000),
];

/// What to do to a market.
#[derive(Clone, Debug)]
pub struct ChaosConfig {
    /// Everything drawn follows from it.
    pub seed: u64,
    /// How long faults go on.
    pub length: Duration,
    /// Faults an hour.
    pub per_hour: u32,
    /// Whether each node has a network namespace of its own, whose link can be cut; takes root.
    pub namespaces: bool,
    /// Buyers that submit jobs at the same time.
    pub buyers: usize,
}

/// What was done, and what held.
#[derive(Clone, Debug, Serialize)]
pub struct ChaosReport {
    /// The seed.
    pub seed: u64,
    /// How long faults went on, in seconds.
    pub seconds: u64,
    /// What was done, and when.
    pub faults: Vec<PlannedFault>,
    /// What became of the jobs.
    pub jobs: Jobs,
    /// How often everything was checked.
    pub checks: usize,
    /// Each promise that was broken, in a sentence; none where all held.
    pub violations: Vec<String>,
}

/// Why there was no market to do anything to.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// It was not laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Its file was not read.
    #[error(transparent)]
    ChaosConfig(#[from] ConfigError),
    /// A node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A node was not controlled.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Namespaces were not made.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// Disks were not made or filled.
    #[error(transparent)]
    Disks(#[from] DisksError),
    /// A clock was not set.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// The buyers' key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The buyers did not join.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The first job, before any fault, did not succeed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It was to stop.
    #[error("interrupted before the last fault")]
    Interrupted,
}

/// Brings a market up in `folder`, plays the faults, checks, and takes it down; all of it at once
/// when `stop` ends.
///
/// # Errors
/// When there was no market; a promise that is broken is in the report.
pub async fn run(
    binary: &Path,
    folder: &Path,
    config: &ChaosConfig,
    stop: impl Future<Output = ()>,
) -> Result<ChaosReport, ChaosError> {
    let nodes = VALIDATORS as usize + PROFILES.len();
    let hosts = if config.namespaces {
        Some(Hosts::create(nodes)?)
    } else {
        None
    };
    let _ports = layout::create(folder, &shape(hosts.as_ref()))?;
    let names = layout::nodes(folder);
    // Dropped after the nodes that write there.
    let disks = match &hosts {
        Some(_) => Some(Disks::mount(folder, &names)?),
        None => None,
    };
    let clocks = Clocks::new(folder);
    let before = |name: &str| {
        let place = names.iter().position(|known| known == name);
        let host = match (&hosts, place) {
            (Some(hosts), Some(place)) => hosts.command(place),
            _ => Vec::new(),
        };
        [host, clocks.command(name)].concat()
    };
    let mut cluster = Cluster::spawn_behind(binary, folder, before)?;
    let mut market = Market {
        names: names.clone(),
        folder: folder.to_owned(),
        hosts,
        disks,
        clocks,
        broken: Vec::new(),
        cluster: &mut cluster,
    };
    let report = tokio::select! {
        report = market.play(folder, config) => report,
        () = stop => Err(ChaosError::Interrupted),
    };
    cluster.stop().await;
    report
}

fn shape(hosts: Option<&Hosts>) -> layout::Config {
    layout::Config {
        hosts: hosts.map(Hosts::addresses).unwrap_or_default(),
        ..layout::Config::emulated(VALIDATORS, &PROFILES)
    }
}

/// A market at the mercy of a schedule.
struct Market<'a> {
    names: Vec<String>,
    folder: PathBuf,
    hosts: Option<Hosts>,
    disks: Option<Disks>,
    clocks: Clocks,
    /// Who ended without being told to, and who did not start again.
    broken: Vec<String>,
    cluster: &'a mut Cluster,
}

impl Market<'_> {
    async fn play(
        &mut self,
        folder: &Path,
        config: &ChaosConfig,
    ) -> Result<ChaosReport, ChaosError> {
        self.cluster.ready().await?;
        let buyer = join(folder).await?;
        let load = load::Load::begin(&buyer, config.seed, config.buyers, PROFILES.len()).await?;
        let mut checks = checks::Checks::begin(&buyer).await;
        let faults = schedule::draw(config, &self.names);
        let begin = Instant::now();
        for planned in &faults {
            tokio::time::sleep_until(begin + Duration::from_secs(planned.at_seconds)).await;
            tracing::info!(?planned, "a fault");
            self.apply(&planned.fault).await?;
            tokio::time::sleep(Duration::from_secs(planned.fault.seconds())).await;
            self.heal(&planned.fault).await?;
            checks.look(&buyer, planned).await;
        }

        tokio::time::sleep_until(begin + config.length).await;
        let jobs = load.end().await;
        checks.look_at_end(&buyer, &jobs).await;
        Ok(ChaosReport {
            seed: config.seed,
            seconds: config.length.as_secs(),
            faults,
            jobs,
            checks: checks.count,
            violations: [std::mem::take(&mut self.broken), checks.violations].concat(),
        })
    }
}

pub(crate) async fn join(folder: &Path) -> Result<Buyer, ChaosError> {
    let market = MarketFile::read(&folder.join(MARKET_FILE))?;
    let key: PathBuf = folder.join("buyer").join(KEY_FILE);
    Ok(Buyer::join(NodeKey::load(&key)?, &market).await?)
}
