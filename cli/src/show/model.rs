//! Prints the contents of a model, or converts them to JSON: inputs, outputs, operators, weights
//! and work. `souk model` uses it.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use souk_node::scheduler::graph::{Graph, Summary, ValueId};

use super::{Table, format_bytes, format_scaled, print_line};

/// Returns the model's summary as JSON.
pub fn to_json(graph: &Graph, declared: &BTreeMap<String, String>) -> Value {
    let Summary {
        name,
        opset,
        nodes,
        dropped_nodes,
        values,
        unknown_values,
        weights,
        weight_bytes,
        flops,
        bytes_read,
        bytes_written,
        activation_bytes_peak,
        memory_bytes_peak,
        operators,
    } = graph.summary();
    let ports = |ids: &[ValueId]| {
        ids.iter()
            .map(|id| describe_port(graph, *id))
            .collect::<Vec<_>>()
    };
    json!({
        "name": name, "opset": opset, "nodes": nodes, "dropped_nodes": dropped_nodes,
        "values": values, "unknown_values": unknown_values, "weights": weights,
        "weight_bytes": weight_bytes, "flops": flops, "bytes_read": bytes_read,
        "bytes_written": bytes_written, "activation_bytes_peak": activation_bytes_peak,
        "memory_bytes_peak": memory_bytes_peak,
        "operators": operators, "declared": declared, "inputs": ports(graph.inputs()),
        "outputs": ports(graph.outputs()),
    })
}

/// Prints counts, ports and operators.
pub fn print_graph(graph: &Graph, declared: &BTreeMap<String, String>) {
    let summary = graph.summary();
    print_line(&format!(
        "{}: opset {}",
        summary.name,
        summary.opset.unwrap_or(1)
    ));
    print_line(&format!(
        "  {} nodes ({} dropped as dead or constant), {} values ({} of unknown shape)",
        summary.nodes, summary.dropped_nodes, summary.values, summary.unknown_values,
    ));
    print_line(&format!(
        "  {} weights of {}",
        summary.weights,
        format_bytes(summary.weight_bytes)
    ));
    print_line(&format!(
        "  {}, {} read, {} written",
        format_scaled(summary.flops as f64, "FLOP"),
        format_bytes(summary.bytes_read),
        format_bytes(summary.bytes_written),
    ));
    print_line(&format!(
        "  memory of a run: at most {}, {} of it activations",
        format_bytes(summary.memory_bytes_peak),
        format_bytes(summary.activation_bytes_peak),
    ));
    for (what, ids) in [("input", graph.inputs()), ("output", graph.outputs())] {
        for id in ids {
            let counted = describe_port(graph, *id);
            let said = declared.get(&graph.value(*id).name);
            let said = said.filter(|said| !counted.ends_with(said.as_str()));
            let open = said.map_or(String::new(), |said| format!(" (declared as {said})"));
            print_line(&format!("  {what} {counted}{open}"));
        }
    }
    let mut table = Table::new(&["operator", ">count"]);
    for (operator, count) in &summary.operators {
        table.add_row([operator.clone(), count.to_string()]);
    }
    table.print();
}

fn describe_port(graph: &Graph, id: ValueId) -> String {
    let value = graph.value(id);
    let dtype = value
        .dtype()
        .map_or("unknown type".to_owned(), |dtype| dtype.to_string());
    let dims = value
        .dims()
        .map_or("unknown shape".to_owned(), |dims| format!("{dims:?}"));
    format!("{}: {dtype} {dims}", value.name)
}
