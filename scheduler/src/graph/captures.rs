//! Finds the values that the bodies (subgraphs) of `If`, `Loop` and `Scan` read from the graph
//! around them. Such a value is an input of the node that its attributes do not list.

use std::collections::BTreeSet;

use souk_onnx::{GraphProto, NodeProto, TensorProto, ValueInfoProto};

/// Returns the names that the node's bodies read from outside, each once, in order of first use.
pub(super) fn captured_names(node: &NodeProto) -> Vec<&str> {
    let mut captured = Captures::default();
    node.subgraphs().for_each(|body| captured.add_body(body));
    captured.names
}

/// Names that bodies read from outside.
#[derive(Default)]
struct Captures<'a> {
    names: Vec<&'a str>,
    /// The same names, to find duplicates.
    seen: BTreeSet<&'a str>,
}

impl<'a> Captures<'a> {
    fn add_body(&mut self, body: &'a GraphProto) {
        let mut defined: BTreeSet<&str> = body.input.iter().map(ValueInfoProto::name).collect();
        defined.extend(body.initializer.iter().map(TensorProto::name));
        let outputs = body.node.iter().flat_map(|node| &node.output);
        defined.extend(outputs.map(String::as_str));
        for node in &body.node {
            self.add(node.input.iter().map(String::as_str), &defined);
            if node.subgraphs().next().is_some() {
                self.add(captured_names(node).into_iter(), &defined);
            }
        }
        self.add(body.output.iter().map(ValueInfoProto::name), &defined);
    }

    /// Adds the names that are not in `defined`, which holds the names that the body defines
    /// itself.
    fn add(&mut self, names: impl Iterator<Item = &'a str>, defined: &BTreeSet<&str>) {
        for name in names.filter(|name| !name.is_empty() && !defined.contains(name)) {
            if self.seen.insert(name) {
                self.names.push(name);
            }
        }
    }
}
