//! Computes the digest of a node that a device refused. The provider's asks state it, so that
//! buyers with such a node choose another device. It covers all of the node except its names.
//!
//! The process with the device computes it, which is a sandbox if there is one: no other process
//! should read a stranger's part.

use bytes::Bytes;
use souk_onnx::custom::Custom;
use souk_onnx::{self as onnx, NodeProto};
use souk_scheduler::graph::{Bindings, Graph, Node};

use super::operators;

/// Returns the digest of a node of a part. Returns none for a buyer's own kernel, because its
/// digest does not identify its computation. Also returns none if several nodes have the name,
/// because the author of the part could then make a device appear to refuse another node.
pub(crate) fn node_digest(part: Bytes, node: &str) -> Option<u64> {
    let model = onnx::decode_model(part.clone()).ok()?;
    let bodies = model.functions.iter().map(|function| &function.node);
    let bodies = bodies.chain(model.graph.iter().map(|graph| &graph.node));
    if bodies.map(|nodes| count_named(nodes, node)).sum::<usize>() != 1 {
        return None;
    }
    let mut nodes = model.graph.iter().flat_map(|graph| &graph.node);
    let refused = nodes.find(|it| goes_by(it, node))?;
    let graph = Graph::import(part, &Bindings::with_assumed_extent(1)).ok()?;
    let is_it = |it: &&Node| it.proto.output.first() == refused.output.first();
    let found = graph.nodes().iter().find(is_it)?;
    let is_kernel = Custom::from_node(&found.proto).is_some();
    let is_same = found.proto.op_type() == refused.op_type();
    (is_same && !is_kernel).then(|| operators::node_digest(&graph, found))
}

/// Counts the nodes with a name, including those in bodies.
fn count_named(nodes: &[NodeProto], name: &str) -> usize {
    let of = |node: &NodeProto| {
        let bodies = node.subgraphs().map(|body| count_named(&body.node, name));
        usize::from(goes_by(node, name)) + bodies.sum::<usize>()
    };
    nodes.iter().map(of).sum()
}

/// Returns whether a device may mean a node by this name.
fn goes_by(node: &NodeProto, name: &str) -> bool {
    node.name() == name || node.output.first().is_some_and(|output| output == name)
}

#[cfg(test)]
mod tests {
    use souk_scheduler::graph::cut;

    use super::*;

    const MODEL: &[u8] = include_bytes!("../../../../testnet/models/digits/digits.onnx");

    #[test]
    fn a_node_of_a_part_is_called_as_the_buyer_calls_it_in_the_whole() {
        let bindings = Bindings::with_assumed_extent(4);
        let graph = Graph::import(Bytes::from_static(MODEL), &bindings).unwrap();
        let half = graph.nodes().len() / 2;
        let assignment: Vec<usize> = (0..graph.nodes().len())
            .map(|node| usize::from(node >= half))
            .collect();
        let parts = cut::cut_graph(&graph, &assignment).unwrap();
        for node in graph.nodes() {
            let own = operators::node_digest(&graph, node);
            let mut seen = parts.iter().filter_map(|part| {
                let model = part.model.clone();
                node_digest(model, node.name())
            });
            assert_eq!(seen.next(), Some(own), "{}", node.name());
        }
        let kinds = operators::needed_operators(&graph).nodes.len();
        assert!(kinds > 3 && kinds <= graph.nodes().len());
    }

    #[test]
    fn a_node_that_shares_its_name_is_not_taken_for_the_one_that_is_refused() {
        let declared = |name: &str| {
            let dims = vec![onnx::Dimension::new_fixed(2)];
            onnx::ValueInfoProto::new_tensor(name, souk_memory::DType::F32.onnx_code(), Some(dims))
        };
        let seen = |first: &str, second: &str| {
            let called = |node: NodeProto, name: &str| NodeProto {
                name: Some(name.to_owned()),
                ..node
            };
            let add = called(NodeProto::for_operator("Add", &["x", "x"], "a"), first);
            let odd = called(NodeProto::for_operator("Relu", &["a"], "Add_1"), second);
            let model = onnx::ModelProto {
                opset_import: vec![onnx::OperatorSetIdProto {
                    domain: None,
                    version: Some(21),
                }],
                graph: Some(onnx::GraphProto {
                    node: vec![add, odd],
                    input: vec![declared("x")],
                    output: vec![declared("Add_1")],
                    ..onnx::GraphProto::default()
                }),
                ..onnx::ModelProto::default()
            };
            let name = if second.is_empty() { "Add_1" } else { second };
            let part = onnx::encode_model(&model);
            let graph = Graph::import(part.clone(), &Bindings::with_assumed_extent(1)).unwrap();
            let relu = graph.nodes().iter().find(|it| it.operator_name() == "Relu");
            (
                node_digest(part, name),
                operators::node_digest(&graph, relu.unwrap()),
            )
        };
        let (found, relu) = seen("one", "two");
        assert_eq!(found, Some(relu));
        assert_eq!(seen("same", "same").0, None);
        assert_eq!(seen("Add_1", "").0, None, "an output is a name, too");
        // A node without a name is given one as the graph comes in.
        let (found, relu) = seen("", "");
        assert_eq!(found, Some(relu));
    }
}
