//! Divides a graph over the devices of a pipeline so that the load of the busiest device is
//! minimal. This maximises throughput, while a plan of one run minimises its makespan.
//!
//! In a stream of requests, each device works on a different request, and the time between two
//! answers is the largest load of any device. The load of a device is the time of its nodes, plus
//! the transfers of each of its results that another device reads, plus the transfers of each
//! result of another device that it reads.
//!
//! The search first finds the best contiguous division: exactly, over the ideals of the graph (the
//! sets of nodes that contain all their predecessors), or, if there are too many, over a few linear
//! orders of it. Annealing then moves nodes between devices, so that it also finds better divisions
//! that are not contiguous.

mod anneal;
mod ideals;
mod line;
mod loads;

use thiserror::Error;

use souk_scheduler::graph::topological_order;
use souk_scheduler::planning::planner::Pace;

use loads::Loads;

/// A graph to divide over the devices of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionProblem {
    /// The nodes with their times and sizes.
    pub nodes: Vec<PartitionNode>,
    /// Dependencies: (producer, reader).
    pub edges: Vec<(usize, usize)>,
    /// Number of accelerators, which are identical.
    pub accelerators: usize,
    /// Whether nodes can run on the host, whose transfers cost nothing.
    pub host: bool,
    /// Memory of each accelerator.
    pub capacity: f64,
}

/// A node of the graph. Its times and its size must be finite and not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartitionNode {
    /// Time on an accelerator; `None` if it cannot run there.
    pub accelerator_time: Option<f64>,
    /// Time on the host.
    pub host_time: f64,
    /// Time to move its result between an accelerator and the host.
    pub transfer_time: f64,
    /// Memory that it occupies on an accelerator.
    pub size: f64,
    /// Nodes of one group must stay together; a node without a group is alone.
    pub group: Option<u64>,
}

/// The device of each node.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Device of each node: the accelerators from 0 on, then the host.
    pub device: Vec<usize>,
    /// Load of each device.
    pub loads: Vec<f64>,
    /// The largest load: the time between two answers.
    pub largest: f64,
}

/// The reason why a graph cannot be divided.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PartitionError {
    /// The problem has neither an accelerator nor a host.
    #[error("there is neither an accelerator nor a host")]
    NoDevice,
    /// An edge leads to a node that does not exist.
    #[error("edge {edge} goes from node {from} to node {to}, of {nodes} nodes")]
    Edge {
        /// Index of the edge.
        edge: usize,
        /// Node that produces the result.
        from: usize,
        /// Node that reads the result.
        to: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// A node depends on its own result.
    #[error("node {node} depends on itself")]
    Cycle {
        /// A node on the cycle, or one that depends on the cycle.
        node: usize,
    },
    /// A time or size is negative or not finite.
    #[error("node {node}: {figure} is {value}")]
    Figure {
        /// Index of the node.
        node: usize,
        /// Name of the figure.
        figure: &'static str,
        /// Value of the figure.
        value: f64,
    },
    /// A node fits no device together with its group.
    #[error("node {node}, with its group, fits no device")]
    Nowhere {
        /// Index of the node.
        node: usize,
    },
    /// The nodes exceed the memory of all accelerators, and no host can take the rest.
    #[error("the nodes need {needed} of memory, the accelerators have {capacity}")]
    Memory {
        /// Memory of all nodes.
        needed: f64,
        /// Memory of all accelerators.
        capacity: f64,
    },
}

impl PartitionProblem {
    /// Returns the number of devices: the accelerators and, if it takes part, the host.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.accelerators + usize::from(self.host)
    }

    /// Computes the load of each device. `device` must have the device of each node.
    #[must_use]
    pub fn device_loads(&self, device: &[usize]) -> Vec<f64> {
        let mut loads = vec![0.0; self.device_count()];
        let mut readers = vec![Vec::new(); self.nodes.len()];
        for &(from, to) in &self.edges {
            if device[from] != device[to] {
                readers[from].push(device[to]);
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let node_device = device[index];
            let on_host = node_device >= self.accelerators;
            let time = if on_host {
                Some(node.host_time)
            } else {
                node.accelerator_time
            };
            loads[node_device] += time.unwrap_or(f64::INFINITY);
            let remote_readers = &mut readers[index];
            remote_readers.sort_unstable();
            remote_readers.dedup();
            if !on_host && !remote_readers.is_empty() {
                loads[node_device] += node.transfer_time;
            }
            let remote_readers = remote_readers.iter();
            for &reader in remote_readers.filter(|&&reader| reader < self.accelerators) {
                loads[reader] += node.transfer_time;
            }
        }
        loads
    }

    /// Checks the problem and returns its nodes in topological order.
    fn check_problem(&self) -> Result<Vec<usize>, PartitionError> {
        if self.device_count() == 0 {
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
        topological_order(&successors).map_err(|node| PartitionError::Cycle { node })
    }
}

fn check_node(node: usize, figures: &PartitionNode) -> Result<(), PartitionError> {
    let named_figures = [
        ("accelerator time", figures.accelerator_time.unwrap_or(0.0)),
        ("host time", figures.host_time),
        ("transfer time", figures.transfer_time),
        ("size", figures.size),
    ];
    let invalid = named_figures
        .into_iter()
        .find(|(_, value)| !value.is_finite() || *value < 0.0);
    match invalid {
        None => Ok(()),
        Some((figure, value)) => Err(PartitionError::Figure {
            node,
            figure,
            value,
        }),
    }
}

/// Divides the graph. `pace` gets the number of annealing steps so far, each of which examines or
/// moves one node. It must return 1 or more at some time, because nothing else ends the annealing.
/// The search for the best contiguous division comes first and does not depend on it.
///
/// # Errors
/// [`PartitionError`] if the problem is invalid or does not fit.
pub fn partition_graph(
    problem: &PartitionProblem,
    pace: &mut Pace<'_>,
) -> Result<Placement, PartitionError> {
    let order = problem.check_problem()?;
    let line = line::best_line_cut(problem, &order)?;
    let limit = max_load(&problem.device_loads(&line));
    let contiguous = ideals::best_contiguous_cut(problem, limit).unwrap_or(line);
    let device = anneal::improve_placement(problem, contiguous, pace);
    let loads = problem.device_loads(&device);
    let largest = max_load(&loads);
    Ok(Placement {
        device,
        loads,
        largest,
    })
}

fn max_load(loads: &[f64]) -> f64 {
    loads.iter().copied().fold(0.0, f64::max)
}
