//! Hostile peers against real processes while honest buyers go on, and what it costs the nodes.
//!
//! Three runs of the same load: alone, under every attack at once, alone again. Each attack goes on
//! at a stated rate under new keys whenever its old one is kept out. What must hold: no node ends,
//! none takes more memory than a bound, honest jobs go on and are right, and every credit is where
//! it belongs. Attackers share this machine's processors with the nodes and the buyers, so the
//! rates of jobs say what is left, not what an attack from elsewhere would take.

mod attacks;
mod usage;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use souk_node::folder::config::{
    self, Fault, KEY_FILE, PROVIDER_FILE, ProviderFile, VALIDATOR_FILE, ValidatorFile,
};
use souk_node::folder::contact::Contact;
use souk_node::folder::key::NodeKey;
use souk_node::folder::market_file::{MARKET_FILE, MarketFile};
use tokio::task::JoinSet;

use crate::chaos::checks::Checks;
use crate::chaos::load::Load;
use crate::chaos::{self, ChaosError, Jobs};
use crate::cluster::Cluster;
use crate::layout;
use attacks::{Attack, AttackReport, Target};
use usage::Usage;

/// Validators and providers that are attacked. The last provider is one of the attackers: it takes
/// leases and does nothing. The others are as many as a job of two parts, each compared and one in
/// doubt, can want: else honest buyers would wait for devices that are not there.
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

/// How long the load runs alone, before and after.
const ALONE: Duration = Duration::from_secs(30);

/// What a node may take beyond what it had before the attacks, in mebibytes: full shares of streams
/// with a frame begun on each, and no more.
const GROWTH_MIB_MAX: u64 = 512;

/// What to do.
#[derive(Clone, Debug)]
pub struct HostileConfig {
    /// Everything drawn follows from it.
    pub seed: u64,
    /// How long the attacks go on.
    pub length: Duration,
    /// Honest buyers that submit jobs at the same time.
    pub buyers: usize,
}

/// What was done, and what held.
#[derive(Clone, Debug, Serialize)]
pub struct HostileReport {
    /// The seed.
    pub seed: u64,
    /// Honest jobs before the attacks.
    pub before: Run,
    /// Under them.
    pub under: Run,
    /// After them.
    pub after: Run,
    /// What each attack did.
    pub attacks: Vec<AttackReport>,
    /// What each node took in each of the three runs.
    pub nodes: Vec<Usage>,
    /// Peers kept out at the end, over all nodes.
    pub kept_out: usize,
    /// Each promise that was broken; none where all held.
    pub violations: Vec<String>,
}

/// One run of the load.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Seconds it ran.
    pub seconds: f64,
    /// Jobs that were finished each second.
    pub per_second: f64,
    /// What became of the jobs.
    pub jobs: Jobs,
}

/// Brings a market up in `folder`, attacks it, checks, and takes it down.
///
/// # Errors
/// When there was no market; a promise that is broken is in the report.
pub async fn run(
    binary: &Path,
    folder: &Path,
    config: &HostileConfig,
) -> Result<HostileReport, ChaosError> {
    let _ports = layout::create(folder, &layout::Config::emulated(VALIDATORS, &PROFILES))?;
    let idle = folder
        .join(layout::provider_name(PROFILES.len() as u32))
        .join(PROVIDER_FILE);
    let mut file: ProviderFile = config::read(&idle)?;
    file.fault = Some(Fault::Stall);
    config::write(&idle, &file)?;
    let mut cluster = Cluster::spawn(binary, folder)?;
    let report = play(folder, &mut cluster, config).await;
    cluster.stop().await;
    report
}

async fn play(
    folder: &Path,
    cluster: &mut Cluster,
    config: &HostileConfig,
) -> Result<HostileReport, ChaosError> {
    cluster.ready().await?;
    let buyer = chaos::join(folder).await?;
    let checks = Checks::begin(&buyer).await;
    // The same jobs each time, so that their rates can be compared.
    let run = async |length: Duration| -> Result<Run, ChaosError> {
        let load = Load::begin(&buyer, config.seed, config.buyers, PROFILES.len()).await?;
        let begin = tokio::time::Instant::now();
        tokio::time::sleep(length).await;
        let jobs = load.end().await;
        let seconds = begin.elapsed().as_secs_f64();
        let per_second = jobs.finished as f64 / seconds;
        Ok(Run {
            seconds,
            per_second,
            jobs,
        })
    };
    let nodes = usage::nodes(cluster.running());
    let (before, took_before) = usage::during(&nodes, run(ALONE)).await;
    let targets = Arc::new(targets(folder)?);
    let mut attackers = JoinSet::new();
    for attack in Attack::ALL {
        let (targets, buyer) = (targets.clone(), buyer.clone());
        attackers.spawn(attack.go_on(targets, buyer, config.seed, config.length));
    }
    let (under, took_under) = usage::during(&nodes, run(config.length)).await;
    let mut attacks = attackers.join_all().await;
    attacks.sort_by_key(|done| done.attack);
    let kept_out = kept_out(folder);
    let (after, took_after) = usage::during(&nodes, run(ALONE)).await;
    let (before, under, after) = (before?, under?, after?);
    let nodes = usage::together(nodes, [took_before, took_under, took_after]);
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
        .reap()
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

/// Every node's address, as an attacker would know it.
fn targets(folder: &Path) -> Result<Vec<Target>, ChaosError> {
    let market = MarketFile::read(&folder.join(MARKET_FILE))?;
    let of = |name: String| {
        let home = folder.join(&name);
        let validates = name.starts_with("validator");
        let listen = match validates {
            true => config::read::<ValidatorFile>(&home.join(VALIDATOR_FILE))?.listen,
            false => config::read::<ProviderFile>(&home.join(PROVIDER_FILE))?.listen,
        };
        let contact = Contact {
            account: NodeKey::load(&home.join(KEY_FILE))?.public(),
            addresses: vec![listen],
        };
        Ok(Target {
            contact,
            validates,
            market: market.genesis.market_id(),
        })
    };
    layout::nodes(folder).into_iter().map(of).collect()
}

/// Peers that nodes say they keep out.
fn kept_out(folder: &Path) -> usize {
    let views = layout::nodes(folder).into_iter();
    let views = views
        .filter_map(|name| souk_node::network::swarm::view::View::read(&folder.join(name)).ok());
    views.map(|view| view.blocked.len()).sum()
}
