//! From a graph and the devices on offer to a [`Problem`], and back.
//!
//! Time is counted in picoseconds, so that bandwidths of terabytes a second are still whole
//! numbers. A chain of nodes that no split can help becomes one task.

use crate::graph::{Graph, NodeId};
use crate::plan::{Link, Links, Offer, node_seconds};
use crate::problem::{Edge, NEVER, Problem, ProblemError, ProblemParts, Time};

/// Picoseconds in a second.
pub const SECOND: f64 = 1e12;

/// A graph as a problem: one task for each node or fused chain.
#[derive(Clone, Debug)]
pub struct GraphTasks {
    /// The problem.
    pub problem: Problem,
    /// Nodes of each task, in the graph's order.
    pub members: Vec<Vec<NodeId>>,
}

/// Seconds as a problem's time, rounded up; infinite ones as [`NEVER`].
#[must_use]
pub fn time_of(seconds: f64) -> Time {
    if seconds.is_finite() {
        (seconds * SECOND).ceil() as Time
    } else {
        NEVER
    }
}

impl GraphTasks {
    /// The problem of running `graph` on `offers`. Transfers from and to the buyer are left out:
    /// they are the same wherever the work is done, but for the links' differences.
    ///
    /// # Errors
    /// [`ProblemError`]: a node that runs nowhere, times beyond counting, too little memory.
    pub fn new(graph: &Graph, offers: &[Offer], links: &Links) -> Result<Self, ProblemError> {
        let fixed = fixed(graph);
        let time = |index: usize, offer: &Offer| {
            let seconds = node_seconds(&graph.nodes()[index], offer);
            if fixed[index] && seconds.is_finite() {
                0
            } else {
                time_of(seconds)
            }
        };
        let exec: Vec<Vec<Time>> = (0..graph.nodes().len())
            .map(|index| offers.iter().map(|offer| time(index, offer)).collect())
            .collect();
        let mut edges = edges(graph);
        edges.retain(|edge| !fixed[edge.from]);
        let task = fuse(&exec, &edges, links);
        let count = task.iter().max().map_or(0, |last| last + 1);
        let mut members = vec![Vec::new(); count];
        let mut sums = vec![0; count * offers.len()];
        let mut memory = vec![0u64; count];
        for (node, &own) in task.iter().enumerate() {
            members[own].push(NodeId(node));
            memory[own] = memory[own].saturating_add(graph.nodes()[node].cost.weight_bytes);
            for (device, &time) in exec[node].iter().enumerate() {
                let sum: &mut Time = &mut sums[own * offers.len() + device];
                *sum = sum.saturating_add(time);
            }
        }
        let between = |field: fn(&Link) -> f64| {
            let pairs = links.between.iter().take(offers.len());
            pairs
                .flat_map(|row| row.iter().take(offers.len()))
                .map(move |link| time_of(field(link)))
        };
        let outer = edges
            .into_iter()
            .filter(|edge| task[edge.from] != task[edge.to]);
        let problem = Problem::new(ProblemParts {
            devices: offers.len(),
            exec: sums,
            edges: outer
                .map(|edge| Edge {
                    from: task[edge.from],
                    to: task[edge.to],
                    ..edge
                })
                .collect(),
            latency: between(|link| link.latency_seconds).collect(),
            time_per_byte: between(|link| 1.0 / link.bytes_per_second).collect(),
            memory,
            capacity: offers.iter().map(|offer| offer.memory_bytes).collect(),
            ..ProblemParts::default()
        })?;
        Ok(Self { problem, members })
    }

    /// The device of each node, from the device of each task.
    #[must_use]
    pub fn unfused(&self, device: &[usize]) -> Vec<usize> {
        let nodes = self.members.iter().map(Vec::len).sum();
        let mut of_node = vec![0; nodes];
        for (members, &device) in self.members.iter().zip(device) {
            members.iter().for_each(|node| of_node[node.0] = device);
        }
        of_node
    }
}

/// Nodes that read constants only: each device computes them once, before the first run, so they
/// take no time and their results are sent nowhere.
fn fixed(graph: &Graph) -> Vec<bool> {
    let mut fixed = vec![false; graph.nodes().len()];
    for (index, node) in graph.nodes().iter().enumerate() {
        fixed[index] = node.reads().all(|id| {
            let value = graph.value(id);
            value.is_constant() || value.producer().is_some_and(|producer| fixed[producer.0])
        });
    }
    fixed
}

/// One edge for each value and reader.
fn edges(graph: &Graph) -> Vec<Edge> {
    let mut edges = Vec::new();
    for value in graph.values() {
        let Some(from) = value.producer() else {
            continue;
        };
        let bytes = value.fact.byte_length().unwrap_or(0);
        edges.extend(value.readers.iter().map(|to| Edge {
            from: from.0,
            to: to.0,
            bytes,
        }));
    }
    edges
}

/// Task of each node: a node joins the one it reads from if neither has another partner there and,
/// wherever that one runs, going elsewhere would not end sooner.
fn fuse(exec: &[Vec<Time>], edges: &[Edge], links: &Links) -> Vec<usize> {
    let mut readers = vec![0; exec.len()];
    let mut sources = vec![Vec::new(); exec.len()];
    for edge in edges {
        readers[edge.from] += 1;
        sources[edge.to].push(*edge);
    }
    let mut task = vec![0; exec.len()];
    let mut count = 0;
    for node in 0..exec.len() {
        task[node] = match sources[node].as_slice() {
            [edge] if readers[edge.from] == 1 && stays(exec, *edge, links) => task[edge.from],
            _ => {
                count += 1;
                count - 1
            }
        };
    }
    task
}

/// Whether the reader of `edge` ends no later by staying, on every device its source runs on.
fn stays(exec: &[Vec<Time>], edge: Edge, links: &Links) -> bool {
    let runs = |device: &usize| exec[edge.from][*device] != NEVER;
    (0..exec[edge.from].len()).filter(runs).all(|device| {
        let here = exec[edge.to][device];
        let mut elsewhere = exec[edge.to].iter().enumerate();
        elsewhere.all(|(other, &there)| {
            let transfer = time_of(links.between[device][other].seconds(edge.bytes));
            other == device || here <= there.saturating_add(transfer)
        })
    })
}
