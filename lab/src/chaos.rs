//! Tests a market of real processes under faults that it draws from a seed, while buyers submit
//! jobs. `souk testnet chaos` runs it.
//!
//! The test applies one fault after another: it kills or stops nodes, sets wrong clocks, and makes
//! providers lie or stall. If nodes have network namespaces and disks of their own, it also cuts or
//! mutes their links and fills their disks. After each fault, it checks that no credit was made or
//! lost, no lease keeps its escrow beyond its time, and no device is sold twice. At the end, every
//! job that bought leases must have the right outputs or its money back.

pub(crate) mod checks;
mod clocks;
mod disks;
mod fault_injection;
mod hosts;
pub mod kills;
pub(crate) mod load;
mod schedule;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use souk_folder::config::{ConfigError, KEY_FILE};
use souk_folder::key::{KeyError, NodeKey};
use souk_folder::market_file::{MARKET_FILE, MarketFile};
use souk_node::buyer::{Buyer, JoinError};
use tokio::time::Instant;

pub use clocks::ClockError;
use clocks::Clocks;
use disks::Disks;
pub use disks::DisksError;
use hosts::Hosts;
pub use hosts::HostsError;
pub use load::{Jobs, LoadError};
pub use schedule::{Fault, PlannedFault};
use souk_testnet::cluster::{Cluster, ControlError};
use souk_testnet::layout::{self, LayoutError};
use souk_testnet::process::StartError;

/// Number of validators; one can be away at a time.
const VALIDATORS: u32 = 3;

/// Emulated providers, because the test concerns the market and not the machine's arithmetic.
const PROFILES: [(&str, u64); 6] = [
    ("nvidia-h100-sxm", 900_000),
    ("amd-epyc-9654", 250_000),
    ("apple-m3-max-gpu", 120_000),
    ("nvidia-h100-sxm", 800_000),
    ("amd-epyc-9654", 200_000),
    ("apple-m3-max-gpu", 100_000),
];

/// Configuration of a chaos test.
#[derive(Clone, Debug)]
pub struct ChaosConfig {
    /// Determines everything that the test draws.
    pub seed: u64,
    /// How long faults continue.
    pub length: Duration,
    /// Number of faults per hour.
    pub per_hour: u32,
    /// Whether each node has a network namespace of its own, whose link can be cut. The process
    /// must then run as root.
    pub namespaces: bool,
    /// Number of buyers that submit jobs concurrently.
    pub buyers: usize,
}

/// Results of a chaos test.
#[derive(Clone, Debug, Serialize)]
pub struct ChaosReport {
    /// The seed of the run. A run with the same configuration will draw the same again.
    pub seed: u64,
    /// How long faults continued, in seconds.
    pub seconds: u64,
    /// The faults and their times.
    pub faults: Vec<PlannedFault>,
    /// The results of the jobs.
    pub jobs: Jobs,
    /// Number of complete checks.
    pub checks: usize,
    /// Each broken promise in a sentence; empty if all held.
    pub violations: Vec<String>,
}

/// Why the test could not run.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// The folder could not be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The market file could not be read.
    #[error(transparent)]
    MarketFile(#[from] ConfigError),
    /// A node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A node could not be controlled.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The namespaces could not be made.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The disks could not be made or filled.
    #[error(transparent)]
    Disks(#[from] DisksError),
    /// A clock could not be set.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// The buyers' key could not be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The buyers did not join.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The first job, which precedes all faults, failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The caller stopped the test.
    #[error("interrupted before the last fault")]
    Interrupted,
}

/// Starts a market in `folder`, applies the faults, checks, and stops the market. If `stop`
/// completes, the test ends early.
///
/// # Errors
/// If the test could not run. A broken promise is in the report.
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
    let _ports = layout::create_testnet(folder, &layout_config(hosts.as_ref()))?;
    let names = layout::node_names(folder);
    // Declared here so that it is dropped after the nodes that write there.
    let disks = match &hosts {
        Some(_) => Some(Disks::mount_disks(folder, &names)?),
        None => None,
    };
    let clocks = Clocks::new(folder);
    let before = |name: &str| {
        let place = names.iter().position(|known| known == name);
        let host = match (&hosts, place) {
            (Some(hosts), Some(place)) => hosts.host_command(place),
            _ => Vec::new(),
        };
        [host, clocks.clock_command(name)].concat()
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
        report = market.play_schedule(folder, config) => report,
        () = stop => Err(ChaosError::Interrupted),
    };
    cluster.stop_all().await;
    report
}

fn layout_config(hosts: Option<&Hosts>) -> layout::Config {
    layout::Config {
        hosts: hosts.map(Hosts::addresses).unwrap_or_default(),
        ..layout::Config::for_emulated_devices(VALIDATORS, &PROFILES)
    }
}

/// A market under a schedule of faults.
struct Market<'a> {
    names: Vec<String>,
    folder: PathBuf,
    hosts: Option<Hosts>,
    disks: Option<Disks>,
    clocks: Clocks,
    /// Nodes that ended unexpectedly, or did not start again.
    broken: Vec<String>,
    cluster: &'a mut Cluster,
}

impl Market<'_> {
    async fn play_schedule(
        &mut self,
        folder: &Path,
        config: &ChaosConfig,
    ) -> Result<ChaosReport, ChaosError> {
        self.cluster.wait_ready().await?;
        let buyer = join_as_buyer(folder).await?;
        let load =
            load::Load::begin_jobs(&buyer, config.seed, config.buyers, PROFILES.len()).await?;
        let mut checks = checks::Checks::begin(&buyer).await;
        let faults = schedule::draw_schedule(config, &self.names);
        let begin = Instant::now();
        for planned in &faults {
            tokio::time::sleep_until(begin + Duration::from_secs(planned.at_seconds)).await;
            tracing::info!(?planned, "injecting a fault");
            self.apply_fault(&planned.fault).await?;
            tokio::time::sleep(Duration::from_secs(planned.fault.seconds())).await;
            self.heal_fault(&planned.fault).await?;
            checks.await_invariants(&buyer, planned).await;
        }

        tokio::time::sleep_until(begin + config.length).await;
        let jobs = load.finish_jobs().await;
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

pub(crate) async fn join_as_buyer(folder: &Path) -> Result<Buyer, ChaosError> {
    let market = MarketFile::read(&folder.join(MARKET_FILE))?;
    let key: PathBuf = folder.join("buyer").join(KEY_FILE);
    Ok(Buyer::join(NodeKey::load(&key)?, &market).await?)
}
