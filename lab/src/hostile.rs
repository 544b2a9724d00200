//! Attacks real processes with hostile peers while honest buyers submit jobs, and measures the cost
//! for the nodes.
//!
//! The same load runs three times: alone, under every attack at once, and alone again. Each attack
//! acts at a stated rate and takes a new key whenever nodes block its old one. The test checks that
//! no node ends or exceeds a memory bound, honest jobs continue with right outputs, and the credits
//! add up. Attackers share this machine's processors with the nodes and the buyers, so the job
//! rates show the remaining capacity, not the effect of an attack from other machines.

mod attacks;
mod usage;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use souk_folder::config::{
    self, Fault, KEY_FILE, PROVIDER_FILE, ProviderFile, VALIDATOR_FILE, ValidatorFile,
};
use souk_folder::contact::Contact;
use souk_folder::key::NodeKey;
use souk_folder::market_file::{MARKET_FILE, MarketFile};
use tokio::task::JoinSet;

use crate::chaos::checks::Checks;
use crate::chaos::load::Load;
use crate::chaos::{self, ChaosError, Jobs};
use attacks::{Attack, AttackReport, Target};
use souk_testnet::cluster::Cluster;
use souk_testnet::layout;
use usage::Usage;

/// Number of attacked validators and providers. The last provider is an attacker: it takes leases
/// and does no work. The others are as many as a job of two parts can want, with a comparison for
/// each part and a third opinion; with fewer, honest buyers would wait for missing devices.
const VALIDATORS: u32 = 3;
const PROFILES: [(&str, u64); 7] = [
    ("nvidia-h100-sxm", 900_000),
    ("amd-epyc-9654", 250_000),
    ("apple-m3-max-gpu", 120_000),
    ("nvidia-h100-sxm", 800_000),
    ("amd-epyc-9654", 200_000),
    ("apple-m3-max-gpu", 100_000),
    ("amd-epyc-9654", 150_000),
];

/// How long the load runs alone, before and after the attacks.
const ALONE: Duration = Duration::from_secs(30);

/// A node's memory must not grow by more than this during the attacks, in mebibytes: its full share
/// of streams, each with an incomplete frame.
const GROWTH_MIB_MAX: u64 = 512;

/// Configuration of the test.
#[derive(Clone, Debug)]
pub struct HostileConfig {
    /// Determines everything that the test draws.
    pub seed: u64,
    /// How long the attacks last.
    pub length: Duration,
    /// Number of honest buyers that submit jobs concurrently.
    pub buyers: usize,
}

/// Results of the test.
#[derive(Clone, Debug, Serialize)]
pub struct HostileReport {
    /// The seed of the run. A run with the same configuration will draw the same again.
    pub seed: u64,
    /// The load before the attacks.
    pub before: Run,
    /// The load during the attacks.
    pub under: Run,
    /// The load after the attacks.
    pub after: Run,
    /// The acts of each attack.
    pub attacks: Vec<AttackReport>,
    /// Memory and processor time of each node in the three runs.
    pub nodes: Vec<Usage>,
    /// Peers blocked at the end, over all nodes.
    pub kept_out: usize,
    /// Each broken promise in a sentence; empty if all held.
    pub violations: Vec<String>,
}

/// One run of the load.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// How long it ran, in seconds.
    pub seconds: f64,
    /// Jobs finished per second.
    pub per_second: f64,
    /// The results of the jobs.
    pub jobs: Jobs,
}

/// Starts a market in `folder`, attacks it, checks, and stops it.
///
/// # Errors
/// If the market does not start. A broken promise is in the report.
pub async fn run(
    binary: &Path,
    folder: &Path,
    config: &HostileConfig,
) -> Result<HostileReport, ChaosError> {
    let _ports = layout::create_testnet(
        folder,
        &layout::Config::for_emulated_devices(VALIDATORS, &PROFILES),
    )?;
    let idle = folder
        .join(layout::provider_name(PROFILES.len() as u32))
        .join(PROVIDER_FILE);
    let mut file: ProviderFile = config::read(&idle)?;
    file.fault = Some(Fault::Stall);
    config::write(&idle, &file)?;
    let mut cluster = Cluster::spawn(binary, folder)?;
    let report = play_attacks(folder, &mut cluster, config).await;
    cluster.stop_all().await;
    report
}

async fn play_attacks(
    folder: &Path,
    cluster: &mut Cluster,
    config: &HostileConfig,
) -> Result<HostileReport, ChaosError> {
    cluster.wait_ready().await?;
    let buyer = chaos::join_as_buyer(folder).await?;
    let checks = Checks::begin(&buyer).await;
    // Each run has the same jobs, so that their rates are comparable.
    let run = async |length: Duration| -> Result<Run, ChaosError> {
        let load = Load::begin_jobs(&buyer, config.seed, config.buyers, PROFILES.len()).await?;
        let begin = tokio::time::Instant::now();
        tokio::time::sleep(length).await;
        let jobs = load.finish_jobs().await;
        let seconds = begin.elapsed().as_secs_f64();
        let per_second = jobs.finished as f64 / seconds;
        Ok(Run {
            seconds,
            per_second,
            jobs,
        })
    };
    let nodes = usage::watch_nodes(cluster.running_nodes());
    let (before, took_before) = usage::measure_during(&nodes, run(ALONE)).await;
    let targets = Arc::new(list_targets(folder)?);
    let mut attackers = JoinSet::new();
    for attack in Attack::ALL {
        let (targets, buyer) = (targets.clone(), buyer.clone());
        attackers.spawn(attack.go_on(targets, buyer, config.seed, config.length));
    }
    let (under, took_under) = usage::measure_during(&nodes, run(config.length)).await;
    let mut attacks = attackers.join_all().await;
    attacks.sort_by_key(|done| done.attack);
    let kept_out = kept_out(folder);
    let (after, took_after) = usage::measure_during(&nodes, run(ALONE)).await;
    let (before, under, after) = (before?, under?, after?);
    let nodes = usage::combine_runs(nodes, [took_before, took_under, took_after]);
    let violations = judge(cluster, checks, &buyer, [&before, &under, &after], &nodes).await;
    Ok(HostileReport {
        seed: config.seed,
        before,
        under,
        after,
        attacks,
        nodes,
        kept_out,
        violations,
    })
}

async fn judge(
    cluster: &mut Cluster,
    mut checks: Checks,
    buyer: &souk_node::buyer::Buyer,
    runs: [&Run; 3],
    nodes: &[Usage],
) -> Vec<String> {
    let mut violations: Vec<String> = cluster
        .reap_nodes()
        .iter()
        .map(|node| format!("{node} ended by itself"))
        .collect();
    for run in runs {
        checks.look_at_end(buyer, &run.jobs).await;
        if run.jobs.finished == 0 {
            violations.push("no honest job was finished in one of the runs".to_owned());
        }
    }
    for node in nodes {
        let most = node.under.memory_mib_max.max(node.after.memory_mib_max);
        let growth = most.saturating_sub(node.before.memory_mib_max);
        if growth > GROWTH_MIB_MAX {
            violations.push(format!("{} grew by {growth} MiB", node.node));
        }
    }
    violations.extend(checks.violations);
    violations
}

/// Returns every node's address, as an attacker would know it.
fn list_targets(folder: &Path) -> Result<Vec<Target>, ChaosError> {
    let market = MarketFile::read(&folder.join(MARKET_FILE))?;
    let of = |name: String| {
        let home = folder.join(&name);
        let validates = name.starts_with("validator");
        let listen = match validates {
            true => config::read::<ValidatorFile>(&home.join(VALIDATOR_FILE))?.listen,
            false => config::read::<ProviderFile>(&home.join(PROVIDER_FILE))?.listen,
        };
        let contact = Contact {
            account: NodeKey::load(&home.join(KEY_FILE))?.public_key(),
            addresses: vec![listen],
        };
        Ok(Target {
            contact,
            validates,
            market: market.genesis.market_id(),
        })
    };
    layout::node_names(folder).into_iter().map(of).collect()
}

/// Returns the number of peers that nodes report as blocked.
fn kept_out(folder: &Path) -> usize {
    let views = layout::node_names(folder).into_iter();
    let views =
        views.filter_map(|name| souk_network::swarm::view::View::read(&folder.join(name)).ok());
    views.map(|view| view.blocked.len()).sum()
}
