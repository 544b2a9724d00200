//! Runs the partitioner, which divides graphs over the devices of a pipeline, on a file of
//! published graphs. It writes the placements and reports their quality.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::clock::Stopwatch;
use super::instances::{BenchError, read};
use crate::partition::{PartitionNode, PartitionProblem, partition_graph};
use souk_scheduler::planning::planner::step_pace;

/// Steps for each graph: about half a second on one core of a 2023 server, so that results repeat
/// and stay within a second on a busy machine.
const STEPS: u64 = 2_000_000;

#[derive(Deserialize)]
struct Graphs {
    instances: BTreeMap<String, PartitionInstance>,
    #[serde(default)]
    measured_throughput: BTreeMap<String, BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
struct PartitionInstance {
    #[serde(rename = "maxSizePerFPGA")]
    capacity: f64,
    #[serde(rename = "maxFPGAs")]
    accelerators: usize,
    #[serde(rename = "maxCPUs")]
    hosts: usize,
    nodes: Vec<NodeRow>,
    /// Source and target, which must be ids of `nodes`, and the time to move the source's output.
    edges: Vec<(u64, u64, f64)>,
}

/// Columns: id, onAcc, cpuLatency, accLatency, backward, color, size.
type NodeRow = (u64, u8, f64, f64, u8, Option<u64>, f64);

/// One line of the placements file.
#[derive(Debug, Serialize)]
pub struct PlacementLine {
    /// Name of the graph.
    pub id: String,
    /// Device of each node, in the file's order of nodes: the accelerators from 0 on, and -1 for
    /// the host.
    pub device: Vec<i64>,
    /// Ids of the nodes in that order.
    pub nodes: Vec<u64>,
    /// The largest load.
    pub load: f64,
}

/// The quality of the placements.
#[derive(Debug, Serialize)]
pub struct PartitionReport {
    /// One entry for each graph.
    pub graphs: Vec<PartitionRow>,
}

/// The quality of one placement.
#[derive(Debug, Serialize)]
pub struct PartitionRow {
    /// Name of the graph.
    pub id: String,
    /// The largest load.
    pub load: f64,
    /// Results of others, by name, if the file has them.
    pub known: BTreeMap<String, Value>,
    /// Milliseconds of the search.
    pub took_ms: f64,
}

/// Divides every graph of `path` and writes the placements to `out`, one line for each graph.
///
/// # Errors
/// [`BenchError`] if a file or a graph is invalid.
pub fn partition_file(path: &Path, out: &Path) -> Result<PartitionReport, BenchError> {
    partition_file_in(path, out, STEPS)
}

/// Acts as [`partition_file`] with `limit` steps for each graph; zero steps give the best
/// contiguous cuts.
///
/// # Errors
/// [`BenchError`] if a file or a graph is invalid.
pub fn partition_file_in(
    path: &Path,
    out: &Path,
    limit: u64,
) -> Result<PartitionReport, BenchError> {
    let file: Graphs = read(path)?;
    let file_error = |source| BenchError::File {
        path: out.to_owned(),
        source,
    };
    let mut writer = BufWriter::new(File::create(out).map_err(file_error)?);
    let mut graphs = Vec::new();
    for (id, instance) in &file.instances {
        let problem = instance.to_problem();
        let watch = Stopwatch::start();
        let placement = partition_graph(&problem, &mut step_pace(limit));
        let took = watch.elapsed();
        let placement = placement.map_err(|source| BenchError::Partition {
            id: id.clone(),
            source,
        })?;
        let host = |device: usize| {
            if device < instance.accelerators {
                device as i64
            } else {
                -1
            }
        };
        let line = PlacementLine {
            id: id.clone(),
            device: placement
                .device
                .iter()
                .map(|&device| host(device))
                .collect(),
            nodes: instance.nodes.iter().map(|node| node.0).collect(),
            load: placement.largest,
        };
        let line = serde_json::to_string(&line).expect("numbers and strings become JSON");
        writeln!(writer, "{line}").map_err(file_error)?;
        graphs.push(PartitionRow {
            id: id.clone(),
            load: placement.largest,
            known: file
                .measured_throughput
                .get(&short_name(id))
                .cloned()
                .unwrap_or_default(),
            took_ms: took.as_secs_f64() * 1e3,
        });
    }
    writer.flush().map_err(file_error)?;
    Ok(PartitionReport { graphs })
}

/// Returns the name of a graph in the measurements:
/// `throughput-inputs/LayerGraphs/gnmt_inference.json` becomes `gnmt_layer_inference`.
fn short_name(id: &str) -> String {
    let kind = if id.contains("LayerGraphs") {
        "layer"
    } else {
        "op"
    };
    let stem = Path::new(id)
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or(id);
    let model = stem.strip_suffix("_inference").unwrap_or(stem);
    format!("{model}_{kind}_inference")
}

impl PartitionInstance {
    fn to_problem(&self) -> PartitionProblem {
        let place: BTreeMap<u64, usize> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(index, node)| (node.0, index))
            .collect();
        let mut transfer = vec![0.0f64; self.nodes.len()];
        let mut edges = Vec::new();
        for (from, to, time) in &self.edges {
            let (from, to) = (place[from], place[to]);
            transfer[from] = transfer[from].max(*time);
            edges.push((from, to));
        }
        let node = |(index, row): (usize, &NodeRow)| PartitionNode {
            accelerator_time: (row.1 != 0).then_some(row.3),
            host_time: row.2,
            transfer_time: transfer[index],
            size: row.6,
            group: row.5,
        };
        PartitionProblem {
            nodes: self.nodes.iter().enumerate().map(node).collect(),
            edges,
            accelerators: self.accelerators,
            host: self.hosts > 0,
            capacity: self.capacity,
        }
    }
}
