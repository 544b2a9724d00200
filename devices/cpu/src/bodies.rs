//! Computes the work (operations and bytes) of the graphs inside `If`, `Loop` and `Scan` nodes,
//! called their bodies. `Cpu` adds it to the work of the node when it observes the nodes of a
//! graph.
//!
//! The reference kernels run one round of each body on values that a run of the whole graph
//! computed around it, so that every size in it is known.

use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::work::{Extent, Work, has_bodies};
use souk_reference::call::Call;
use souk_reference::{Scope, control};

/// Returns the work of a node's bodies in a run with these values, which must include all that the
/// bodies read besides weights.
pub(super) fn body_work(node: &NodeProto, graph: &Graph, values: &Scope) -> Work {
    if !has_bodies(node) {
        return Work::default();
    }
    let weights = graph.weights.iter().chain(values);
    let scope = weights.map(|(name, value)| (name.clone(), value.clone()));
    work_in_scope(node, &scope.collect(), graph.opset)
}

/// Returns the work of all runs of a node's bodies, from all values around them.
fn work_in_scope(node: &NodeProto, scope: &Scope, opset: i64) -> Work {
    let inputs = node.input.iter().map(|name| scope.get(name).cloned());
    let call = Call {
        node,
        inputs: inputs.collect(),
        scope,
        opset,
    };
    let rounds = control::first_rounds(&call);
    let bodies = rounds.iter().map(|(body, scope)| {
        let each = body.node.iter().map(|node| {
            let (given, made) = (
                value_extents(&node.input, scope),
                value_extents(&node.output, scope),
            );
            let made: Vec<Extent<'_>> = made.into_iter().flatten().collect();
            let within = match has_bodies(node) {
                true => work_in_scope(node, scope, opset),
                false => Work::default(),
            };
            Work::for_node(node, &given, &made) + within
        });
        each.sum()
    });
    let count = call
        .input(0)
        .ok()
        .and_then(|count| count.to_vec::<i64>().ok());
    let count = count.and_then(|count| count.first().copied());
    let count = count.map(|count| count.max(0).unsigned_abs());
    Work::for_bodies(
        node,
        &value_extents(&node.input, scope),
        count,
        &bodies.collect::<Vec<_>>(),
    )
}

fn value_extents<'a>(names: &[String], scope: &'a Scope) -> Vec<Option<Extent<'a>>> {
    let extent = |name: &String| {
        let value = scope.get(name)?;
        Some(Extent {
            dtype: value.dtype(),
            dims: value.dims(),
        })
    };
    names.iter().map(extent).collect()
}
