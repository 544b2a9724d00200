//! Measures failover for `souk bench consensus`: kills the leader with SIGKILL repeatedly, measures
//! the time to the next answer, and checks that no acknowledged command is lost.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use souk_network::wire;

use super::Bench;
use super::driver::{BenchError, Group, receive_done};
use super::protocol::{PUT, PutRequest, key};

/// An attempt must succeed within this time, otherwise the client asks another replica.
const ATTEMPT: Duration = Duration::from_millis(400);

/// Commands answered between two kills.
const CALM_COMMANDS: u64 = 50;

/// Results of the kills.
#[derive(Clone, Debug, Serialize)]
pub struct Failover {
    /// Number of leaders killed.
    pub kills: u64,
    /// Milliseconds from each kill to the next answer, sorted.
    pub milliseconds: Vec<u64>,
    /// Median in milliseconds.
    pub p50_ms: u64,
    /// 90th percentile in milliseconds.
    pub p90_ms: u64,
    /// Longest time in milliseconds.
    pub max_ms: u64,
    /// Commands acknowledged.
    pub acknowledged: u64,
    /// Acknowledged commands that are missing at the end.
    pub lost: u64,
}

/// Kills `kills` leaders and restarts them. There must be at least one kill and three replicas,
/// because fewer cannot elect a leader while one is away.
///
/// # Errors
/// If the replicas do not start, or never answer again.
pub async fn run_failover(bench: &Bench, kills: u64) -> Result<Failover, BenchError> {
    let mut group = Group::start(bench).await?;
    let mut client = Client {
        size: bench.size_bytes.max(8),
        number: 0,
        asks: group.await_leader().await?,
    };
    let mut milliseconds = Vec::new();
    for _ in 0..kills {
        for _ in 0..CALM_COMMANDS {
            client.send_command(&group).await;
        }
        let leader = group.await_leader().await?;
        group.kill_replica(leader)?;
        let killed = Instant::now();
        client.asks = leader % bench.nodes + 1;
        client.send_command(&group).await;
        milliseconds.push(u64::try_from(killed.elapsed().as_millis()).unwrap_or(u64::MAX));
        group.restart_replica(leader)?;
    }
    client.send_command(&group).await;
    let leader = group.await_leader().await?;
    let (last, gaps) = group.fetch_status(leader).await?.numbers;
    milliseconds.sort_unstable();
    let at = |percent: usize| milliseconds[(milliseconds.len() - 1) * percent / 100];
    Ok(Failover {
        kills,
        p50_ms: at(50),
        p90_ms: at(90),
        max_ms: at(100),
        milliseconds: milliseconds.clone(),
        acknowledged: client.number,
        lost: gaps + client.number.saturating_sub(last),
    })
}

/// A client that repeats a command until a replica answers it.
struct Client {
    size: usize,
    number: u64,
    asks: u64,
}

impl Client {
    async fn send_command(&mut self, group: &Group) {
        self.number += 1;
        loop {
            let attempt = tokio::time::timeout(ATTEMPT, self.try_put(group)).await;
            if matches!(attempt, Ok(Ok(true))) {
                return;
            }
            self.asks = self.asks % group.nodes.len() as u64 + 1;
        }
    }

    async fn try_put(&self, group: &Group) -> Result<bool, BenchError> {
        let mut stream = group
            .network
            .open_stream(key(self.asks).peer_id(), PUT)
            .await?;
        let mut command = vec![0; self.size];
        command[..8].copy_from_slice(&self.number.to_le_bytes());
        let puts = vec![PutRequest {
            number: self.number,
            payload: Bytes::from(command),
        }];
        wire::send_bytes(&mut stream, &PutRequest::encode(&puts)).await?;
        let done = receive_done(&mut stream).await?;
        Ok(done.first().is_some_and(|done| done.applied))
    }
}
