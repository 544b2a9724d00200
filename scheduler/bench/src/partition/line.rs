//! Finds a first division for the partitioner, which divides a graph over the devices of a
//! pipeline: puts the nodes in a line and cuts it into stretches, one for each accelerator, so that
//! the largest load is as small as possible.

use super::loads::group_nodes;
use super::{PartitionError, PartitionProblem};

/// Returns the best division into stretches over six topological orders, of which `order` must be
/// one. Groups that no accelerator can run go to the host, and all groups do if nothing fits.
pub(super) fn best_line_cut(
    problem: &PartitionProblem,
    order: &[usize],
) -> Result<Vec<usize>, PartitionError> {
    let (members, group) = group_nodes(problem);
    let runs = |members: &Vec<usize>| {
        let size: f64 = members.iter().map(|&node| problem.nodes[node].size).sum();
        let able = members
            .iter()
            .all(|&node| problem.nodes[node].accelerator_time.is_some());
        able && problem.accelerators > 0 && size <= problem.capacity
    };
    let host = problem.accelerators;
    let mut device = vec![host; problem.nodes.len()];
    let stuck = members.iter().position(|members| !runs(members));
    if let Some(stuck) = stuck.filter(|_| !problem.host) {
        let node = members[stuck][0];
        return Err(PartitionError::Nowhere { node });
    }
    let mut orders = vec![order.to_vec(), latest_order(problem, order)];
    for ends in [Ends::Last, Ends::First] {
        for turn in [Turn::As, Turn::Back] {
            orders.push(depth_first_order(problem, ends, turn));
        }
    }
    let cuts = orders.iter().filter_map(|order| {
        let line = line_up(order, &members, &group, &runs);
        let (largest, stretches) = best_stretches(problem, &members, &group, &line)?;
        Some((largest, line, stretches))
    });
    let best = cuts.min_by(|a, b| a.0.total_cmp(&b.0));
    let Some((_, line, stretches)) = best else {
        return if problem.host {
            Ok(device)
        } else {
            let needed = problem.nodes.iter().map(|node| node.size).sum();
            let capacity = problem.capacity * problem.accelerators as f64;
            Err(PartitionError::Memory { needed, capacity })
        };
    };
    for (place, &own) in line.iter().enumerate() {
        let accelerator = stretches.partition_point(|&end| end <= place);
        members[own]
            .iter()
            .for_each(|&node| device[node] = accelerator);
    }
    Ok(device)
}

/// Returns `order` with each node as late as its readers permit: sources stand next to their
/// readers.
fn latest_order(problem: &PartitionProblem, order: &[usize]) -> Vec<usize> {
    let mut place = vec![0usize; order.len()];
    for (index, &node) in order.iter().enumerate() {
        place[node] = index;
    }
    let mut readers = vec![Vec::new(); order.len()];
    for &(from, to) in &problem.edges {
        readers[from].push(to);
    }
    let mut key = place.clone();
    for &node in order.iter().rev() {
        if let Some(first) = readers[node].iter().map(|&to| key[to]).min() {
            key[node] = first;
        }
    }
    let mut late = order.to_vec();
    late.sort_by_key(|&node| (key[node], place[node]));
    late
}

/// The ends of the graph where a depth-first order begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Nodes without readers: each node comes directly after its sources.
    Last,
    /// Nodes without sources: each node comes directly before its readers.
    First,
}

/// The order in which the search visits neighbours.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// In their given order.
    As,
    /// In reverse order.
    Back,
}

/// Returns the nodes in depth-first order from one side of the graph.
fn depth_first_order(problem: &PartitionProblem, ends: Ends, turn: Turn) -> Vec<usize> {
    let nodes = problem.nodes.len();
    let mut sources = vec![Vec::new(); nodes];
    let mut read = vec![false; nodes];
    for &(from, to) in &problem.edges {
        let (from, to) = if ends == Ends::Last {
            (from, to)
        } else {
            (to, from)
        };
        sources[to].push(from);
        read[from] = true;
    }
    if turn == Turn::Back {
        sources.iter_mut().for_each(|sources| sources.reverse());
    }
    let mut seen = vec![false; nodes];
    let mut order = Vec::with_capacity(nodes);
    for end in (0..nodes).filter(|&node| !read[node]) {
        let mut open = vec![(end, false)];
        while let Some((node, done)) = open.pop() {
            if done {
                order.push(node);
            } else if !std::mem::replace(&mut seen[node], true) {
                open.push((node, true));
                open.extend(sources[node].iter().map(|&source| (source, false)));
            }
        }
    }
    if ends == Ends::First {
        order.reverse();
    }
    order
}

/// Returns the groups that accelerators can run, by the mean position of their nodes in the
/// topological order.
fn line_up(
    order: &[usize],
    members: &[Vec<usize>],
    group: &[usize],
    runs: &impl Fn(&Vec<usize>) -> bool,
) -> Vec<usize> {
    let mut place = vec![0.0; members.len()];
    for (index, &node) in order.iter().enumerate() {
        let own = group[node];
        place[own] += index as f64 / members[own].len() as f64;
    }
    let mut line: Vec<usize> = (0..members.len())
        .filter(|&own| runs(&members[own]))
        .collect();
    line.sort_by(|&a, &b| place[a].total_cmp(&place[b]));
    line
}

/// Returns the largest load and the ends of the stretches, one for each accelerator; `None` if
/// memory forbids every division.
fn best_stretches(
    problem: &PartitionProblem,
    members: &[Vec<usize>],
    group: &[usize],
    line: &[usize],
) -> Option<(f64, Vec<usize>)> {
    let length = line.len();
    let load = stretch_loads(problem, members, group, line);
    let at = |begin: usize, end: usize| load[begin * (length + 1) + end];
    let mut best = vec![f64::INFINITY; length + 1];
    best[0] = 0.0;
    let mut came: Vec<Vec<usize>> = Vec::new();
    for _ in 0..problem.accelerators {
        let mut next = vec![f64::INFINITY; length + 1];
        let mut from = vec![0; length + 1];
        for end in 0..=length {
            for (begin, &before) in best[..=end].iter().enumerate() {
                let largest = before.max(at(begin, end));
                if largest < next[end] {
                    (next[end], from[end]) = (largest, begin);
                }
            }
        }
        best = next;
        came.push(from);
    }
    if !best[length].is_finite() {
        return None;
    }
    let mut ends = vec![length];
    for from in came.iter().skip(1).rev() {
        let last = *ends.last().unwrap_or(&length);
        ends.push(from[last]);
    }
    ends.reverse();
    Some((best[length], ends))
}

/// Returns the load of an accelerator with positions `begin..end` of the line, infinite beyond its
/// memory: row `begin`, column `end`.
fn stretch_loads(
    problem: &PartitionProblem,
    members: &[Vec<usize>],
    group: &[usize],
    line: &[usize],
) -> Vec<f64> {
    let nodes = problem.nodes.len();
    let mut readers = vec![Vec::new(); nodes];
    let mut sources = vec![Vec::new(); nodes];
    for &(from, to) in &problem.edges {
        readers[from].push(to);
        sources[to].push(from);
    }
    let width = line.len() + 1;
    let mut place = vec![usize::MAX; members.len()];
    for (index, &own) in line.iter().enumerate() {
        place[own] = index;
    }
    let mut load = vec![0.0; width * width];
    for begin in 0..line.len() {
        let inside = |node: usize, end: usize| (begin..end).contains(&place[group[node]]);
        let mut fetched = vec![false; nodes];
        let mut open = vec![0usize; nodes];
        let (mut time, mut size) = (0.0, 0.0);
        for end in begin + 1..width {
            for &node in &members[line[end - 1]] {
                let figures = &problem.nodes[node];
                time += figures.accelerator_time.unwrap_or(f64::INFINITY);
                size += figures.size;
                if std::mem::take(&mut fetched[node]) {
                    time -= figures.transfer_time;
                }
                open[node] = readers[node].iter().filter(|&&to| !inside(to, end)).count();
                if open[node] > 0 {
                    time += figures.transfer_time;
                }
            }
            for &node in &members[line[end - 1]] {
                for &source in &sources[node] {
                    let transfer = problem.nodes[source].transfer_time;
                    if !inside(source, end) {
                        time += if fetched[source] { 0.0 } else { transfer };
                        fetched[source] = true;
                    } else if place[group[source]] < end - 1 && open[source] > 0 {
                        open[source] -= 1;
                        time -= if open[source] == 0 { transfer } else { 0.0 };
                    }
                }
            }
            load[begin * width + end] = if size <= problem.capacity {
                time
            } else {
                f64::INFINITY
            };
        }
    }
    load
}
