//! A graph divided over a pipeline's devices so that the busiest one is busy least: throughput
//! instead of makespan.
//!
//! When requests stream through, each device works on another one, and the time between two answers
//! is the largest load of any device: its own work, plus sending each result of it that another
//! device reads, plus fetching each result of another that it reads. First the best contiguous
//! division is found: exactly, over the ideals of the graph, or where there are too many of them
//! over a few ways to lay the graph out in a line. Then nodes move between devices as annealing
//! finds it good, so that divisions with holes are found where they help.

mod anneal;
mod ideals;
mod line;
mod loads;

use thiserror::Error;

use souk_scheduler::graph::topological;
use souk_scheduler::planning::planner::Pace;

use loads::Loads;

/// A graph to be divided.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionProblem {
    /// What each node takes.
    pub nodes: Vec<PartitionNode>,
    /// Who reads whose result: (source, reader).
    pub edges: Vec<(usize, usize)>,
    /// Number of accelerators, all alike.
    pub accelerators: usize,
    /// Whether the host takes part; its transfers cost nothing.
    pub host: bool,
    /// Memory of an accelerator.
    pub capacity: f64,
}

/// A node of the graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartitionNode {
    /// Time on an accelerator; `None` where it cannot run there.
    pub accelerator_time: Option<f64>,
    /// Time on the host.
    pub host_time: f64,
    /// Time to move its result between an accelerator and the host.
    pub transfer_time: f64,
    /// Memory it takes on an accelerator.
    pub size: f64,
    /// Nodes of equal group go together; one without goes alone.
    pub group: Option<u64>,
}

/// Where each node goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Device of each node: accelerators from 0 on, then the host.
    pub device: Vec<usize>,
    /// Load of each device.
    pub loads: Vec<f64>,
    /// The largest load: time between two answers.
    pub largest: f64,
}

/// Why a graph cannot be divided.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PartitionError {
    /// Nothing to place nodes on.
    #[error("there is neither an accelerator nor a host")]
    NoDevice,
    /// An edge to a node that is not there.
    #[error("edge {edge} goes from node {from} to node {to}, of {nodes} nodes")]
    Edge {
        /// Place of the edge.
        edge: usize,
        /// Its source.
        from: usize,
        /// Its reader.
        to: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// Nodes that wait for each other.
    #[error("node {node} depends on itself")]
    Cycle {
        /// A node on or behind the circle.
        node: usize,
    },
    /// A time or size that is negative or no number.
    #[error("node {node}: {figure} is {value}")]
    Figure {
        /// The node.
        node: usize,
        /// Which figure.
        figure: &'static str,
        /// Its value.
        value: f64,
    },
    /// A node that fits nowhere together with its group.
    #[error("node {node}, with its group, fits no device")]
    Nowhere {
        /// The node.
        node: usize,
    },
    /// More than all accelerators hold, without a host to take the rest.
    #[error("the nodes need {needed} of memory, the accelerators have {capacity}")]
    Memory {
        /// Memory of all nodes.
        needed: f64,
        /// Memory of all accelerators.
        capacity: f64,
    },
}

impl PartitionProblem {
    /// Devices: the accelerators and, if it takes part, the host.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.accelerators + usize::from(self.host)
    }

    /// Loads of the devices under `device`, counted from the beginning.
    #[must_use]
    pub fn loads(&self, device: &[usize]) -> Vec<f64> {
        let mut loads = vec![0.0; self.devices()];
        let mut readers = vec![Vec::new(); self.nodes.len()];
        for &(from, to) in &self.edges {
            if device[from] != device[to] {
                readers[from].push(device[to]);
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let own = device[index];
            let on_host = own >= self.accelerators;
            let time = if on_host {
                Some(node.host_time)
            } else {
                node.accelerator_time
            };
            loads[own] += time.unwrap_or(f64::INFINITY);
            let far = &mut readers[index];
            far.sort_unstable();
            far.dedup();
            if !on_host && !far.is_empty() {
                loads[own] += node.transfer_time;
            }
            for &reader in far.iter().filter(|&&reader| reader < self.accelerators) {
                loads[reader] += node.transfer_time;
            }
        }
        loads
    }

    /// Checks the problem; gives its nodes in topological order.
    fn check(&self) -> Result<Vec<usize>, PartitionError> {
        if self.devices() == 0 {
            return Err(PartitionError::NoDevice);
        }
        let nodes = self.nodes.len();
        let mut successors = vec![Vec::new(); nodes];
        for (edge, &(from, to)) in self.edges.iter().enumerate() {
            if from >= nodes || to >= nodes {
                return Err(PartitionError::Edge {
                    edge,
                    from,
                    to,
                    nodes,
                });
            }
            successors[from].push(to);
        }
        self.nodes
            .iter()
            .enumerate()
            .try_for_each(|(index, node)| check_node(index, node))?;
        topological(&successors).map_err(|node| PartitionError::Cycle { node })
    }
}

fn check_node(node: usize, figures: &PartitionNode) -> Result<(), PartitionError> {
    let all = [
        ("accelerator time", figures.accelerator_time.unwrap_or(0.0)),
        ("host time", figures.host_time),
        ("transfer time", figures.transfer_time),
        ("size", figures.size),
    ];
    let wrong = all
        .into_iter()
        .find(|(_, value)| !value.is_finite() || *value < 0.0);
    match wrong {
        None => Ok(()),
        Some((figure, value)) => Err(PartitionError::Figure {
            node,
            figure,
            value,
        }),
    }
}

/// Divides the graph; `pace` says how much of the annealing is used up, a step being one node
/// looked at or moved. The best contiguous division comes before, whatever the pace.
///
/// # Errors
/// [`PartitionError`]: the problem is none, or nothing fits.
pub fn partition(
    problem: &PartitionProblem,
    pace: &mut Pace<'_>,
) -> Result<Placement, PartitionError> {
    let order = problem.check()?;
    let line = line::cut(problem, &order)?;
    let limit = largest(&problem.loads(&line));
    let first = ideals::cut(problem, limit).unwrap_or(line);
    let device = anneal::improve(problem, first, pace);
    let loads = problem.loads(&device);
    let largest = largest(&loads);
    Ok(Placement {
        device,
        loads,
        largest,
    })
}

fn largest(loads: &[f64]) -> f64 {
    loads.iter().copied().fold(0.0, f64::max)
}
