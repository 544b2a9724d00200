//! Tests plans of graphs with branches: parts that run side by side, their explanations, limits on
//! devices, and memory.

use souk_memory::DType;
use souk_onnx::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    encode_model,
};
use souk_scheduler::graph::{Bindings, Graph, NodeId};
use souk_scheduler::planning::{
    Link, Links, Objective, Offer, Operators, Plan, PlanError, PlanOptions, Slowness, Throughput,
    plan_graph,
};

fn node(op: &str, input: Vec<String>, output: String) -> NodeProto {
    NodeProto {
        op_type: Some(op.to_owned()),
        name: Some(output.clone()),
        input,
        output: vec![output],
        ..NodeProto::default()
    }
}

/// A graph from `x` to `y`.
fn imported(nodes: Vec<NodeProto>, weights: Vec<TensorProto>) -> Graph {
    let float = |name: &str| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), None);
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            node: nodes,
            name: Some("branches".to_owned()),
            initializer: weights,
            input: vec![float("x")],
            output: vec![float("y")],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    };
    let bindings = Bindings::new().with_input("x", DType::F32, &[256, 256]);
    Graph::import(encode_model(&model), &bindings).expect("it is valid")
}

/// Returns a graph of `branches` chains of `depth` products that all read one input, and the sum of
/// their ends.
fn branches(branches: usize, depth: usize) -> Graph {
    let mut nodes = Vec::new();
    for branch in 0..branches {
        let mut last = "x".to_owned();
        for layer in 0..depth {
            let made = format!("b{branch}_{layer}");
            nodes.push(node("MatMul", vec![last, "x".to_owned()], made.clone()));
            last = made;
        }
    }
    let ends = (0..branches).map(|branch| format!("b{branch}_{}", depth - 1));
    nodes.push(node("Sum", ends.collect(), "y".to_owned()));
    imported(nodes, Vec::new())
}

fn offer(label: &str, flops_per_second: f64, cost_per_second: f64) -> Offer {
    Offer {
        label: label.to_owned(),
        throughput: vec![Throughput {
            class: None,
            dtype: None,
            flops_per_second,
        }],
        bytes_per_second: 1e12,
        memory_bytes: 1 << 30,
        launch_seconds: 1e-6,
        slowness: Slowness::default(),
        cost_per_second,
        busy_watts: None,
        operators: Operators::All,
    }
}

fn links(offers: usize) -> Links {
    let link = Link {
        latency_seconds: 1e-5,
        bytes_per_second: 1e10,
    };
    Links::uniform(offers, link)
}

fn planned(graph: &Graph, offers: &[Offer], options: &PlanOptions) -> Plan {
    let plan = plan_graph(graph, offers, &links(offers.len()), options).expect("there is a plan");
    // Every plan can be cut, and no part waits in a circle.
    let parts = plan.cut_graph(graph).expect("the parts can be models");
    assert_eq!(parts.len(), plan.parts.len());
    plan
}

#[test]
fn branches_run_side_by_side() {
    let offers = [offer("a", 1e10, 1.0), offer("b", 1e10, 1.0)];
    let plan = planned(&branches(4, 3), &offers, &PlanOptions::default());
    // Stretches of the graph's order could do it as well; what counts is that both compute at once.
    assert!(
        plan.speedup.expect("one device can run all") > 1.9,
        "{plan:?}"
    );
    let busy: Vec<f64> = plan.utilisation.iter().map(|device| device.share).collect();
    assert!(
        busy.len() == 2 && busy.iter().all(|share| *share > 0.9),
        "{busy:?}"
    );
}

#[test]
fn one_sequence_goes_round_and_several_keep_devices_busy() {
    let offers = [offer("a", 1e10, 1.0), offer("b", 1e10, 1.0)];
    let graph = branches(1, 8);
    let steps = |sequences| PlanOptions {
        requests: 100,
        sequences,
        ..PlanOptions::default()
    };
    let once = planned(&graph, &offers, &PlanOptions::default());
    let one = planned(&graph, &offers, &steps(1));
    assert_eq!(
        one.used_offers().len(),
        1,
        "a second device is one more hop"
    );
    let rounds = one.makespan_seconds / once.makespan_seconds;
    assert!((rounds - 100.0).abs() < 1e-6, "{rounds} rounds");
    for sequences in [0, 4] {
        let several = planned(&graph, &offers, &steps(sequences));
        assert_eq!(several.used_offers().len(), 2, "{sequences} sequences");
        assert!(several.makespan_seconds < 0.6 * one.makespan_seconds);
    }
    // A round takes as long as there is one under way at a time, however many devices take part.
    let spread = PlanOptions {
        min_devices: 2,
        ..steps(1)
    };
    let spread = planned(&graph, &offers, &spread);
    assert!(spread.makespan_seconds > one.makespan_seconds, "{spread:?}");
}

#[test]
fn what_is_made_of_weights_alone_is_no_work_for_a_device() {
    let weight = TensorProto {
        dims: vec![256, 256],
        data_type: Some(DType::F32.onnx_code()),
        name: Some("w".to_owned()),
        raw_data: Some(vec![0; 4 * 256 * 256].into()),
        ..TensorProto::default()
    };
    let product = |left: &str, right: &str, made: &str| {
        node(
            "MatMul",
            vec![left.to_owned(), right.to_owned()],
            made.to_owned(),
        )
    };
    let mut nodes = vec![product("w", "w", "c0")];
    for n in 1..8 {
        nodes.push(product(&format!("c{}", n - 1), "w", &format!("c{n}")));
    }
    for (from, to) in [("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")] {
        nodes.push(product(from, "c7", to));
    }
    let options = PlanOptions {
        min_devices: 2,
        max_devices: 2,
        requests: 10,
        sequences: 1,
        ..PlanOptions::default()
    };
    let offers = [offer("a", 1e10, 1.0), offer("b", 1e10, 1.0)];
    let graph = imported(nodes, vec![weight]);
    let plan = planned(&graph, &offers, &options);
    for part in &plan.parts {
        let runs = |node: &NodeId| graph.nodes()[node.0].proto.input.contains(&"c7".to_owned());
        assert!(part.nodes.iter().any(runs), "{plan:?}");
    }
}

#[test]
fn interleaved_branches_are_gathered_by_device() {
    // Three devices and six branches: no three stretches of the graph's order are balanced better
    // than the branches themselves.
    let offers = [
        offer("a", 1e10, 1.0),
        offer("b", 1e10, 1.0),
        offer("c", 2e10, 1.0),
    ];
    let plan = planned(&branches(8, 2), &offers, &PlanOptions::default());
    assert!(
        plan.speedup.expect("one device can run all") > 1.8,
        "{:?}",
        plan.speedup
    );
}

#[test]
fn the_critical_path_leads_to_the_end() {
    let offers = [offer("a", 1e10, 1.0), offer("b", 1e10, 1.0)];
    let plan = planned(&branches(4, 3), &offers, &PlanOptions::default());
    let last = &plan.parts[*plan.critical_path.last().expect("there is a part")];
    let back = links(2).buyer[0].transfer_seconds(256 * 256 * 4);
    assert!((last.finish_seconds + back - plan.makespan_seconds).abs() < 1e-9);
    for pair in plan.critical_path.windows(2) {
        assert!(plan.parts[pair[0]].finish_seconds <= plan.parts[pair[1]].start_seconds);
    }
}

#[test]
fn the_next_best_device_costs_what_it_is_said_to() {
    let offers = [offer("slow", 1e10, 1.0), offer("fast", 3e10, 9.0)];
    let options = PlanOptions {
        max_devices: 1,
        ..PlanOptions::default()
    };
    let graph = branches(2, 2);
    let best = planned(&graph, &offers, &options);
    assert_eq!(best.used_offers(), [1]);
    let other = best.parts[0]
        .why
        .alternative
        .expect("the slow one could do it");
    let alone = planned(&graph, &offers[..1], &options);
    assert_eq!(
        (other.offer, other.makespan_seconds),
        (0, alone.makespan_seconds)
    );
    assert!((other.cost - alone.cost).abs() < 1e-12);
}

#[test]
fn limits_on_devices_hold_with_many_on_offer() {
    let offers: Vec<Offer> = (0..12)
        .map(|at| offer("d", 1e10 + 1e8 * f64::from(at), 1.0))
        .collect();
    for (min_devices, max_devices) in [(1, 1), (1, 3), (2, 2), (3, 5)] {
        let options = PlanOptions {
            min_devices,
            max_devices,
            ..PlanOptions::default()
        };
        let plan = planned(&branches(8, 3), &offers, &options);
        let used = plan.used_offers().len();
        assert!((min_devices..=max_devices).contains(&used), "{used}");
    }
}

#[test]
fn the_cheap_device_gets_what_a_deadline_allows() {
    let offers = [offer("dear", 4e10, 40.0), offer("cheap", 1e10, 1.0)];
    let graph = branches(4, 3);
    let with = |deadline_seconds: Option<f64>| PlanOptions {
        objective: Objective::Cheapest,
        deadline_seconds,
        ..PlanOptions::default()
    };
    let cheapest = planned(&graph, &offers, &with(None));
    let hurried = planned(
        &graph,
        &offers,
        &with(Some(cheapest.makespan_seconds * 0.6)),
    );
    let fastest = planned(&graph, &offers, &PlanOptions::default());
    assert_eq!(cheapest.used_offers(), [1]);
    assert!(hurried.makespan_seconds <= cheapest.makespan_seconds * 0.6);
    assert!(cheapest.cost < hurried.cost && hurried.cost <= fastest.cost);
}

#[test]
fn a_job_beyond_every_memory_is_refused_with_what_it_needs() {
    let graph = branches(4, 3);
    let small = |label| Offer {
        memory_bytes: 1 << 16,
        ..offer(label, 1e10, 1.0)
    };
    let offers = [small("a"), small("b")];
    let refused = plan_graph(&graph, &offers, &links(2), &PlanOptions::default()).unwrap_err();
    let PlanError::Memory { needed, largest } = refused else {
        panic!("{refused}");
    };
    // The weights alone are more.
    assert!(needed > graph.summary().weight_bytes && largest == 1 << 16);
    assert!(
        refused.to_string().contains(&needed.to_string()),
        "{refused}"
    );
}
