//! Sorts the nodes of any graph in topological order, so that each follows those that it depends
//! on. The import, the cuts, the planners' problems and the benchmarks use it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Orders `0..successors.len()` so that every node follows its predecessors, lowest number first
/// among those ready. Every number in `successors` must be below its length. `Err` holds a node on
/// a cycle, or one that depends on a cycle.
pub fn topological_order(successors: &[Vec<usize>]) -> Result<Vec<usize>, usize> {
    let mut waiting = vec![0usize; successors.len()];
    for &next in successors.iter().flatten() {
        waiting[next] += 1;
    }
    let ready = (0..successors.len()).filter(|&node| waiting[node] == 0);
    let mut ready: BinaryHeap<_> = ready.map(Reverse).collect();
    let mut order = Vec::with_capacity(successors.len());
    while let Some(Reverse(node)) = ready.pop() {
        order.push(node);
        for &next in &successors[node] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    match (0..successors.len()).find(|&node| waiting[node] > 0) {
        None => Ok(order),
        Some(stuck) => Err(stuck),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_nodes_come_lowest_first() {
        let successors = vec![vec![], vec![0], vec![0], vec![1]];
        assert_eq!(topological_order(&successors), Ok(vec![2, 3, 1, 0]));
    }

    #[test]
    fn a_cycle_names_a_node_in_it() {
        assert_eq!(topological_order(&[vec![1], vec![2], vec![1]]), Err(1));
    }
}
