//! Rewrites nodes of an older version of the standard operator set as nodes of a newer one, so that
//! the import can inline functions whose version is not their model's.

use souk_onnx::{GraphProto, NodeProto};
use souk_onnx::{TensorProto, tensor_to_proto};

use souk_memory::Tensor;

/// Lists of integers that became an input: operator, first version with the input, attribute, index
/// of the input.
const MOVED: &[(&str, i64, &str, usize)] = &[
    ("ReduceL1", 18, "axes", 1),
    ("ReduceL2", 18, "axes", 1),
    ("ReduceLogSum", 18, "axes", 1),
    ("ReduceLogSumExp", 18, "axes", 1),
    ("ReduceMax", 18, "axes", 1),
    ("ReduceMean", 18, "axes", 1),
    ("ReduceMin", 18, "axes", 1),
    ("ReduceProd", 18, "axes", 1),
    ("ReduceSum", 13, "axes", 1),
    ("ReduceSumSquare", 18, "axes", 1),
    ("Split", 13, "split", 1),
    ("Squeeze", 13, "axes", 1),
    ("Unsqueeze", 13, "axes", 1),
];

/// Operators whose meaning or form has changed, with the version of the change.
const CHANGED: &[(&str, i64)] = &[
    ("BatchNormalization", 14),
    ("Clip", 11),
    ("DFT", 20),
    ("Dropout", 12),
    ("GridSample", 20),
    ("GroupNormalization", 21),
    ("Hardmax", 13),
    ("LogSoftmax", 13),
    ("Pad", 11),
    ("Resize", 11),
    ("Scan", 9),
    ("Slice", 10),
    ("Softmax", 13),
    ("TopK", 10),
    ("TopK", 11),
    ("Upsample", 9),
    ("Upsample", 10),
];

/// Rewrites nodes of version `from` of the standard operator set as nodes of version `to`.
///
/// # Errors
/// The first operator that no rule here can upgrade. `nodes` is then incomplete and must not be
/// used.
pub(super) fn upgrade_nodes(nodes: &mut Vec<NodeProto>, from: i64, to: i64) -> Result<(), String> {
    if from >= to {
        return Ok(());
    }
    let mut written = Vec::with_capacity(nodes.len());
    for mut node in std::mem::take(nodes) {
        for attribute in &mut node.attribute {
            let bodies = attribute.g.iter_mut().chain(&mut attribute.graphs);
            for GraphProto { node, .. } in bodies {
                upgrade_nodes(node, from, to)?;
            }
        }
        if node.operator_domain().is_empty() {
            upgrade_node(node, from, to, &mut written)?;
        } else {
            written.push(node);
        }
    }
    *nodes = written;
    Ok(())
}

fn upgrade_node(
    mut node: NodeProto,
    from: i64,
    to: i64,
    written: &mut Vec<NodeProto>,
) -> Result<(), String> {
    let operator = node.op_type().to_owned();
    let is_between = |version: i64| from < version && version <= to;
    let mut changes = CHANGED.iter().filter(|(name, _)| *name == operator);
    if changes.any(|(_, version)| is_between(*version)) {
        return Err(operator);
    }
    let mut moves = MOVED.iter().filter(|(name, ..)| *name == operator);
    let moved = moves.find(|(_, version, ..)| is_between(*version));
    if let Some((_, _, attribute, place)) = moved
        && let Some(list) = node.ints(attribute).filter(|list| !list.is_empty())
    {
        let made = node.output.iter().find(|name| !name.is_empty());
        let name = format!("{}/{attribute}", made.map_or("", String::as_str));
        let constant = NodeProto::for_operator("Constant", &[], &name);
        written.push(constant.with("value", integer_tensor(list)));
        node.attribute.retain(|it| it.name() != *attribute);
        node.input.resize(*place, String::new());
        node.input.push(name);
    }
    written.push(node);
    Ok(())
}

fn integer_tensor(list: &[i64]) -> TensorProto {
    let tensor = Tensor::from_vec([list.len()], list.to_vec());
    tensor_to_proto("", &tensor.expect("as many numbers as it says"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_become_an_input_and_what_changed_its_meaning_is_named() {
        let squeeze = NodeProto::for_operator("Squeeze", &["x"], "y").with("axes", vec![1i64]);
        let mut written = vec![squeeze.clone()];
        upgrade_nodes(&mut written, 11, 17).unwrap();
        assert_eq!(written[0].op_type(), "Constant");
        assert_eq!(written[1].input, ["x", "y/axes"]);
        assert!(written[1].attribute.is_empty());

        let mut same = vec![squeeze.clone()];
        upgrade_nodes(&mut same, 13, 17).unwrap();
        assert_eq!(same, [squeeze]);

        let mut softmax = vec![NodeProto::for_operator("Softmax", &["x"], "y")];
        assert_eq!(
            upgrade_nodes(&mut softmax.clone(), 11, 17),
            Err("Softmax".into())
        );
        assert_eq!(upgrade_nodes(&mut softmax, 13, 17), Ok(()));
    }
}
