//! Converts a graph and the devices on offer to a scheduling [`Problem`], whose tasks are nodes or
//! chains of nodes.
//!
//! Time is in picoseconds, so that the time per byte is a whole number even at terabytes per
//! second. A chain of nodes becomes one task if a split over several devices cannot make it faster.

use super::offer::{Link, Links, Offer, node_seconds};
use super::problem::{Edge, Problem, ProblemError, ProblemParts};
use super::time::{NEVER, Time, time_of};
use crate::graph::{Graph, NodeId};

/// A graph as a problem: one task for each node or fused chain.
#[derive(Clone, Debug)]
pub struct GraphTasks {
    /// The problem, which you can pass to any planner.
    pub problem: Problem,
    /// Nodes of each task, in the graph's order.
    pub members: Vec<Vec<NodeId>>,
}

/// The input of a problem: the graph, and the devices with their speeds, memories and links.
pub(crate) struct Layout<'a> {
    pub(crate) graph: &'a Graph,
    /// Seconds of each node of the graph on each device, one row of nodes for each device.
    pub(crate) seconds: Vec<&'a [f64]>,
    /// Bytes of memory of each device.
    pub(crate) memory: Vec<u64>,
    pub(crate) links: &'a Links,
    /// Whether the problem has the buyer as its last device, which sends the inputs and receives
    /// the outputs.
    pub(crate) buyer: bool,
}

impl GraphTasks {
    /// Creates the problem of running `graph` on `offers`. It omits transfers from and to the
    /// buyer, because they differ between devices only by their links.
    ///
    /// # Errors
    /// [`ProblemError`] if no device can run a node, times overflow, or memory is too small.
    pub fn new(graph: &Graph, offers: &[Offer], links: &Links) -> Result<Self, ProblemError> {
        let times = |offer: &Offer| -> Vec<f64> {
            let nodes = graph.nodes().iter();
            nodes.map(|node| node_seconds(node, offer)).collect()
        };
        let times: Vec<Vec<f64>> = offers.iter().map(times).collect();
        let layout = Layout {
            graph,
            seconds: times.iter().map(Vec::as_slice).collect(),
            memory: offers.iter().map(|offer| offer.memory_bytes).collect(),
            links,
            buyer: false,
        };
        layout.create_tasks()
    }
}

/// Tasks under construction.
#[derive(Default)]
struct TaskTables {
    exec: Vec<Time>,
    memory: Vec<u64>,
    edges: Vec<Edge>,
    members: Vec<Vec<NodeId>>,
    pinned: Vec<Option<usize>>,
}

impl Layout<'_> {
    /// Creates the problem.
    pub(crate) fn create_tasks(&self) -> Result<GraphTasks, ProblemError> {
        let is_constant = self.graph.constant_only_nodes();
        let node_times = |node: usize| -> Vec<Time> {
            let times = self.seconds.iter().map(|device| device[node]);
            // A node that depends only on constants runs once, when the graph is compiled.
            times
                .map(|seconds| match is_constant[node] && seconds.is_finite() {
                    true => 0,
                    false => time_of(seconds),
                })
                .collect()
        };
        let exec: Vec<Vec<Time>> = (0..self.graph.nodes().len()).map(node_times).collect();
        let value_edges = value_edges(self.graph, &is_constant);
        let task = fuse_nodes(&exec, &value_edges, self.links);
        let mut tables = self.task_tables(&exec, &value_edges, &task);
        if self.buyer {
            self.add_buyer(&mut tables, &task);
        }
        self.build_problem(tables)
    }

    fn device_count(&self) -> usize {
        self.seconds.len() + usize::from(self.buyer)
    }

    /// Sums the times, memories and edges of the nodes of each task. `task` has the task of each
    /// node.
    fn task_tables(
        &self,
        exec: &[Vec<Time>],
        value_edges: &[ValueEdge],
        task: &[usize],
    ) -> TaskTables {
        let count = task.iter().max().map_or(0, |last| last + 1);
        let devices = self.device_count();
        let mut tables = TaskTables {
            exec: vec![0; count * devices],
            memory: vec![0; count],
            members: vec![Vec::new(); count],
            pinned: vec![None; count],
            edges: Vec::new(),
        };
        for (index, &task) in task.iter().enumerate() {
            let weights = self.graph.nodes()[index].cost.weight_bytes;
            tables.members[task].push(NodeId(index));
            tables.memory[task] = tables.memory[task].saturating_add(weights);
            // The buyer can run no node.
            let device_times = exec[index]
                .iter()
                .copied()
                .chain(self.buyer.then_some(NEVER));
            for (device, time) in device_times.enumerate() {
                let sum = &mut tables.exec[task * devices + device];
                *sum = sum.saturating_add(time);
            }
        }
        let task_edges = value_edges.iter().map(|edge| Edge {
            from: task[edge.from],
            to: task[edge.to],
            bytes: edge.bytes,
        });
        tables
            .edges
            .extend(task_edges.filter(|edge| edge.from != edge.to));
        tables
    }

    /// Adds a task of no time on the buyer's device for each input and output of the graph.
    fn add_buyer(&self, tables: &mut TaskTables, task: &[usize]) {
        let buyer = self.seconds.len();
        let task_of = |node: &NodeId| task[node.0];
        let add_buyer_task = |tables: &mut TaskTables| {
            tables.exec.extend(std::iter::repeat_n(0, buyer + 1));
            tables.memory.push(0);
            tables.members.push(Vec::new());
            tables.pinned.push(Some(buyer));
            tables.members.len() - 1
        };
        for &input in self.graph.inputs() {
            let value = self.graph.value(input);
            let bytes = value.fact.byte_length().unwrap_or(0);
            let from = add_buyer_task(tables);
            let readers = value.readers.iter().map(task_of);
            tables
                .edges
                .extend(readers.map(|to| Edge { from, to, bytes }));
        }
        for &output in self.graph.outputs() {
            let value = self.graph.value(output);
            let bytes = value.fact.byte_length().unwrap_or(0);
            if let Some(from) = value.producer().as_ref().map(task_of) {
                let to = add_buyer_task(tables);
                tables.edges.push(Edge { from, to, bytes });
            }
        }
    }

    fn build_problem(&self, tables: TaskTables) -> Result<GraphTasks, ProblemError> {
        let devices = self.device_count();
        let link = |from: usize, to: usize| match (from == devices - 1, to == devices - 1) {
            (true, true) if self.buyer => None,
            (true, false) if self.buyer => self.links.buyer.get(to),
            (false, true) if self.buyer => self.links.buyer.get(from),
            _ => self.links.between.get(from).and_then(|row| row.get(to)),
        };
        let pairs = (0..devices * devices).map(|pair| link(pair / devices, pair % devices));
        let table = |field: fn(&Link) -> f64| -> Vec<Time> {
            let figures = pairs.clone().map(|link| link.map_or(0.0, field));
            figures.map(time_of).collect()
        };
        let mut capacity = self.memory.clone();
        capacity.extend(self.buyer.then_some(u64::MAX));
        let problem = Problem::new(ProblemParts {
            devices,
            latency: table(|link| link.latency_seconds),
            time_per_byte: table(|link| 1.0 / link.bytes_per_second),
            exec: tables.exec,
            edges: tables.edges,
            memory: tables.memory,
            pinned: if self.buyer {
                tables.pinned
            } else {
                Vec::new()
            },
            capacity,
            ..ProblemParts::default()
        })?;
        let members = tables.members;
        Ok(GraphTasks { problem, members })
    }
}

/// A value that one node produces and another reads, by their indices.
#[derive(Clone, Copy)]
struct ValueEdge {
    from: usize,
    to: usize,
    bytes: u64,
    /// Whether another device can receive it.
    portable: bool,
}

/// Returns one edge for each value and reader, except for constant values.
fn value_edges(graph: &Graph, is_constant: &[bool]) -> Vec<ValueEdge> {
    let mut value_edges = Vec::new();
    for value in graph.values() {
        let Some(from) = value.producer().filter(|node| !is_constant[node.0]) else {
            continue;
        };
        let edge = |to: &NodeId| ValueEdge {
            from: from.0,
            to: to.0,
            bytes: value.fact.byte_length().unwrap_or(0),
            portable: value.is_portable(),
        };
        value_edges.extend(value.readers.iter().map(edge));
    }
    value_edges
}

/// Returns the task of each node. A node joins the task of the node that it reads from if it is the
/// only reader, reads from no other, and would not end sooner on another device, wherever that task
/// runs. It always joins if the value cannot be sent.
fn fuse_nodes(exec: &[Vec<Time>], value_edges: &[ValueEdge], links: &Links) -> Vec<usize> {
    let mut readers = vec![0; exec.len()];
    let mut sources = vec![Vec::new(); exec.len()];
    for edge in value_edges {
        readers[edge.from] += 1;
        sources[edge.to].push(*edge);
    }
    let mut task = vec![0; exec.len()];
    let mut count = 0;
    for node in 0..exec.len() {
        let unsendable = sources[node].iter().find(|edge| !edge.portable);
        task[node] = match (unsendable, sources[node].as_slice()) {
            (Some(edge), _) => task[edge.from],
            (None, [edge]) if readers[edge.from] == 1 && can_stay(exec, *edge, links) => {
                task[edge.from]
            }
            _ => {
                count += 1;
                count - 1
            }
        };
    }
    task
}

/// Returns whether the reader of a value ends no later on the device of its source than on any
/// other device, for every device that can run the source.
fn can_stay(exec: &[Vec<Time>], edge: ValueEdge, links: &Links) -> bool {
    let runs = |device: &usize| exec[edge.from][*device] != NEVER;
    (0..exec[edge.from].len()).filter(runs).all(|device| {
        let local_time = exec[edge.to][device];
        let mut times = exec[edge.to].iter().enumerate();
        times.all(|(other, &time)| {
            let transfer = time_of(links.between[device][other].transfer_seconds(edge.bytes));
            other == device || local_time <= time.saturating_add(transfer)
        })
    })
}
