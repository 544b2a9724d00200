//! `souk bench consensus`: production validators in processes of their own, on real disks, over the
//! production network, under closed-loop clients.
//!
//! The machine they replicate is a hash chain, so that what is measured is replication and not a
//! market. Clients share one stream to the leader, as the clients of other systems share their
//! connections.

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
pub use replica::{NodeArguments, NodeError, serve};
pub use restart::{RestartTimes, run_restart};

/// Who signs what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signing {
    /// Commands come verified.
    None,
    /// Each command carries a signature, checked by the validator that takes it in.
    Each,
    /// 64 commands carry one signature.
    Batch64,
}

impl Signing {
    /// Commands under one signature, and in one request.
    #[must_use]
    pub fn commands(self) -> u64 {
        match self {
            Self::None | Self::Each => 1,
            Self::Batch64 => 64,
        }
    }

    /// The value of a command-line argument.
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

/// What to measure.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Validators.
    pub nodes: u64,
    /// Clients, each waiting for its answer before it asks again.
    pub clients: u64,
    /// Bytes of a command.
    pub size_bytes: usize,
    /// How long to measure, in seconds; a second more is spent on warming up.
    pub seconds: u64,
    /// Who signs what.
    pub signed: Signing,
    /// Where the replicas keep their logs: the disk that is measured.
    pub folder: PathBuf,
    /// The program that runs a node, and the arguments before a node's own.
    pub program: (PathBuf, Vec<String>),
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Validators.
    pub nodes: u64,
    /// Clients.
    pub clients: u64,
    /// Bytes of a command.
    pub size_bytes: usize,
    /// Who signed what.
    pub signed: Signing,
    /// Seconds measured.
    pub seconds: f64,
    /// Commands answered.
    pub operations: u64,
    /// Commands answered a second.
    pub operations_per_second: f64,
    /// Half of the requests were answered within this, in milliseconds.
    pub p50_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// The slowest.
    pub max_ms: f64,
    /// Processor time of each replica for a command, in microseconds, the leader first.
    pub cpu_us_per_operation: Vec<f64>,
    /// Of that, what the threads took that verify what others took in, in the same order.
    pub verifier_us_per_operation: Vec<f64>,
}
