//! Kills on a testnet that runs: nodes are ended as by kill -9, and whoever supervises the testnet
//! starts them again.
//!
//! One node is away at a time, so that the market goes on where it has three validators: the next
//! is killed once the last one serves again. The supervisor is never killed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use souk_node::client::broker::Broker;
use tokio::time::Instant;

use super::schedule;
use crate::cluster::ControlError;
use crate::signal::{self, Signal};
use crate::supervisor::{self, GATEWAY, GATEWAY_HOME, SupervisorError};
use crate::{layout, process};

/// How long a node may be away: its supervisor's longest pause, and what a start may take.
const AWAY_MAX: Duration = Duration::from_secs(75);

/// How long the market may take to answer after that: an election.
const HEALING: Duration = Duration::from_secs(30);

/// How often a node is looked for meanwhile.
const PERIOD: Duration = Duration::from_millis(50);

/// What to do to a testnet.
#[derive(Clone, Debug)]
pub struct KillsConfig {
    /// Whom to kill when follows from it.
    pub seed: u64,
    /// How long this goes on.
    pub length: Duration,
    /// Kills an hour.
    pub per_hour: u32,
    /// Whether the gateway is killed as well.
    pub gateway: bool,
}

/// A node that was killed, and is back.
#[derive(Clone, Debug, Serialize)]
pub struct NodeKill {
    /// When, in milliseconds from the start.
    pub at_ms: u64,
    /// Which.
    pub node: String,
    /// The process it was.
    pub process: u32,
    /// How long until it served again.
    pub away_ms: u64,
}

/// What was done, and what held.
#[derive(Clone, Debug, Serialize)]
pub struct KillsReport {
    /// The seed.
    pub seed: u64,
    /// How long it went on, in seconds.
    pub seconds: u64,
    /// How many were killed and came back.
    pub kills: usize,
    /// What did not hold, in a sentence; none where all did.
    pub violations: Vec<String>,
}

/// Why nobody was killed, or nobody any more.
#[derive(Debug, thiserror::Error)]
pub enum KillsError {
    /// No testnet runs there.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The system sent no signal.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The gateway is to be killed, and there is none.
    #[error("no gateway serves in {folder}")]
    Gateway {
        /// The testnet's folder.
        folder: PathBuf,
    },
}

/// Kills nodes of the testnet in `folder` until the time is over or `stop` ends, and looks after
/// each whether the market still answers and its money adds up. It ends where a node stays away.
///
/// # Errors
/// When no testnet runs there, or the system refuses.
pub async fn run(
    folder: &Path,
    config: &KillsConfig,
    broker: &Broker,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&NodeKill),
) -> Result<KillsReport, KillsError> {
    supervisor::running(folder)?;
    let mut nodes = layout::nodes(folder);
    if config.gateway {
        process::serving(&home(folder, GATEWAY)).ok_or_else(|| KillsError::Gateway {
            folder: folder.to_owned(),
        })?;
        nodes.push(GATEWAY.to_owned());
    }
    let begin = Instant::now();
    let (mut kills, mut violations) = (0, Vec::new());
    tokio::pin!(stop);
    let drawn = (config.seed, config.length, config.per_hour);
    for (at, node) in schedule::draw_kills(drawn, &nodes) {
        tokio::select! {
            () = tokio::time::sleep_until(begin + at) => {}
            () = &mut stop => break,
        }
        let at_ms = millis(begin);
        let done = tokio::select! {
            done = kill(folder, &node, at_ms) => done?,
            () = &mut stop => break,
        };
        match done {
            Some(killed) => tell(&killed),
            None => {
                let most = AWAY_MAX.as_secs();
                violations.push(format!("{node} does not serve for {most} s"));
                break;
            }
        }
        kills += 1;
        violations.extend(wrong(broker, &node).await);
    }
    Ok(KillsReport {
        seed: config.seed,
        seconds: begin.elapsed().as_secs(),
        kills,
        violations,
    })
}

/// Kills a node once it serves, and waits until it serves again; nothing where it does not.
async fn kill(folder: &Path, node: &str, at_ms: u64) -> Result<Option<NodeKill>, KillsError> {
    let Some(process) = serves(folder, node, None).await? else {
        return Ok(None);
    };
    signal::send(process, Signal::Kill).map_err(|cause| ControlError::Signal {
        name: node.to_owned(),
        cause,
    })?;
    let begin = Instant::now();
    Ok(serves(folder, node, Some(process))
        .await?
        .map(|_| NodeKill {
            at_ms,
            node: node.to_owned(),
            process,
            away_ms: millis(begin),
        }))
}

/// Waits until a node serves, by another process than the one before; nothing where it takes too
/// long.
async fn serves(folder: &Path, node: &str, before: Option<u32>) -> Result<Option<u32>, KillsError> {
    let (home, begin) = (home(folder, node), Instant::now());
    while begin.elapsed() < AWAY_MAX {
        // Whose supervisor has ended does not come back, and what its file tells is no more.
        supervisor::running(folder)?;
        match process::serving(&home) {
            Some(process) if Some(process) != before => return Ok(Some(process)),
            _ => tokio::time::sleep(PERIOD).await,
        }
    }
    Ok(None)
}

/// What does not hold of the market, and goes on not to hold.
async fn wrong(broker: &Broker, node: &str) -> Option<String> {
    let begin = Instant::now();
    loop {
        let wrong = match broker.totals().await {
            Ok(totals) if totals.balanced() => return None,
            Ok(totals) => format!("credits were made or lost: {totals:?}"),
            Err(error) => format!("the market does not answer: {error}"),
        };
        if begin.elapsed() > HEALING {
            return Some(format!("after {node} was killed: {wrong}"));
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// The folder of a node's log.
fn home(folder: &Path, node: &str) -> PathBuf {
    folder.join(if node == GATEWAY { GATEWAY_HOME } else { node })
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
