//! Kills nodes of a running testnet with SIGKILL; the testnet's supervisor restarts them.
//!
//! Only one node is down at a time, so a market with three validators continues: the next kill
//! waits until the last killed node serves again. The test never kills the supervisor.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use souk_node::client::broker::Broker;
use tokio::time::Instant;

use super::schedule;
use souk_testnet::cluster::ControlError;
use souk_testnet::signal::{self, Signal};
use souk_testnet::supervisor::{self, GATEWAY, GATEWAY_HOME, SupervisorError};
use souk_testnet::{layout, process};

/// A killed node must serve again within this time: its supervisor's longest pause, and the time of
/// a start.
const AWAY_MAX: Duration = Duration::from_secs(75);

/// The market must then answer within this time, which covers an election.
const HEALING: Duration = Duration::from_secs(30);

/// Interval of the checks in that time.
const PERIOD: Duration = Duration::from_millis(50);

/// Configuration of a kill test.
#[derive(Clone, Debug)]
pub struct KillsConfig {
    /// Determines which nodes die, and when.
    pub seed: u64,
    /// How long the test runs.
    pub length: Duration,
    /// Number of kills per hour.
    pub per_hour: u32,
    /// Whether the test also kills the gateway.
    pub gateway: bool,
}

/// A node that was killed and serves again.
#[derive(Clone, Debug, Serialize)]
pub struct NodeKill {
    /// Time of the kill, in milliseconds since the start.
    pub at_ms: u64,
    /// The node's name.
    pub node: String,
    /// The id of the killed process.
    pub process: u32,
    /// Milliseconds until the node served again.
    pub away_ms: u64,
}

/// Results of a kill test.
#[derive(Clone, Debug, Serialize)]
pub struct KillsReport {
    /// The seed of the run. A run with the same configuration will draw the same again.
    pub seed: u64,
    /// How long the test ran, in seconds.
    pub seconds: u64,
    /// Number of nodes killed and restarted.
    pub kills: usize,
    /// Each broken promise in a sentence; empty if all held.
    pub violations: Vec<String>,
}

/// Why the test did not start or stopped.
#[derive(Debug, thiserror::Error)]
pub enum KillsError {
    /// No testnet runs in the folder.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The system sent no signal.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The test should kill the gateway, but none runs.
    #[error("no gateway serves in {folder}")]
    Gateway {
        /// The testnet's folder.
        folder: PathBuf,
    },
}

/// Kills nodes of the testnet in `folder` until the time is over or `stop` completes. After each
/// kill, it checks that the market answers and its money adds up. It ends early if a node stays
/// away.
///
/// # Errors
/// If no testnet runs there, or the system refuses.
pub async fn run(
    folder: &Path,
    config: &KillsConfig,
    broker: &Broker,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&NodeKill),
) -> Result<KillsReport, KillsError> {
    supervisor::running_pid(folder)?;
    let mut nodes = layout::node_names(folder);
    if config.gateway {
        process::serving_process_id(&log_folder(folder, GATEWAY)).ok_or_else(|| {
            KillsError::Gateway {
                folder: folder.to_owned(),
            }
        })?;
        nodes.push(GATEWAY.to_owned());
    }
    let begin = Instant::now();
    let (mut kills, mut violations) = (0, Vec::new());
    tokio::pin!(stop);
    for (at, node) in schedule::draw_kills(config.seed, config.length, config.per_hour, &nodes) {
        tokio::select! {
            () = tokio::time::sleep_until(begin + at) => {}
            () = &mut stop => break,
        }
        let at_ms = elapsed_ms(begin);
        let done = tokio::select! {
            done = kill_node(folder, &node, at_ms) => done?,
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
        violations.extend(find_violation(broker, &node).await);
    }
    Ok(KillsReport {
        seed: config.seed,
        seconds: begin.elapsed().as_secs(),
        kills,
        violations,
    })
}

/// Kills a node once it serves, and waits until it serves again. Returns none if it does not.
async fn kill_node(folder: &Path, node: &str, at_ms: u64) -> Result<Option<NodeKill>, KillsError> {
    let Some(process) = await_serving(folder, node, None).await? else {
        return Ok(None);
    };
    signal::send_signal(process, Signal::Kill).map_err(|cause| ControlError::Signal {
        name: node.to_owned(),
        cause,
    })?;
    let begin = Instant::now();
    Ok(await_serving(folder, node, Some(process))
        .await?
        .map(|_| NodeKill {
            at_ms,
            node: node.to_owned(),
            process,
            away_ms: elapsed_ms(begin),
        }))
}

/// Waits until a node serves with another process than before. Returns none if it takes too long.
async fn await_serving(
    folder: &Path,
    node: &str,
    before: Option<u32>,
) -> Result<Option<u32>, KillsError> {
    let (home, begin) = (log_folder(folder, node), Instant::now());
    while begin.elapsed() < AWAY_MAX {
        // If the supervisor has ended, no node will come back, and its file is out of date.
        supervisor::running_pid(folder)?;
        match process::serving_process_id(&home) {
            Some(process) if Some(process) != before => return Ok(Some(process)),
            _ => tokio::time::sleep(PERIOD).await,
        }
    }
    Ok(None)
}

/// Returns the first broken promise that persists.
async fn find_violation(broker: &Broker, node: &str) -> Option<String> {
    let begin = Instant::now();
    loop {
        let wrong = match broker.fetch_totals().await {
            Ok(totals) if totals.is_balanced() => return None,
            Ok(totals) => format!("credits were made or lost: {totals:?}"),
            Err(error) => format!("the market does not answer: {error}"),
        };
        if begin.elapsed() > HEALING {
            return Some(format!("after {node} was killed: {wrong}"));
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Returns the folder of a node's log.
fn log_folder(folder: &Path, node: &str) -> PathBuf {
    folder.join(if node == GATEWAY { GATEWAY_HOME } else { node })
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
