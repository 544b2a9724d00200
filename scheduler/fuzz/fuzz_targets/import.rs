//! Imports any bytes as an ONNX model: the result must be a graph or a refusal, never a panic, with
//! no more nodes than the limit.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use souk_scheduler::graph::{Bindings, Graph};

fuzz_target!(|bytes: &[u8]| {
    let model = Bytes::copy_from_slice(bytes);
    let _ = Graph::declared_inputs(model.clone());
    let _ = Graph::read_meanings(model.clone());
    if let Ok(graph) = Graph::import(model, &Bindings::with_assumed_extent(2)) {
        let _ = graph.summary();
        assert!(graph.nodes().len() <= 100_000);
    }
});
