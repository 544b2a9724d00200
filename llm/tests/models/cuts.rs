//! Tests a decoder that is cut into several parts, each of which keeps its own states (caches):
//! together they must give the same logits as the whole.

use std::collections::{BTreeMap, BTreeSet};

use souk_llm::decoder::{Decoder, LOGITS};
use souk_llm::generation;
use souk_memory::Tensor;
use souk_onnx::states::model_states;
use souk_onnx::subgraph::Subgraph;
use souk_scheduler::graph::{Bindings, Graph, cut};
use souk_scheduler::planning::{
    Link, Links, Offer, Operators, Plan, PlanOptions, Slowness, Throughput, plan_graph,
};
use souk_vocabulary::processor::session::{Session, State};
use souk_vocabulary::processor::{Processor, Program};

use super::common;
use super::decoders::{Case, ROOM, near};

/// Values handed from part to part, by name.
type Values = BTreeMap<String, Tensor>;

/// Steps each part's session with what it reads of the values; gives all there are then.
fn step(parts: &mut [(Vec<String>, Box<dyn Session + '_>)], mut values: Values) -> Values {
    for (reads, session) in parts {
        let read = |name: &String| Some((name.clone(), values.get(name)?.clone()));
        let inputs = reads.iter().filter_map(read).collect();
        values.extend(session.step(&inputs).unwrap().outputs);
    }
    values
}

/// With a head of its own, and with one that is the embedding turned.
#[test]
fn two_parts_keep_their_own_states_and_give_the_logits_of_the_whole() {
    for name in ["llama", "qwen3", "gemma2", "gemma3", "mixtral", "qwen2-moe"] {
        cut_in_two(&Case::read(name));
    }
}

/// A decoder for the steps of a prompt, and what the first of them is given.
fn imported(case: &Case, decoder: &Decoder) -> (Graph, Values) {
    let given = generation::step_inputs(&case.prompt, 0, &[case.prompt.len() - 1]);
    let empty = decoder.empty_cache(ROOM);
    let caches = decoder.states.iter().map(|port| (&port.input, &empty));
    let bindings = given
        .iter()
        .chain(caches)
        .fold(Bindings::new(), |bindings, (name, tensor)| {
            bindings.with_input(name, tensor.dtype(), tensor.dims())
        });
    let graph = Graph::import(decoder.subgraph.model.clone(), &bindings).unwrap();
    (graph, given)
}

fn offer(flops_per_second: f64) -> Offer {
    Offer {
        label: String::new(),
        throughput: vec![Throughput {
            class: None,
            dtype: None,
            flops_per_second,
        }],
        bytes_per_second: 1e9,
        memory_bytes: 1 << 30,
        launch_seconds: 1e-6,
        slowness: Slowness::default(),
        cost_per_second: 1.0,
        busy_watts: None,
        operators: Operators::All,
    }
}

/// A plan over two offers that are near.
fn planned(graph: &Graph, offers: &[Offer; 2]) -> Plan {
    let link = Link {
        latency_seconds: 1e-6,
        bytes_per_second: 1e12,
    };
    let options = PlanOptions {
        min_devices: 2,
        requests: 50,
        sequences: 4,
        ..PlanOptions::default()
    };
    plan_graph(graph, offers, &Links::uniform(2, link), &options).unwrap()
}

/// A cache costs a plan no time, wherever it is: it must not look like a place to cut.
#[test]
fn no_plan_cuts_a_cache_from_who_reads_it() {
    let case = Case::read("llama");
    let decoder = case.decoder();
    let (graph, _) = imported(&case, &decoder);
    let states = graph.state_values();
    for tenths in 1..=10 {
        let offers = [offer(1e9), offer(f64::from(tenths) * 1e8)];
        let plan = planned(&graph, &offers);
        for state in &states {
            let value = graph.value(*state);
            let ends = value.readers.iter().copied().chain(value.producer());
            let parts: BTreeSet<usize> = ends.map(|node| plan.assignment[node.0]).collect();
            assert!(parts.len() <= 1, "{} is in parts {parts:?}", value.name);
        }
    }
}

/// However much of it each offer does, every part of a plan is what decoders' kernels know: it has
/// states, one value goes from part to part, and it is a layer's.
#[test]
fn plans_cut_decoders_between_layers_or_their_halves() {
    let case = Case::read("llama");
    let decoder = case.decoder();
    let (graph, _) = imported(&case, &decoder);
    let mut seen = BTreeSet::new();
    for tenths in 1..=40 {
        let offers = [offer(1e9), offer(f64::from(tenths) * 1e8)];
        let plan = planned(&graph, &offers);
        let parts = cut::cut_graph(&graph, &plan.assignment).unwrap();
        assert_eq!(parts.len(), 2);
        let sent: Vec<&str> = parts[0]
            .outputs
            .iter()
            .filter(|output| !output.to.is_empty())
            .map(|output| output.name.as_str())
            .collect();
        let [name] = sent[..] else {
            panic!("one value goes on: {sent:?}");
        };
        assert!(
            name.starts_with("hidden.") || name.starts_with("attended."),
            "{name}"
        );
        for part in &parts {
            let ports =
                model_states(&souk_onnx::decode_model(part.model.clone()).unwrap()).unwrap();
            assert!(!ports.is_empty(), "each part has states, cut at {name}");
        }
        seen.insert(name.to_owned());
    }
    assert!(
        seen.len() > 1,
        "other offers are cut for elsewhere: {seen:?}"
    );
}

fn cut_in_two(case: &Case) {
    let decoder = case.decoder();
    let (graph, given) = imported(case, &decoder);
    let first = graph.nodes().iter().position(|node| {
        node.outputs
            .iter()
            .flatten()
            .any(|value| graph.value(*value).name == "hidden.0")
    });
    let last = first.unwrap();
    let assignment: Vec<usize> = (0..graph.nodes().len())
        .map(|at| usize::from(at > last))
        .collect();
    let parts = cut::cut_graph(&graph, &assignment).unwrap();
    // Nothing that is made of weights alone goes from part to part.
    let sent = parts[0].outputs.iter().filter(|output| output.to == [1]);
    let sent: Vec<&str> = sent.map(|output| output.name.as_str()).collect();
    assert_eq!(sent, ["hidden.0"]);
    let programs: Vec<(Vec<_>, Box<dyn Program>)> = parts
        .iter()
        .map(|part| {
            let subgraph = Subgraph {
                model: part.model.clone(),
                weights: decoder.subgraph.weights.clone(),
            };
            let ports =
                model_states(&souk_onnx::decode_model(part.model.clone()).unwrap()).unwrap();
            (ports, common::cpu().compile(&subgraph).unwrap())
        })
        .collect();
    let counts: Vec<usize> = programs.iter().map(|(ports, _)| ports.len()).collect();
    assert_eq!(
        counts,
        [2, decoder.states.len() - 2],
        "a layer's two caches, and those of the others"
    );
    let mut sessions: Vec<_> = programs
        .iter()
        .map(|(ports, program)| {
            let states = ports.iter().map(|port| State {
                port: port.clone(),
                value: decoder.empty_cache(ROOM),
            });
            let inputs = program.inputs().iter().map(|port| port.name.clone());
            (
                inputs.collect(),
                program.open_session(states.collect()).unwrap(),
            )
        })
        .collect();
    let values = step(&mut sessions, given);
    near(
        &values[LOGITS].to_vec::<f32>().unwrap(),
        &case.logits[0],
        "in parts",
    );
}
