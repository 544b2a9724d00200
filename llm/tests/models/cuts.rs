//! A decoder cut into parts that keep their states each for itself.

use std::collections::BTreeMap;

use souk_llm::decoder::LOGITS;
use souk_llm::generation;
use souk_memory::Tensor;
use souk_onnx::states::states;
use souk_onnx::subgraph::Subgraph;
use souk_scheduler::graph::{Bindings, Graph, cut};
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
    for name in ["llama", "qwen3", "gemma2", "gemma3"] {
        cut_in_two(&Case::read(name));
    }
}

fn cut_in_two(case: &Case) {
    let decoder = case.decoder();
    let tokens = case.prompt.len();
    let given = generation::inputs(&case.prompt, 0, &[tokens - 1]);
    let empty = decoder.empty_cache(ROOM);
    let caches = decoder.states.iter().map(|port| (&port.input, &empty));
    let bindings = given
        .iter()
        .chain(caches)
        .fold(Bindings::new(), |bindings, (name, tensor)| {
            bindings.input(name, tensor.dtype(), tensor.dims())
        });
    let graph = Graph::import(decoder.subgraph.model.clone(), &bindings).unwrap();
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
    let parts = cut::cut(&graph, &assignment).unwrap();
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
            let ports = states(&souk_onnx::decode(part.model.clone()).unwrap()).unwrap();
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
            (inputs.collect(), program.session(states.collect()).unwrap())
        })
        .collect();
    let values = step(&mut sessions, given);
    near(
        &values[LOGITS].to_vec::<f32>().unwrap(),
        &case.logits[0],
        "in parts",
    );
}
