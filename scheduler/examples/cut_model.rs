//! Cuts a model at random and writes the parts with their weights, so that other tools can check
//! them: `cut_model model.onnx out/ parts seed [name=extent ...]`.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use souk_memory::ContentId;
use souk_onnx::{decode_model, encode_model};
use souk_scheduler::graph::cut::{cut_graph, inline_weights, weight_bytes};
use souk_scheduler::graph::{Bindings, Graph};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, out, parts, seed, symbols @ ..] = arguments.as_slice() else {
        return Err("cut_model model.onnx out/ parts seed [name=extent ...]".into());
    };
    let mut bindings = Bindings::with_assumed_extent(1);
    for symbol in symbols {
        let (name, extent) = symbol.split_once('=').ok_or("symbols look like batch=8")?;
        bindings = bindings.with_symbol(name, extent.parse()?);
    }
    let graph = Graph::import(std::fs::read(path)?.into(), &bindings)?;
    let assignment = random_assignment(&graph, parts.parse()?, seed.parse()?);
    let store: BTreeMap<ContentId, Bytes> = weight_bytes(&graph).collect();
    std::fs::create_dir_all(out)?;
    for part in cut_graph(&graph, &assignment)? {
        let mut model = decode_model(part.model)?;
        inline_weights(&mut model, |id| store.get(id).cloned())?;
        let file = Path::new(out).join(format!("{}.onnx", part.part));
        std::fs::write(&file, encode_model(&model))?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Returns parts as stretches of a random topological order.
fn random_assignment(graph: &Graph, parts: usize, mut seed: u64) -> Vec<usize> {
    let nodes = graph.nodes().len();
    let mut random = move |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let producers = |node: usize| {
        let reads = graph.nodes()[node].input_values();
        reads
            .filter_map(|id| graph.value(id).producer())
            .map(|id| id.0)
            .collect::<Vec<_>>()
    };
    let mut done = vec![false; nodes];
    let mut assignment = vec![0; nodes];
    for place in 0..nodes {
        let ready: Vec<usize> = (0..nodes)
            .filter(|&node| !done[node] && producers(node).into_iter().all(|before| done[before]))
            .collect();
        let node = ready[random(ready.len())];
        done[node] = true;
        assignment[node] = place * parts / nodes;
    }
    assignment
}
