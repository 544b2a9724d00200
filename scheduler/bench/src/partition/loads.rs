//! Holds a placement (a device for each node of a graph) with the load of each device, and updates
//! the loads while the partitioner's annealing moves groups of nodes.

use super::PartitionProblem;

/// A placement with its loads.
pub(super) struct Loads<'a> {
    problem: &'a PartitionProblem,
    /// Nodes of each group.
    pub(super) groups: Vec<Vec<usize>>,
    /// Groups that exchange results with each group.
    pub(super) neighbours: Vec<Vec<usize>>,
    /// Group of each node.
    pub(super) group: Vec<usize>,
    /// Device of each node.
    pub(super) device: Vec<usize>,
    pub(super) load: Vec<f64>,
    size: Vec<f64>,
    sources: Vec<Vec<usize>>,
    /// Number of each node's readers on each device, one row of devices for each node.
    readers: Vec<u32>,
    total_readers: Vec<u32>,
}

impl<'a> Loads<'a> {
    pub(super) fn new(problem: &'a PartitionProblem, device: Vec<usize>) -> Self {
        let (groups, group) = group_nodes(problem);
        let nodes = problem.nodes.len();
        let mut sources = vec![Vec::new(); nodes];
        let mut readers = vec![0; nodes * problem.device_count()];
        let mut total_readers = vec![0; nodes];
        for &(from, to) in &problem.edges {
            sources[to].push(from);
            readers[from * problem.device_count() + device[to]] += 1;
            total_readers[from] += 1;
        }
        let mut neighbours = vec![Vec::new(); groups.len()];
        for &(from, to) in &problem.edges {
            neighbours[group[from]].push(group[to]);
            neighbours[group[to]].push(group[from]);
        }
        for (own, neighbours) in neighbours.iter_mut().enumerate() {
            neighbours.sort_unstable();
            neighbours.dedup();
            neighbours.retain(|&other| other != own);
        }
        let mut size = vec![0.0; problem.device_count()];
        for (node, &device) in problem.nodes.iter().zip(&device) {
            size[device] += node.size;
        }
        Self {
            load: problem.device_loads(&device),
            problem,
            groups,
            neighbours,
            group,
            device,
            size,
            sources,
            readers,
            total_readers,
        }
    }

    pub(super) fn max_load(&self) -> f64 {
        self.load.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the value that the search minimises: a norm of the loads close to the largest, which
    /// also falls when the second largest does, and a small part of their mean.
    pub(super) fn energy(&self) -> f64 {
        let largest = self.max_load();
        if largest <= 0.0 {
            return 0.0;
        }
        let mut powers = 0.0;
        let mut sum = 0.0;
        for load in &self.load {
            powers += (load / largest).powi(1 << NORM_DOUBLINGS);
            sum += load;
        }
        let norm = (0..NORM_DOUBLINGS).fold(powers, |root: f64, _| root.sqrt());
        largest * norm + OTHERS_SHARE * sum / self.load.len() as f64
    }

    /// Returns whether `device` can run the group.
    pub(super) fn can_run(&self, group: usize, device: usize) -> bool {
        let mut members = self.groups[group].iter();
        let runs = |&node: &usize| self.problem.nodes[node].accelerator_time.is_some();
        device >= self.problem.accelerators || members.all(runs)
    }

    /// Returns whether each accelerator has room for its nodes. The caller must check it, because
    /// `move_group` does not.
    pub(super) fn has_room(&self) -> bool {
        let mut sizes = self.size[..self.problem.accelerators].iter();
        sizes.all(|&size| size <= self.problem.capacity)
    }

    pub(super) fn move_group(&mut self, group: usize, device: usize) {
        for index in 0..self.groups[group].len() {
            self.move_node(self.groups[group][index], device);
        }
    }

    fn move_node(&mut self, node: usize, to: usize) {
        let from = self.device[node];
        if from == to {
            return;
        }
        let devices = self.problem.device_count();
        let figures = self.problem.nodes[node];
        self.count_node(node, -1.0);
        for index in 0..self.sources[node].len() {
            let source = self.sources[node][index];
            self.count_transfers(source, -1.0);
            self.readers[source * devices + from] -= 1;
            self.readers[source * devices + to] += 1;
            self.count_transfers(source, 1.0);
        }
        self.count_transfers(node, -1.0);
        self.device[node] = to;
        self.count_transfers(node, 1.0);
        self.count_node(node, 1.0);
        self.size[from] -= figures.size;
        self.size[to] += figures.size;
    }

    fn count_node(&mut self, node: usize, sign: f64) {
        let figures = &self.problem.nodes[node];
        let device = self.device[node];
        let time = match device >= self.problem.accelerators {
            true => figures.host_time,
            false => figures.accelerator_time.unwrap_or(f64::INFINITY),
        };
        self.load[device] += sign * time;
    }

    /// Adds or subtracts the transfer cost of a node's result on each device.
    fn count_transfers(&mut self, node: usize, sign: f64) {
        let devices = self.problem.device_count();
        let time = sign * self.problem.nodes[node].transfer_time;
        let own = self.device[node];
        let row = &self.readers[node * devices..(node + 1) * devices];
        if own < self.problem.accelerators && row[own] < self.total_readers[node] {
            self.load[own] += time;
        }
        for (device, &readers) in row[..self.problem.accelerators].iter().enumerate() {
            if device != own && readers > 0 {
                self.load[device] += time;
            }
        }
    }
}

/// The power of the norm is two to the power of this number.
const NORM_DOUBLINGS: i32 = 5;
/// Weight of the mean load against the largest.
const OTHERS_SHARE: f64 = 0.02;

/// Returns the nodes of each group, and the group of each node, numbered in order of appearance.
pub(super) fn group_nodes(problem: &PartitionProblem) -> (Vec<Vec<usize>>, Vec<usize>) {
    let mut number = std::collections::BTreeMap::new();
    let mut members: Vec<Vec<usize>> = Vec::new();
    let mut group = Vec::with_capacity(problem.nodes.len());
    for (index, node) in problem.nodes.iter().enumerate() {
        let next = members.len();
        let own = match node.group {
            Some(name) => *number.entry(name).or_insert(next),
            None => next,
        };
        if own == next {
            members.push(Vec::new());
        }
        members[own].push(index);
        group.push(own);
    }
    (members, group)
}
