//! Restarts validators that have a long log, and measures how long they take to serve.
//!
//! The benchmark makes a real log: it replicates and applies each command, and truncates the log
//! behind snapshots. Then it restarts one validator, and then all of them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use souk_network::wire;

use super::Bench;
use super::driver::{BenchError, Clients, Group, StopCondition, receive_done};
use super::protocol::{PUT, PutRequest, key};

/// Each replica must apply the leader's commands within this time.
const CATCH_UP_PATIENCE: Duration = Duration::from_secs(60);

/// An attempt at a command must succeed within this time, otherwise another follows.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The pause between attempts, and between status checks.
const PAUSE: Duration = Duration::from_millis(5);

/// Results of the restarts.
#[derive(Clone, Debug, Serialize)]
pub struct RestartTimes {
    /// Number of validators.
    pub nodes: u64,
    /// Commands applied before the restarts.
    pub commands: u64,
    /// Bytes of a command.
    pub size_bytes: usize,
    /// Seconds to replicate the commands.
    pub fill_seconds: f64,
    /// Bytes in the folder of the killed validator: its log and snapshots.
    pub folder_bytes: u64,
    /// Seconds from starting one killed validator's process until it answers a command that it
    /// received.
    pub one_seconds: f64,
    /// Seconds from starting all processes, after killing all, until each answers.
    pub all_seconds: f64,
    /// Acknowledged commands that a validator lacks after its restart.
    pub lost: u64,
}

/// Replicates `commands` commands, restarts validators, and measures.
///
/// # Errors
/// If the replicas do not start, or do not catch up.
pub async fn run_restart(bench: &Bench, commands: u64) -> Result<RestartTimes, BenchError> {
    let mut group = Group::start(bench).await?;
    let leader = group.await_leader().await?;
    let stream = group
        .network
        .open_stream(key(leader).peer_id(), PUT)
        .await?;
    let until = StopCondition::Operations(commands);
    let filling = tokio::spawn(Clients::new(bench).run(stream, until));
    let filled = filling.await.map_err(std::io::Error::other)??;
    let mut acknowledged = filled.operations;
    await_applied(&group, acknowledged).await?;

    let follower = leader % bench.nodes + 1;
    group.kill_replica(follower)?;
    let folder_bytes = bytes_in(&bench.folder.join(follower.to_string()))?;
    let started = Instant::now();
    group.restart_replica(follower)?;
    serve_one(&group, follower).await;
    let one_seconds = started.elapsed().as_secs_f64();
    acknowledged += 1;
    let mut lost = lost_by(&group, follower, acknowledged).await?;

    for id in 1..=bench.nodes {
        group.kill_replica(id)?;
    }
    let started = Instant::now();
    for id in 1..=bench.nodes {
        group.restart_replica(id)?;
    }
    for id in 1..=bench.nodes {
        serve_one(&group, id).await;
        acknowledged += 1;
        lost = lost.max(lost_by(&group, id, acknowledged).await?);
    }
    Ok(RestartTimes {
        nodes: bench.nodes,
        commands: filled.operations,
        size_bytes: bench.size_bytes,
        fill_seconds: filled.seconds,
        folder_bytes,
        one_seconds,
        all_seconds: started.elapsed().as_secs_f64(),
        lost,
    })
}

/// Waits until every replica has applied `commands` commands.
async fn await_applied(group: &Group, commands: u64) -> Result<(), BenchError> {
    for id in 1..=group.nodes.len() as u64 {
        let until = Instant::now() + CATCH_UP_PATIENCE;
        while group.fetch_status(id).await?.commands < commands {
            if Instant::now() > until {
                return Err(BenchError::Lags(id));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

async fn lost_by(group: &Group, id: u64, acknowledged: u64) -> Result<u64, BenchError> {
    let standing = group.fetch_status(id).await?;
    Ok(acknowledged.saturating_sub(standing.commands))
}

/// Sends one command to a validator until it applies and answers the command. This will not return
/// if the validator never serves.
async fn serve_one(group: &Group, id: u64) {
    loop {
        let attempt = tokio::time::timeout(ATTEMPT, try_put(group, id)).await;
        if matches!(attempt, Ok(Ok(true))) {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn try_put(group: &Group, id: u64) -> Result<bool, BenchError> {
    let mut stream = group.network.open_stream(key(id).peer_id(), PUT).await?;
    let put = PutRequest {
        number: 0,
        payload: Bytes::from_static(b"served"),
    };
    wire::send_bytes(&mut stream, &PutRequest::encode(&[put])).await?;
    let done = receive_done(&mut stream).await?;
    Ok(done.first().is_some_and(|done| done.applied))
}

fn bytes_in(folder: &std::path::Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for item in std::fs::read_dir(folder)? {
        let metadata = item?.metadata()?;
        bytes += if metadata.is_file() {
            metadata.len()
        } else {
            0
        };
    }
    Ok(bytes)
}
