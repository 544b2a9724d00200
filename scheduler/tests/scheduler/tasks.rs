//! Tests the conversion of a graph to the tasks of a planning problem.

use bytes::Bytes;
use souk_scheduler::graph::{Bindings, Graph};
use souk_scheduler::planning::tasks::GraphTasks;
use souk_scheduler::planning::{Link, Links, Offer, Operators, Slowness, Throughput};

fn digits() -> Graph {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../testnet/models/digits/digits.onnx"
    );
    let bytes = Bytes::from(std::fs::read(path).expect("the model is in the repository"));
    Graph::import(bytes, &Bindings::with_assumed_extent(1)).expect("it is valid")
}

fn offers() -> [Offer; 2] {
    [1e9, 2e9].map(|flops_per_second| Offer {
        label: "device".to_owned(),
        throughput: vec![Throughput {
            class: None,
            dtype: None,
            flops_per_second,
        }],
        bytes_per_second: 1e10,
        memory_bytes: 1 << 30,
        launch_seconds: 1e-6,
        slowness: Slowness::default(),
        cost_per_second: 1.0,
        busy_watts: None,
        operators: Operators::All,
    })
}

fn tasks(latency_seconds: f64) -> GraphTasks {
    let bytes_per_second = 1e9;
    let links = Links::uniform(
        2,
        Link {
            latency_seconds,
            bytes_per_second,
        },
    );
    GraphTasks::new(&digits(), &offers(), &links).expect("both devices run everything")
}

#[test]
fn every_node_is_in_one_task() {
    let tasks = tasks(1e-4);
    let mut nodes: Vec<usize> = tasks.members.iter().flatten().map(|node| node.0).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, (0..digits().nodes().len()).collect::<Vec<_>>());
    assert!(tasks.members.len() < nodes.len(), "chains are fused");
}

#[test]
fn dear_links_fuse_more_than_free_ones() {
    assert!(tasks(1.0).members.len() < tasks(0.0).members.len());
}
