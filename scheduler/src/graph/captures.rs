//! Finds the values that the bodies of `If`, `Loop` and `Scan` read from the graph around them.

use std::collections::BTreeSet;

use souk_onnx::{GraphProto, NodeProto, TensorProto, ValueInfoProto};

/// Returns the names that the node's bodies read from outside, in order of first use.
pub(super) fn captured_names(proto: &NodeProto) -> Vec<&str> {
    let mut captured = Captures::default();
    proto.subgraphs().for_each(|body| captured.add_body(body));
    captured.names
}

/// Names that bodies read from outside.
#[derive(Default)]
struct Captures<'a> {
    names: Vec<&'a str>,
    known: BTreeSet<&'a str>,
}

impl<'a> Captures<'a> {
    fn add_body(&mut self, body: &'a GraphProto) {
        let mut own: BTreeSet<&str> = body.input.iter().map(ValueInfoProto::name).collect();
        own.extend(body.initializer.iter().map(TensorProto::name));
        let made = body.node.iter().flat_map(|node| &node.output);
        own.extend(made.map(String::as_str));
        for node in &body.node {
            self.add(node.input.iter().map(String::as_str), &own);
            if node.subgraphs().next().is_some() {
                self.add(captured_names(node).into_iter(), &own);
            }
        }
        self.add(body.output.iter().map(ValueInfoProto::name), &own);
    }

    /// Adds the names that the body does not define itself.
    fn add(&mut self, names: impl Iterator<Item = &'a str>, own: &BTreeSet<&str>) {
        for name in names.filter(|name| !name.is_empty() && !own.contains(name)) {
            if self.known.insert(name) {
                self.names.push(name);
            }
        }
    }
}
