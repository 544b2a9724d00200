//! Replaces ONNX's optional values, which can be absent, with the values that they hold, when souk
//! loads a model. A value is absent only if it comes from an `Optional` node without an input,
//! because callers must give every input of a model. So the module can decide each
//! `OptionalHasElement` before any run.

use std::collections::BTreeSet;

use souk_memory::Tensor;

use crate::{GraphProto, NodeProto, TypeProto, ValueInfoProto, tensor_to_proto, type_proto};

/// Replaces optionals of a graph, and of those within it, with the values that they hold.
pub(super) fn resolve_optionals(graph: &mut GraphProto) {
    resolve_within(graph, &BTreeSet::new());
}

fn resolve_within(graph: &mut GraphProto, around: &BTreeSet<String>) {
    let declared = graph.input.iter_mut().chain(&mut graph.output);
    declared
        .chain(&mut graph.value_info)
        .for_each(unwrap_optional);
    let mut absent = around.clone();
    let mut kept = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        for attribute in &mut node.attribute {
            let bodies = attribute.g.iter_mut().chain(&mut attribute.graphs);
            bodies.for_each(|body| resolve_within(body, &absent));
        }
        if !node.operator_domain().is_empty() {
            kept.push(node);
            continue;
        }
        let given = node.input_name(0).map(str::to_owned);
        let is_absent = given.as_ref().is_none_or(|name| absent.contains(name));
        match node.op_type() {
            "Optional" if is_absent => absent.extend(node.output),
            "Optional" | "OptionalGetElement" if !is_absent => {
                kept.push(replace_operator(node, "Identity"));
            }
            "OptionalHasElement" => {
                let truth = Tensor::from_bools(Vec::new(), &[!is_absent]);
                let truth = tensor_to_proto("", &truth.expect("a scalar has one element"));
                let mut constant = replace_operator(node, "Constant").with("value", truth);
                constant.input.clear();
                kept.push(constant);
            }
            _ => kept.push(node),
        }
    }
    graph.node = kept;
}

fn replace_operator(node: NodeProto, operator: &str) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        attribute: Vec::new(),
        ..node
    }
}

/// Declares an optional as the value that it holds.
fn unwrap_optional(value: &mut ValueInfoProto) {
    let Some(TypeProto {
        value: Some(type_proto::Value::OptionalType(inner)),
        ..
    }) = &value.r#type
    else {
        return;
    };
    value.r#type = inner.elem_type.as_deref().cloned();
}
