//! Prints the inferred types and extents of each model's outputs: `shapes model.onnx ...`, one line
//! for each output.

use souk_scheduler::graph::shape::format_dims;
use souk_scheduler::graph::{Bindings, Graph};

fn main() {
    for path in std::env::args().skip(1) {
        let imported = std::fs::read(&path)
            .map(|bytes| Graph::import(bytes.into(), &Bindings::with_assumed_extent(1)));
        match imported {
            Err(error) => println!("{path}\tunreadable\t{error}"),
            Ok(Err(error)) => println!("{path}\trefused\t{error}"),
            Ok(Ok(graph)) => {
                for &id in graph.outputs() {
                    let value = graph.value(id);
                    let dims = value
                        .fact
                        .dims
                        .as_deref()
                        .map_or("?".to_owned(), format_dims);
                    let elem = value.fact.elem.map_or(0, |elem| elem as i32);
                    println!("{path}\t{}\t{elem}\t{dims}", value.name);
                }
            }
        }
    }
}
