//! Finds the partitioner's best contiguous division of a graph over devices, by dynamic programming
//! over the *ideals* of the graph: the sets of nodes that contain all nodes that they read.
//!
//! A division is contiguous if its devices can be put in a row so that data flow only forward. Then
//! the devices up to any one hold a set of groups together with all that these read: an ideal. The
//! groups of one device are the difference of two ideals, so the best division is the best chain of
//! ideals from nothing to everything. Real graphs are narrow and have few ideals; if there are too
//! many, the orders of `line` replace them.

use std::collections::BTreeMap;

use super::PartitionProblem;
use super::loads::group_nodes;
use souk_scheduler::graph::topological_order;

/// Maximum number of ideals. The search computes loads only for pairs of them with a difference
/// below the best known load.
const IDEALS_MAX: usize = 4_096;

/// The ideals of a graph of groups, with the group that leads from one to the next.
struct Ideals {
    /// For each ideal, its successors: (ideal, added group). Larger ideals have larger numbers.
    next: Vec<Vec<(usize, usize)>>,
}

/// Returns the device of each node in the best contiguous division, if its largest load is below
/// `limit`. Returns `None` also if the graph has too many ideals, or groups that wait for each
/// other.
pub(super) fn best_contiguous_cut(problem: &PartitionProblem, limit: f64) -> Option<Vec<usize>> {
    let (members, group) = group_nodes(problem);
    let ideals = Ideals::from_groups(problem, &members, &group)?;
    let mut chains = Chains::new(problem, &ideals);
    let mut difference = Difference::new(problem, &members);
    for begin in 0..ideals.next.len() {
        if chains.begin_chains(begin, limit) {
            difference.extend(&ideals, begin, &mut chains);
        }
    }
    chains.best_assignment(&ideals, &members)
}

impl Ideals {
    fn from_groups(
        problem: &PartitionProblem,
        members: &[Vec<usize>],
        group: &[usize],
    ) -> Option<Self> {
        let mut readers = vec![Vec::new(); members.len()];
        let mut sources = vec![0usize; members.len()];
        for &(from, to) in &problem.edges {
            let (from, to) = (group[from], group[to]);
            if from != to && !readers[from].contains(&to) {
                readers[from].push(to);
                sources[to] += 1;
            }
        }
        topological_order(&readers).ok()?;
        let first: Vec<usize> = (0..members.len())
            .filter(|&own| sources[own] == 0)
            .collect();
        let mut number = BTreeMap::from([(vec![0u64; members.len().div_ceil(64)], 0)]);
        let mut sets: Vec<Vec<u64>> = number.keys().cloned().collect();
        let mut next: Vec<Vec<(usize, usize)>> = Vec::new();
        // Visits sets by size, because each has one group more than its predecessor.
        while next.len() < sets.len() {
            let set = sets[next.len()].clone();
            let holds = |own: usize| set[own / 64] >> (own % 64) & 1 == 1;
            let mut seen = vec![0usize; members.len()];
            for own in (0..members.len()).filter(|&own| holds(own)) {
                readers[own].iter().for_each(|&to| seen[to] += 1);
            }
            let all_read = |own: &usize| sources[*own] == seen[*own];
            let behind = (0..members.len())
                .filter(|&own| sources[own] > 0)
                .filter(all_read);
            let ready = first
                .iter()
                .copied()
                .chain(behind)
                .filter(|&own| !holds(own));
            let step = ready.map(|own| {
                let mut larger = set.clone();
                larger[own / 64] |= 1 << (own % 64);
                let fresh = number.len();
                let index = *number.entry(larger.clone()).or_insert(fresh);
                if index == fresh {
                    sets.push(larger);
                }
                (index, own)
            });
            let steps: Vec<(usize, usize)> = step.collect();
            if sets.len() > IDEALS_MAX {
                return None;
            }
            next.push(steps);
        }
        Some(Self { next })
    }
}

/// The best chains of ideals: from nothing to an ideal with a number of devices.
struct Chains<'a> {
    problem: &'a PartitionProblem,
    /// Least largest load for each ideal and state. A state is the number of used accelerators, and
    /// whether the host is used.
    best: Vec<f64>,
    /// The previous ideal and state.
    came: Vec<(usize, usize)>,
    states: usize,
    limit: f64,
    begin: usize,
}

impl<'a> Chains<'a> {
    fn new(problem: &'a PartitionProblem, ideals: &Ideals) -> Self {
        let states = 2 * (problem.accelerators + 1);
        let mut best = vec![f64::INFINITY; ideals.next.len() * states];
        best[0] = 0.0;
        Self {
            problem,
            came: vec![(0, 0); best.len()],
            best,
            states,
            limit: f64::INFINITY,
            begin: 0,
        }
    }

    /// Sets the ideal from which chains continue; returns false if no useful chain reaches it.
    fn begin_chains(&mut self, ideal: usize, limit: f64) -> bool {
        let whole = self.best.len() - self.states;
        let known = self.best[whole..].iter().copied().fold(limit, f64::min);
        (self.limit, self.begin) = (known, ideal);
        let row = &self.best[ideal * self.states..(ideal + 1) * self.states];
        row.iter().any(|&largest| largest < known)
    }

    /// Continues chains to `ideal` with one more device of these loads.
    fn go_on(&mut self, ideal: usize, accelerator: f64, host: f64) {
        for state in 0..self.states {
            let largest = self.best[self.begin * self.states + state];
            if largest >= self.limit {
                continue;
            }
            if state / 2 < self.problem.accelerators && accelerator < self.limit {
                self.relax_state(ideal, state + 2, largest.max(accelerator), state);
            }
            if self.problem.host && state % 2 == 0 && host < self.limit {
                self.relax_state(ideal, state + 1, largest.max(host), state);
            }
        }
    }

    fn relax_state(&mut self, ideal: usize, state: usize, largest: f64, from: usize) {
        let at = ideal * self.states + state;
        if largest < self.best[at] {
            self.best[at] = largest;
            self.came[at] = (self.begin, from);
        }
    }

    /// Returns the devices of all nodes by the best chain to everything.
    fn best_assignment(&self, ideals: &Ideals, members: &[Vec<usize>]) -> Option<Vec<usize>> {
        let last = ideals.next.len() - 1;
        let value = |state: &usize| self.best[last * self.states + state];
        let end = (0..self.states).min_by(|a, b| value(a).total_cmp(&value(b)))?;
        if !value(&end).is_finite() {
            return None;
        }
        let mut device = vec![0; self.problem.nodes.len()];
        let (mut ideal, mut state) = (last, end);
        while ideal != 0 {
            let (before, from) = self.came[ideal * self.states + state];
            let own = if state == from + 1 {
                self.problem.accelerators
            } else {
                from / 2
            };
            for added in ideals.groups_between(before, ideal) {
                members[added].iter().for_each(|&node| device[node] = own);
            }
            (ideal, state) = (before, from);
        }
        Some(device)
    }
}

impl Ideals {
    /// Returns the groups of `large` that are not in `small`, from a path between the two. All
    /// groups of `small` must be in `large`.
    fn groups_between(&self, small: usize, large: usize) -> Vec<usize> {
        let mut came = BTreeMap::from([(small, None)]);
        let mut open = vec![small];
        while let Some(ideal) = open.pop() {
            for &(next, added) in self.next[ideal].iter().filter(|(next, _)| *next <= large) {
                came.entry(next).or_insert_with(|| {
                    open.push(next);
                    Some((ideal, added))
                });
            }
        }
        let mut groups = Vec::new();
        let mut ideal = large;
        while let Some(&Some((before, added))) = came.get(&ideal) {
            groups.push(added);
            ideal = before;
        }
        groups
    }
}

/// The difference of two ideals with its loads, which grows and shrinks group by group.
struct Difference<'a> {
    problem: &'a PartitionProblem,
    members: &'a [Vec<usize>],
    sources: Vec<Vec<usize>>,
    readers: Vec<u32>,
    inside: Vec<bool>,
    /// Number of each node's readers inside.
    readers_inside: Vec<u32>,
    seen: Vec<usize>,
    /// Number of nodes inside that accelerators cannot run.
    unable: usize,
    work: f64,
    transfers: f64,
    host: f64,
    size: f64,
}

impl<'a> Difference<'a> {
    fn new(problem: &'a PartitionProblem, members: &'a [Vec<usize>]) -> Self {
        let nodes = problem.nodes.len();
        let mut sources = vec![Vec::new(); nodes];
        let mut readers = vec![0; nodes];
        for &(from, to) in &problem.edges {
            sources[to].push(from);
            readers[from] += 1;
        }
        Self {
            problem,
            members,
            sources,
            readers,
            inside: vec![false; nodes],
            readers_inside: vec![0; nodes],
            seen: Vec::new(),
            unable: 0,
            work: 0.0,
            transfers: 0.0,
            host: 0.0,
            size: 0.0,
        }
    }

    /// Passes `chains` every ideal above `begin` that one device can reach.
    fn extend(&mut self, ideals: &Ideals, begin: usize, chains: &mut Chains<'_>) {
        self.seen.resize(ideals.next.len(), usize::MAX);
        // (ideal, index of its successor); the groups on the path are inside.
        let mut open: Vec<(usize, usize)> = vec![(begin, 0)];
        let mut way: Vec<usize> = Vec::new();
        while let Some((ideal, place)) = open.last_mut() {
            let Some(&(next, added)) = ideals.next[*ideal].get(*place) else {
                open.pop();
                if let Some(added) = way.pop() {
                    self.set_group_inside(added, false);
                }
                continue;
            };
            *place += 1;
            if std::mem::replace(&mut self.seen[next], begin) == begin {
                continue;
            }
            self.set_group_inside(added, true);
            // Work and host time can only grow from here on.
            if self.feasible_work().min(self.host_time()) < chains.limit {
                chains.go_on(next, self.total_load(), self.host_time());
                open.push((next, 0));
                way.push(added);
            } else {
                self.set_group_inside(added, false);
            }
        }
    }

    fn host_time(&self) -> f64 {
        if self.problem.host {
            self.host
        } else {
            f64::INFINITY
        }
    }

    fn feasible_work(&self) -> f64 {
        if self.unable > 0 || self.size > self.problem.capacity {
            f64::INFINITY
        } else {
            self.work
        }
    }

    fn total_load(&self) -> f64 {
        self.feasible_work() + self.transfers
    }

    /// Adds a group or removes it.
    fn set_group_inside(&mut self, group: usize, inside: bool) {
        let sign = if inside { 1.0 } else { -1.0 };
        for index in 0..self.members[group].len() {
            let node = self.members[group][index];
            let figures = self.problem.nodes[node];
            self.work += sign * figures.accelerator_time.unwrap_or(0.0);
            if figures.accelerator_time.is_none() {
                self.unable = if inside {
                    self.unable + 1
                } else {
                    self.unable - 1
                };
            }
            self.host += sign * figures.host_time;
            self.size += sign * figures.size;
            self.transfers -= self.transfer_cost(node);
            self.inside[node] = inside;
            self.transfers += self.transfer_cost(node);
            for place in 0..self.sources[node].len() {
                let source = self.sources[node][place];
                self.transfers -= self.transfer_cost(source);
                if inside {
                    self.readers_inside[source] += 1;
                } else {
                    self.readers_inside[source] -= 1;
                }
                self.transfers += self.transfer_cost(source);
            }
        }
    }

    /// Returns the cost of a node's result for the device: it sends the result if a reader is
    /// outside, and fetches it if the node is outside and a reader is inside.
    fn transfer_cost(&self, node: usize) -> f64 {
        let crosses = if self.inside[node] {
            self.readers_inside[node] < self.readers[node]
        } else {
            self.readers_inside[node] > 0
        };
        if crosses {
            self.problem.nodes[node].transfer_time
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::partition::PartitionNode;

    /// The least largest load over all divisions whose devices can be put in a row.
    fn naive(problem: &PartitionProblem) -> f64 {
        let (nodes, devices) = (problem.nodes.len(), problem.device_count());
        let mut least = f64::INFINITY;
        for code in 0..devices.pow(nodes as u32) {
            let device: Vec<usize> = (0..nodes)
                .map(|node| code / devices.pow(node as u32) % devices)
                .collect();
            let mut readers = vec![Vec::new(); devices];
            let edges = problem
                .edges
                .iter()
                .map(|&(from, to)| (device[from], device[to]));
            for (from, to) in edges.filter(|(from, to)| from != to) {
                readers[from].push(to);
            }
            let mut size = vec![0.0; devices];
            for (node, &own) in problem.nodes.iter().zip(&device) {
                size[own] += node.size;
            }
            let fits = size[..problem.accelerators]
                .iter()
                .all(|&size| size <= problem.capacity);
            if fits && topological_order(&readers).is_ok() {
                let loads = problem.device_loads(&device);
                least = least.min(loads.into_iter().fold(0.0, f64::max));
            }
        }
        least
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_contiguous_division_is_better(seed in any::<u64>(), nodes in 1usize..7) {
            let mut random = souk_scheduler::planning::planner::Random::new(seed);
            let node = |random: &mut souk_scheduler::planning::planner::Random| PartitionNode {
                accelerator_time: (random.next_below(5) > 0).then(|| random.next_below(9) as f64),
                host_time: random.next_below(30) as f64,
                transfer_time: random.next_below(4) as f64,
                size: random.next_below(3) as f64,
                group: None,
            };
            let mut problem = PartitionProblem {
                nodes: (0..nodes).map(|_| node(&mut random)).collect(),
                edges: Vec::new(),
                accelerators: 2,
                host: true,
                capacity: 5.0,
            };
            for to in 1..nodes {
                for _ in 0..random.next_below(3) {
                    problem.edges.push((random.next_below(to), to));
                }
            }
            let least = naive(&problem);
            let found = best_contiguous_cut(&problem, least + 1.0).expect("one is below the limit");
            let largest = problem.device_loads(&found).into_iter().fold(0.0, f64::max);
            prop_assert!((largest - least).abs() < 1e-9, "{largest} instead of {least}");
            prop_assert_eq!(best_contiguous_cut(&problem, least), None);
        }
    }
}
