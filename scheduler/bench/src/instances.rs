//! Reads the files of benchmark instances (problems with tasks, devices and links, and their best
//! known results): JSON of the schema `sched-instance/1`, which can be gzipped.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::partition::PartitionError;
use souk_scheduler::planning::problem::{Edge, Problem, ProblemError, ProblemParts};

/// The reason why a benchmark cannot run.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The benchmark cannot read or write a file.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file does not match the schema.
    #[error("{path}: {source}")]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// An instance is not a valid problem, or has no plan.
    #[error("instance {id:?}: {source}")]
    Problem {
        /// Id of the instance.
        id: String,
        /// The planner's error.
        source: ProblemError,
    },
    /// A graph cannot be divided.
    #[error("graph {id:?}: {source}")]
    Partition {
        /// Id of the graph.
        id: String,
        /// The error of the division.
        source: PartitionError,
    },
    /// The planner does not exist.
    #[error("there is no planner {name:?}; there are {}", known.join(", "))]
    Planner {
        /// Name that the caller used.
        name: String,
        /// Names of the existing planners.
        known: Vec<&'static str>,
    },
}

/// A planning problem from a file of instances.
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

/// The known results of an instance.
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
    pub(super) fn to_problem(&self) -> Result<Problem, BenchError> {
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

/// Reads a JSON file, which must be gzipped if, and only if, its name ends in `.gz`.
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
