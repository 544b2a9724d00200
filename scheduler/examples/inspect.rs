//! Prints the summary of a model: `inspect model.onnx [name=extent ...]`.

use souk_scheduler::graph::{Bindings, Graph};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("a model is needed")?;
    let mut bindings = Bindings::with_assumed_extent(1);
    for argument in arguments {
        let (name, extent) = argument
            .split_once('=')
            .ok_or("symbols look like batch=8")?;
        bindings = bindings.with_symbol(name, extent.parse()?);
    }
    let graph = Graph::import(std::fs::read(path)?.into(), &bindings)?;
    println!("{:#?}", graph.summary());
    for node in graph.nodes() {
        let shapes: Vec<_> = node
            .output_values()
            .map(|id| &graph.value(id).fact.dims)
            .collect();
        println!(
            "{} {} {shapes:?} {}",
            node.name(),
            node.operator_name(),
            node.cost.flops
        );
    }
    Ok(())
}
