//! Tests the pipeline partitioner on chains with a known best division, on random graphs, and on
//! invalid problems.

use proptest::prelude::*;
use souk_scheduler::planning::planner::step_pace;
use souk_scheduler_bench::partition::{
    PartitionError, PartitionNode, PartitionProblem, partition_graph,
};

fn chain(times: &[f64], transfer_time: f64, accelerators: usize) -> PartitionProblem {
    let node = |&time: &f64| PartitionNode {
        accelerator_time: Some(time),
        host_time: 10.0 * time,
        transfer_time,
        size: 1.0,
        group: None,
    };
    PartitionProblem {
        nodes: times.iter().map(node).collect(),
        edges: (1..times.len()).map(|to| (to - 1, to)).collect(),
        accelerators,
        host: false,
        capacity: times.len() as f64,
    }
}

#[test]
fn an_even_chain_is_cut_evenly() {
    let found = partition_graph(&chain(&[1.0; 12], 0.0, 4), &mut step_pace(10_000)).unwrap();
    assert_eq!(found.largest, 3.0);
}

#[test]
fn dear_transfers_keep_a_chain_together() {
    let found = partition_graph(&chain(&[1.0; 4], 50.0, 2), &mut step_pace(10_000)).unwrap();
    assert_eq!(found.largest, 4.0);
}

#[test]
fn groups_stay_together() {
    let mut problem = chain(&[1.0; 8], 0.1, 2);
    problem.nodes[0].group = Some(7);
    problem.nodes[7].group = Some(7);
    let found = partition_graph(&problem, &mut step_pace(10_000)).unwrap();
    assert_eq!(found.device[0], found.device[7]);
}

#[test]
fn what_fits_nowhere_is_named() {
    let mut large = chain(&[1.0; 3], 0.0, 2);
    large.nodes[1].size = 9.0;
    let error = partition_graph(&large, &mut step_pace(100)).unwrap_err();
    assert_eq!(error, PartitionError::Nowhere { node: 1 });
    let mut circle = chain(&[1.0; 3], 0.0, 2);
    circle.edges.push((2, 0));
    let error = partition_graph(&circle, &mut step_pace(100)).unwrap_err();
    assert!(matches!(error, PartitionError::Cycle { .. }));
    let none = chain(&[1.0], 0.0, 0);
    assert_eq!(
        partition_graph(&none, &mut step_pace(100)),
        Err(PartitionError::NoDevice)
    );
}

/// Draws a chain of nodes with additional edges from a seed, with three accelerators too small for
/// it, and the host.
fn drawn(seed: u64, nodes: usize) -> PartitionProblem {
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let times: Vec<f64> = (0..nodes).map(|_| random(20) as f64).collect();
    let mut problem = chain(&times, 1.0, 3);
    problem.host = true;
    problem.capacity = 12.0;
    for _ in 0..nodes {
        let to = random(nodes as u64) as usize;
        if to > 0 {
            problem.edges.push((random(to as u64) as usize, to));
        }
    }
    problem
}

fn assert_sound(problem: &PartitionProblem) {
    let found = partition_graph(problem, &mut step_pace(3_000)).expect("the host takes the rest");
    assert_eq!(&found.loads, &problem.device_loads(&found.device));
    assert!(found.loads.iter().all(|&load| load <= found.largest));
    for accelerator in 0..3 {
        let held = found.device.iter().filter(|&&device| device == accelerator);
        assert!(held.count() <= 12, "{:?}", found.device);
    }
    let again = partition_graph(problem, &mut step_pace(3_000)).expect("the host takes the rest");
    assert_eq!(found, again);
}

/// Regression: the partitioner moved neighbours together, but checked for each of them alone
/// whether it fits.
#[test]
fn nodes_that_move_together_fit_together() {
    assert_sound(&drawn(10_719_094_153_478_063_745, 26));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn loads_add_up_and_memory_holds(seed in any::<u64>(), nodes in 1usize..30) {
        assert_sound(&drawn(seed, nodes));
    }
}
