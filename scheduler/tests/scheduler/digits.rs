//! Tests all steps with the bundled digit classifier: import, plans, cuts, and models of parts with
//! their weights inside.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{ContentId, DType};
use souk_onnx::decode_model;
use souk_scheduler::graph::cut::{cut_graph, inline_weights, weight_bytes, whole_graph};
use souk_scheduler::graph::{Bindings, Graph, ImportError};
use souk_scheduler::planning::{
    Link, Links, Objective, Offer, Operators, PlanError, PlanOptions, Slowness, Throughput,
    pareto_plans, plan_graph,
};

fn model() -> Bytes {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../testnet/models/digits/digits.onnx"
    );
    Bytes::from(std::fs::read(path).expect("the model is in the repository"))
}

fn input_name(graph: &Graph) -> String {
    graph.value(graph.inputs()[0]).name.clone()
}

fn digits() -> Graph {
    let looked_at = Graph::import(model(), &Bindings::with_assumed_extent(4)).expect("it is valid");
    let input = looked_at.value(looked_at.inputs()[0]);
    let dims = input.dims().expect("its shape is known");
    let dims: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
    let bindings = Bindings::new().with_input(input.name.clone(), DType::F32, &dims);
    Graph::import(model(), &bindings).expect("it is valid")
}

fn offer(label: &str, flops: f64, price: f64) -> Offer {
    Offer {
        label: label.to_owned(),
        throughput: vec![Throughput {
            class: None,
            dtype: None,
            flops_per_second: flops,
        }],
        bytes_per_second: 1e10,
        memory_bytes: 1 << 30,
        launch_seconds: 1e-6,
        slowness: Slowness::default(),
        cost_per_second: price,
        busy_watts: None,
        operators: Operators::All,
    }
}

fn links(offers: usize) -> Links {
    Links::uniform(
        offers,
        Link {
            latency_seconds: 1e-4,
            bytes_per_second: 1e9,
        },
    )
}

#[test]
fn every_value_of_the_model_has_a_shape() {
    let summary = digits().summary();
    assert_eq!(summary.unknown_values, 0);
    assert!(summary.flops > 1_000_000, "{} operations", summary.flops);
}

#[test]
fn equal_cuts_have_equal_ids_and_other_cuts_others() {
    let graph = digits();
    let half = |at: usize| {
        (0..graph.nodes().len())
            .map(|node| usize::from(node >= at))
            .collect()
    };
    let (first, again): (Vec<usize>, Vec<usize>) = (half(9), half(9));
    let ids = |assignment: &[usize]| -> Vec<ContentId> {
        cut_graph(&graph, assignment)
            .unwrap()
            .iter()
            .map(|part| part.id)
            .collect()
    };
    assert_eq!(ids(&first), ids(&again));
    assert_ne!(ids(&first), ids(&half(10)));
}

#[test]
fn parts_with_their_weights_back_are_models_again() {
    let graph = digits();
    let store: BTreeMap<ContentId, Bytes> = weight_bytes(&graph).collect();
    let nodes = graph.nodes().len();
    let parts = cut_graph(
        &graph,
        &(0..nodes).map(|node| node * 3 / nodes).collect::<Vec<_>>(),
    )
    .unwrap();
    assert_eq!(parts.len(), 3);
    let mut found = 0;
    for part in parts {
        let mut model = decode_model(part.model).unwrap();
        inline_weights(&mut model, |id| store.get(id).cloned()).unwrap();
        let again = souk_onnx::encode_model(&model);
        let inner = Graph::import(again, &Bindings::with_assumed_extent(1)).unwrap();
        found += inner.nodes().len();
        assert_eq!(inner.summary().unknown_values, 0);
    }
    assert_eq!(found, nodes);
}

#[test]
fn a_circle_of_parts_is_refused_with_its_value() {
    let graph = digits();
    let alternate: Vec<usize> = (0..graph.nodes().len()).map(|node| node % 2).collect();
    let error = cut_graph(&graph, &alternate).unwrap_err();
    assert!(error.to_string().contains("need each other"), "{error}");
}

#[test]
fn two_devices_each_hold_real_work() {
    let graph = digits();
    let offers = [
        offer("fast", 1e10, 2.0),
        offer("slow", 5e9, 1.0),
        offer("last", 1e9, 0.1),
    ];
    let options = PlanOptions {
        min_devices: 2,
        ..PlanOptions::default()
    };
    let plan = plan_graph(&graph, &offers, &links(3), &options).unwrap();
    assert!(plan.used_offers().len() >= 2);
    let total: u64 = plan.parts.iter().map(|part| part.flops).sum();
    for part in &plan.parts {
        assert!(
            part.flops * 10 > total,
            "{} has {} of {total}",
            part.label,
            part.flops
        );
    }
    assert_eq!(plan.cut_graph(&graph).unwrap().len(), plan.parts.len());
    assert_eq!(
        Ok(&plan),
        plan_graph(&graph, &offers, &links(3), &options).as_ref()
    );
}

#[test]
fn as_many_devices_as_are_asked_for_work_however_unlike_they_are() {
    let graph = digits();
    for speeds in [
        &[6.7e10, 9.3e10, 5.4e10, 9.9e10][..],
        &[2.6e10, 3.6e9, 2.4e10, 1.9e10],
        &[1e12, 1e9, 1e9],
        &[1e9, 1e12, 1e7],
    ] {
        let named = |(n, &speed): (usize, &f64)| offer(&format!("{n}"), speed, 1.0);
        let offers: Vec<Offer> = speeds.iter().enumerate().map(named).collect();
        let options = PlanOptions {
            min_devices: offers.len(),
            objective: Objective::Balanced,
            ..PlanOptions::default()
        };
        let plan = plan_graph(&graph, &offers, &links(offers.len()), &options);
        let plan = plan.unwrap_or_else(|error| panic!("{speeds:?}: {error}"));
        assert_eq!(plan.used_offers().len(), offers.len(), "{speeds:?}");
    }
}

#[test]
fn the_cheapest_plan_is_named_when_the_budget_is_below_it() {
    let graph = digits();
    let offers = [offer("fast", 1e10, 2.0), offer("slow", 5e9, 1.5)];
    let free = PlanOptions {
        objective: Objective::Cheapest,
        ..PlanOptions::default()
    };
    let cheapest = plan_graph(&graph, &offers, &links(2), &free).unwrap().cost;
    let poor = PlanOptions {
        budget: Some(cheapest / 2.0),
        ..PlanOptions::default()
    };
    let error = plan_graph(&graph, &offers, &links(2), &poor).unwrap_err();
    assert_eq!(
        error,
        PlanError::Budget {
            budget: cheapest / 2.0,
            cheapest
        }
    );
}

#[test]
fn operators_that_one_device_lacks_go_to_the_other() {
    let graph = digits();
    let all: std::collections::BTreeSet<String> = graph
        .nodes()
        .iter()
        .map(|node| node.operator_name())
        .collect();
    let without = |name: &str| {
        let names = all.iter().filter(|operator| *operator != name).cloned();
        Operators::Only(names.collect())
    };
    let mut offers = [offer("a", 1e10, 1.0), offer("b", 1e9, 1.0)];
    offers[0].operators = without("Gemm");
    offers[1].operators = without("Concat");
    let found = plan_graph(&graph, &offers, &links(2), &PlanOptions::default()).unwrap();
    assert_eq!(found.used_offers(), vec![0, 1]);
    offers[1].operators = without("Gemm");
    let error = plan_graph(&graph, &offers, &links(2), &PlanOptions::default()).unwrap_err();
    assert!(
        matches!(&error, PlanError::Unsupported { operator, .. } if operator == "Gemm"),
        "{error}"
    );
}

#[test]
fn wrong_inputs_are_named_with_what_was_expected() {
    let name = input_name(&digits());
    let import = |bindings: Bindings| Graph::import(model(), &bindings).unwrap_err();
    // A weight is no input of this model either.
    for other in ["nobody", "stem.bias"] {
        let unknown = import(Bindings::new().with_input(other, DType::F32, &[1]));
        assert!(
            matches!(unknown, ImportError::UnknownInput { .. }),
            "{unknown}"
        );
    }
    let missing = import(Bindings::new());
    assert!(
        matches!(missing, ImportError::MissingInput { .. }),
        "{missing}"
    );
    let dtype = import(Bindings::new().with_input(name.clone(), DType::F64, &[1, 1, 8, 8]));
    assert!(matches!(dtype, ImportError::InputType { .. }), "{dtype}");
    let shape = import(Bindings::new().with_input(name, DType::F32, &[1, 1, 8]));
    assert!(matches!(shape, ImportError::InputShape { .. }), "{shape}");
}

#[test]
fn the_whole_model_as_one_part_has_the_models_inputs_and_outputs() {
    let graph = digits();
    let part = whole_graph(&graph).unwrap();
    assert_eq!(part.inputs.len(), graph.inputs().len());
    assert_eq!(part.outputs.len(), graph.outputs().len());
    assert!(part.after.is_empty());
}

#[test]
fn no_plan_of_the_front_is_beaten_by_another() {
    let graph = digits();
    let offers = [
        offer("fast", 1e10, 20.0),
        offer("mid", 4e9, 3.0),
        offer("slow", 1e9, 0.2),
    ];
    let front = pareto_plans(&graph, &offers, &links(3), &PlanOptions::default()).unwrap();
    assert!(front.len() >= 2, "{} plans", front.len());
    for pair in front.windows(2) {
        assert!(pair[0].makespan_seconds < pair[1].makespan_seconds);
        assert!(pair[0].cost > pair[1].cost);
    }
}
