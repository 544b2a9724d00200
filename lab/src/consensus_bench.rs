//! `souk bench consensus`: measures the throughput and the latency of replication. The validators
//! are the production ones, in separate processes with real disks and the production network; each
//! client waits for its answer before it sends the next command.
//!
//! The replicated state machine is a hash chain, so the benchmark measures replication rather than
//! a market. Clients share one stream to the leader, as clients of other systems share connections.

mod driver;
mod failover;
mod machine;
mod protocol;
mod replica;
mod restart;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use driver::{BenchError, run};
pub use failover::{Failover, run_failover};
pub use replica::{ReplicaArguments, ReplicaError, serve_replica};
pub use restart::{RestartTimes, run_restart};

/// How commands are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signing {
    /// Commands arrive already verified.
    None,
    /// Each command carries a signature, which the receiving validator checks.
    Each,
    /// 64 commands carry one signature.
    Batch64,
}

impl Signing {
    /// Returns the number of commands under one signature, and in one request.
    #[must_use]
    pub fn commands_per_request(self) -> u64 {
        match self {
            Self::None | Self::Each => 1,
            Self::Batch64 => 64,
        }
    }

    /// Parses the value of a command-line argument, which must be `none`, `each` or `batch64`.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "each" => Some(Self::Each),
            "batch64" => Some(Self::Batch64),
            _ => None,
        }
    }
}

/// Configuration of a benchmark.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Number of validators.
    pub nodes: u64,
    /// Number of clients. Each waits for its answer before it sends again.
    pub clients: u64,
    /// Bytes of a command.
    pub size_bytes: usize,
    /// Measured time in seconds, after one second of warm-up.
    pub seconds: u64,
    /// How commands are signed.
    pub signed: Signing,
    /// Whether the replicas cosign the history, as those of a market do.
    pub is_cosigned: bool,
    /// Folder of the replicas' logs. It should be on the disk that you want to measure.
    pub folder: PathBuf,
    /// The program that runs a node, and the arguments that precede a node's own. It must accept
    /// `--id`, `--ports`, `--signed`, `--cosigned` and `--dir`, as [`serve_replica`] needs them.
    pub program: (PathBuf, Vec<String>),
}

/// Results of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Number of validators.
    pub nodes: u64,
    /// Number of clients.
    pub clients: u64,
    /// Bytes of a command.
    pub size_bytes: usize,
    /// How commands were signed.
    pub signed: Signing,
    /// Whether the replicas cosigned the history.
    pub cosigned: bool,
    /// Measured time in seconds.
    pub seconds: f64,
    /// Commands answered.
    pub operations: u64,
    /// Commands answered per second.
    pub operations_per_second: f64,
    /// Median time of a request in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the time of a request in milliseconds.
    pub p99_ms: f64,
    /// Longest time of a request in milliseconds.
    pub max_ms: f64,
    /// Processor time of each replica for a command in microseconds, the leader first.
    pub cpu_us_per_operation: Vec<f64>,
    /// The part of it in threads that verify other replicas' input, in the same order.
    pub verifier_us_per_operation: Vec<f64>,
}
