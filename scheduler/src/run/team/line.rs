//! A subgraph as a line of stages, one a device, for a stream of requests.
//!
//! Stages are stretches of the graph's order. The longest stage is what a stream waits for, so it
//! is what is made small: over all ways to cut the order and all orders of the devices, by dynamic
//! programming for each of these. A device that would only hold the others up is left out.

use crate::graph::Graph;
use crate::plan::Links;

/// Orders of the devices that are tried: all of five; of more, the first of them.
const ORDERS_MAX: usize = 120;

/// A line of stages.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    /// The device of each stage.
    pub devices: Vec<usize>,
    /// The stage of each node.
    pub of_node: Vec<usize>,
    /// Seconds that the longest stage takes: the time between two answers.
    pub longest_seconds: f64,
}

/// What stretches of a graph's order take.
pub(super) struct Loads<'a> {
    /// By device: seconds of all nodes before each place of the order that it runs, and how many
    /// there are before it that it does not run.
    sums: Vec<Vec<(f64, usize)>>,
    /// Bytes that are handed on at each place.
    crossing: Vec<u64>,
    links: &'a Links,
}

impl<'a> Loads<'a> {
    /// Of a graph whose nodes take so many seconds on each device.
    pub fn new(graph: &Graph, seconds: &[Vec<f64>], links: &'a Links) -> Self {
        Self {
            sums: seconds.iter().map(|seconds| sums(seconds)).collect(),
            crossing: crossing(graph),
            links,
        }
    }

    fn nodes(&self) -> usize {
        self.crossing.len() - 1
    }

    /// Seconds of the nodes from one place to another on a device, or of the way there if that
    /// takes longer; infinite where it does not run them.
    fn stage(&self, before: usize, device: usize, [from, to]: [usize; 2]) -> f64 {
        let ends = [from, to].map(|place| self.sums[device][place]);
        if ends[0].1 != ends[1].1 {
            return f64::INFINITY;
        }
        let compute = ends[1].0 - ends[0].0;
        if from == 0 || from == to {
            return compute;
        }
        compute.max(self.links.between[before][device].seconds(self.crossing[from]))
    }

    /// Seconds of all of it on one device.
    pub fn whole(&self, device: usize) -> f64 {
        self.stage(device, device, [0, self.nodes()])
    }

    /// Seconds of the longest stage of a line.
    pub fn longest(&self, line: &Line) -> f64 {
        let (mut longest, mut from, mut before) = (0.0_f64, 0, 0);
        for (stage, &device) in line.devices.iter().enumerate() {
            let to = line.of_node.partition_point(|of| *of <= stage);
            longest = longest.max(self.stage(before, device, [from, to]));
            (from, before) = (to, device);
        }
        longest
    }

    /// The best line; none where no line of these devices runs every node.
    pub fn line(&self) -> Option<Line> {
        let nodes = self.nodes();
        let mut orders = Vec::new();
        permute(&mut (0..self.sums.len()).collect(), 0, &mut orders);
        let mut best: Option<(f64, Vec<(usize, usize)>)> = None;
        for order in orders {
            let load = |place: usize, from: usize, to: usize| {
                // From whichever device comes before it; with alike links that one does not matter.
                let before = order[place.saturating_sub(1)];
                self.stage(before, order[place], [from, to])
            };
            let (longest, cuts) = cut(order.len(), nodes, load);
            if longest.is_finite() && best.as_ref().is_none_or(|(least, _)| longest < *least) {
                let stages = order.iter().copied().zip(cuts);
                best = Some((longest, stages.collect()));
            }
        }
        best.map(|(longest, stages)| gather(longest, &stages, nodes))
    }
}

/// Stages from the devices in order and where each ends, empty ones left out.
fn gather(longest_seconds: f64, stages: &[(usize, usize)], nodes: usize) -> Line {
    let mut line = Line {
        devices: Vec::new(),
        of_node: Vec::with_capacity(nodes),
        longest_seconds,
    };
    for &(device, end) in stages {
        if end > line.of_node.len() {
            line.of_node.resize(end, line.devices.len());
            line.devices.push(device);
        }
    }
    assert_eq!(line.of_node.len(), nodes, "each node is in a stage");
    line
}

/// Where each of `stages` ends so that the largest load is least.
fn cut(
    stages: usize,
    nodes: usize,
    load: impl Fn(usize, usize, usize) -> f64,
) -> (f64, Vec<usize>) {
    let mut least: Vec<f64> = (0..=nodes).map(|to| load(0, 0, to)).collect();
    let mut begins: Vec<Vec<usize>> = Vec::new();
    for stage in 1..stages {
        let mut next = vec![f64::INFINITY; nodes + 1];
        let mut begin = vec![0; nodes + 1];
        for to in 0..=nodes {
            for (from, &before) in least.iter().enumerate().take(to + 1) {
                let largest = before.max(load(stage, from, to));
                if largest < next[to] {
                    (next[to], begin[to]) = (largest, from);
                }
            }
        }
        least = next;
        begins.push(begin);
    }
    let mut ends = vec![nodes];
    for begin in begins.iter().rev() {
        let last = *ends.last().expect("the last stage ends");
        ends.push(begin[last]);
    }
    ends.reverse();
    (least[nodes], ends)
}

/// Seconds of all nodes before each place of the order that a device runs, and how many it does
/// not: infinities have no difference, and very long times leave nothing of short ones.
fn sums(seconds: &[f64]) -> Vec<(f64, usize)> {
    let mut sums = vec![(0.0, 0)];
    for &seconds in seconds {
        let (sum, never) = sums.last().copied().unwrap_or((0.0, 0));
        sums.push(match seconds.is_finite() {
            true => (sum + seconds, never),
            false => (sum, never + 1),
        });
    }
    sums
}

/// Bytes of what is made before each place of the order and read from there on.
fn crossing(graph: &Graph) -> Vec<u64> {
    let mut crossing = vec![0u64; graph.nodes().len() + 1];
    for value in graph.values() {
        let Some(from) = value.producer() else {
            continue;
        };
        let last = value
            .readers
            .iter()
            .map(|reader| reader.0)
            .max()
            .unwrap_or(from.0);
        let bytes = value.fact.byte_length().unwrap_or(0);
        for place in &mut crossing[from.0 + 1..=last.max(from.0)] {
            *place = place.saturating_add(bytes);
        }
    }
    crossing
}

fn permute(order: &mut Vec<usize>, fixed: usize, all: &mut Vec<Vec<usize>>) {
    if all.len() >= ORDERS_MAX {
        return;
    }
    if fixed == order.len() {
        all.push(order.clone());
        return;
    }
    for next in fixed..order.len() {
        order.swap(fixed, next);
        permute(order, fixed + 1, all);
        order.swap(fixed, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Link;

    #[test]
    fn the_longest_stage_is_as_short_as_any_cut_makes_it() {
        let times = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0];
        let speed = [1.0, 2.0];
        let load = |stage: usize, from: usize, to: usize| {
            times[from..to].iter().sum::<f64>() / speed[stage]
        };
        let (longest, ends) = cut(2, times.len(), load);
        let tried = (0..=times.len()).map(|at| load(0, 0, at).max(load(1, at, times.len())));
        assert_eq!(longest, tried.fold(f64::INFINITY, f64::min));
        assert_eq!(ends, [4, 8]);
    }

    #[test]
    fn what_a_device_does_not_run_leaves_the_rest_as_it_was() {
        let word = Link {
            latency_seconds: 0.0,
            bytes_per_second: f64::INFINITY,
        };
        let links = Links {
            buyer: vec![word; 2],
            between: vec![vec![word; 2]; 2],
        };
        let seconds = [
            [f64::INFINITY, 1e-6, 1e-6, 1e-6],
            [1e-6, 2e-6, 2e-6, f64::INFINITY],
        ];
        let loads = Loads {
            sums: seconds.iter().map(|seconds| sums(seconds)).collect(),
            crossing: vec![0; 5],
            links: &links,
        };
        let line = loads.line().unwrap();
        let of_node = vec![0, 1, 1, 1];
        assert_eq!((&line.devices, &line.of_node), (&vec![1, 0], &of_node));
        assert!((line.longest_seconds - 3e-6).abs() < 1e-12, "{line:?}");
        assert_eq!(loads.longest(&line), line.longest_seconds);
        assert_eq!(loads.whole(0), f64::INFINITY);
    }

    #[test]
    fn devices_without_a_stage_are_left_out() {
        let line = gather(1.0, &[(2, 0), (1, 3), (0, 3), (3, 5)], 5);
        assert_eq!(
            (line.devices, line.of_node),
            (vec![1, 3], vec![0, 0, 0, 1, 1])
        );
    }
}
