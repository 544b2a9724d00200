//! The files of instances: gzipped JSON, schema `sched-instance/1`.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::partition::PartitionError;
use souk_scheduler::planning::problem::{Edge, Problem, ProblemError, ProblemParts};

/// Why a benchmark cannot run.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file that is not of the schema.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// An instance that is no valid problem, or that no plan exists for.
    #[error("instance {id:?}: {source}")]
    Problem {
        /// The instance.
        id: String,
        /// What is wrong.
        source: ProblemError,
    },
    /// A graph that cannot be divided.
    #[error("graph {id:?}: {source}")]
    Partition {
        /// The graph.
        id: String,
        /// What is wrong.
        source: PartitionError,
    },
    /// A planner that does not exist.
    #[error("there is no planner {name:?}; there are {}", known.join(", "))]
    Planner {
        /// The name given.
        name: String,
        /// Names there are.
        known: Vec<&'static str>,
    },
}

/// One instance.
#[derive(Debug, Deserialize)]
pub(super) struct Instance {
    pub(super) id: String,
    pub(super) family: String,
    procs: usize,
    w: Vec<Vec<u64>>,
    edges: Vec<(usize, usize, u64)>,
    lat: Vec<Vec<u64>>,
    ipb: Vec<Vec<u64>>,
    #[serde(default)]
    pub(super) results: Option<Results>,
}

/// What is known of an instance.
#[derive(Debug, Deserialize)]
pub(super) struct Results {
    pub(super) r#ref: Option<std::collections::BTreeMap<String, u64>>,
    pub(super) best: Option<Best>,
}

/// The best known makespan.
#[derive(Debug, Deserialize)]
pub(super) struct Best {
    pub(super) makespan: u64,
}

impl Instance {
    pub(super) fn problem(&self) -> Result<Problem, BenchError> {
        let edge = |&(from, to, bytes): &(usize, usize, u64)| Edge { from, to, bytes };
        let parts = ProblemParts {
            devices: self.procs,
            exec: self.w.iter().flatten().copied().collect(),
            edges: self.edges.iter().map(edge).collect(),
            latency: self.lat.iter().flatten().copied().collect(),
            time_per_byte: self.ipb.iter().flatten().copied().collect(),
            ..ProblemParts::default()
        };
        Problem::new(parts).map_err(|source| BenchError::Problem {
            id: self.id.clone(),
            source,
        })
    }
}

/// Reads a JSON file, gzipped if its name ends so.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, BenchError> {
    let file = File::open(path).map_err(|source| BenchError::File {
        path: path.to_owned(),
        source,
    })?;
    let reader = BufReader::new(file);
    let parsed = if path.extension().is_some_and(|extension| extension == "gz") {
        serde_json::from_reader(BufReader::new(GzDecoder::new(reader)))
    } else {
        serde_json::from_reader(reader)
    };
    parsed.map_err(|source| BenchError::Json {
        path: path.to_owned(),
        source,
    })
}
