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

/// The best line; none where no line of these devices runs every node.
pub(super) fn line(graph: &Graph, seconds: &[Vec<f64>], links: &Links) -> Option<Line> {
    let sums: Vec<Vec<f64>> = seconds.iter().map(|seconds| sums(seconds)).collect();
    let crossing = crossing(graph);
    let nodes = graph.nodes().len();
    let mut orders = Vec::new();
    permute(&mut (0..seconds.len()).collect(), 0, &mut orders);
    let mut best: Option<(f64, Vec<(usize, usize)>)> = None;
    for order in orders {
        let load = |place: usize, from: usize, to: usize| {
            let device = order[place];
            let compute = sums[device][to] - sums[device][from];
            if from == 0 || from == to {
                return compute;
            }
            // From whichever device comes before it; with alike links that one does not matter.
            let before = order[place.saturating_sub(1)];
            compute.max(links.between[before][device].seconds(crossing[from]))
        };
        let (longest, cuts) = cut(order.len(), nodes, load);
        if longest.is_finite() && best.as_ref().is_none_or(|(least, _)| longest < *least) {
            let stages = order.iter().copied().zip(cuts);
            best = Some((longest, stages.collect()));
        }
    }
    best.map(|(longest, stages)| gather(longest, &stages, nodes))
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

/// Seconds of all nodes before each place of the order. A node that a device does not run counts
/// as a very long one, since infinities have no difference.
fn sums(seconds: &[f64]) -> Vec<f64> {
    const NEVER_SECONDS: f64 = 1e12;
    let mut sums = vec![0.0];
    for seconds in seconds {
        let last = sums.last().copied().unwrap_or(0.0);
        sums.push(last + seconds.min(NEVER_SECONDS));
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
    fn devices_without_a_stage_are_left_out() {
        let line = gather(1.0, &[(2, 0), (1, 3), (0, 3), (3, 5)], 5);
        assert_eq!(
            (line.devices, line.of_node),
            (vec![1, 3], vec![0, 0, 0, 1, 1])
        );
    }
}
