//! Rewrites `Relu` and `Clip` nodes before a model goes to rten, so that rten computes the results
//! that ONNX defines.
//!
//! rten's `Relu` and `Clip` turn NaN into a bound, and a `Clip` without an upper bound cuts
//! infinity to the largest number. A `LeakyRelu` that leaks nothing passes NaN on (and makes minus
//! infinity NaN, which the caller must check for), and `Max` and `Min` treat both as ONNX does.

use souk_onnx::{AttributeProto, NodeProto};

/// Returns nodes for rten that compute the same values under the same names.
pub(super) fn rewrite_nodes(nodes: &[NodeProto]) -> Vec<NodeProto> {
    let mut rewritten = Vec::with_capacity(nodes.len());
    for node in nodes {
        match node.op_type() {
            "Relu" => rewritten.push(rewrite_relu(node)),
            "Clip" => rewrite_clip(node, &mut rewritten),
            _ => rewritten.push(node.clone()),
        }
    }
    rewritten
}

fn rewrite_relu(node: &NodeProto) -> NodeProto {
    let alpha = AttributeProto {
        name: Some("alpha".to_owned()),
        // Minus zero times a negative number is zero, not minus zero.
        f: Some(-0.0),
        r#type: Some(souk_onnx::AttributeType::Float as i32),
        ..AttributeProto::default()
    };
    NodeProto {
        op_type: Some("LeakyRelu".to_owned()),
        attribute: vec![alpha],
        ..node.clone()
    }
}

/// The larger of the input and the lower bound, then the smaller of that and the upper bound.
fn rewrite_clip(node: &NodeProto, rewritten: &mut Vec<NodeProto>) {
    let (input, output) = (node.input_name(0), node.output.first());
    let (Some(input), Some(output)) = (input, output) else {
        return rewritten.push(node.clone());
    };
    let made = |operator: &str, inputs: Vec<&str>, output: &str| NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(format!("{}_{operator}", node.name())),
        input: inputs.into_iter().map(str::to_owned).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    };
    let raised = format!("{output}_raised");
    match (node.input_name(1), node.input_name(2)) {
        (Some(low), Some(high)) => {
            rewritten.push(made("Max", vec![input, low], &raised));
            rewritten.push(made("Min", vec![&raised, high], output));
        }
        (Some(low), None) => rewritten.push(made("Max", vec![input, low], output)),
        (None, Some(high)) => rewritten.push(made("Min", vec![input, high], output)),
        (None, None) => rewritten.push(made("Identity", vec![input], output)),
    }
}
