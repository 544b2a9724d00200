//! Rewrites ONNX's tree ensembles (`TreeEnsembleRegressor`, `TreeEnsembleClassifier` and
//! `TreeEnsemble`: random forests and boosted trees). One node, for which engines have a kernel,
//! sums the trees' outputs; standard operators then add the base values, transform the sums and
//! choose the labels.

use std::collections::BTreeSet;

use super::builder::ExpansionBuilder;
use super::scores::{
    Scores, apply_node_transform, apply_transform, class_labels, output_best_class,
    output_binary_class,
};
use crate::{AttributeProto, NodeProto, tensor_from_proto};

/// The transforms, at their numbers of version 5.
const TRANSFORMS: [&str; 5] = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"];

/// Adds a node that computes only the sums of each row: a `TreeEnsembleRegressor` with neither a
/// base nor a transform, and one target per class. `kind` is the prefix of the leaf attributes.
fn add_row_sums(body: &mut ExpansionBuilder<'_>, kind: &str, targets: i64) -> Option<String> {
    let call = body.call();
    let mut node =
        NodeProto::for_classical_operator("TreeEnsembleRegressor", &[body.input_name(0)?], "")
            .with("n_targets", targets);
    for attribute in &call.attribute {
        let name = attribute.name();
        let renamed = match name.strip_prefix(kind) {
            Some(rest) => format!("target{rest}"),
            None if name.starts_with("nodes_") || name == "aggregate_function" => name.to_owned(),
            None => continue,
        };
        node.attribute.push(AttributeProto {
            name: Some(renamed),
            ..attribute.clone()
        });
    }
    if targets == 1 {
        let ids = node.attribute.iter_mut();
        let ids = ids.filter(|attribute| attribute.name() == "target_ids");
        ids.for_each(|attribute| attribute.ints.fill(0));
    }
    Some(body.add(node))
}

/// Returns the base values, which are added to the sums; empty if there are none.
fn base_values(node: &NodeProto) -> Vec<f32> {
    float_list(node, "base_values")
}

/// Returns a list of floats from the attribute `name`, or from the tensor attribute with a suffix.
fn float_list(node: &NodeProto, name: &str) -> Vec<f32> {
    if let Some(floats) = node.floats(name).filter(|it| !it.is_empty()) {
        return floats.to_vec();
    }
    let tensor = node.tensor(&format!("{name}_as_tensor"));
    let tensor = tensor.and_then(|tensor| tensor_from_proto(tensor).ok());
    let doubles = tensor.and_then(|tensor| tensor.to_f64s().ok());
    let doubles = doubles.unwrap_or_default().into_iter();
    doubles.map(|value| value as f32).collect()
}

fn add_base(body: &mut ExpansionBuilder<'_>, sums: String, base: Vec<f32>) -> Option<String> {
    if base.iter().all(|value| *value == 0.0) {
        return Some(sums);
    }
    let base = body.add_floats(&[base.len()], base)?;
    Some(body.add_operator("Add", &[&sums, &base]))
}

pub(super) fn regressor(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let targets = call.int("n_targets").unwrap_or(1);
    let base = base_values(call);
    let transform = call.string("post_transform").unwrap_or("NONE");
    if base.is_empty() && transform == "NONE" {
        return None;
    }
    let sums = add_row_sums(body, "target", targets)?;
    let sums = add_base(body, sums, base)?;
    // For a single target, ONNX Runtime applies only the probit transform.
    let scores = match (targets, transform) {
        (1, "NONE" | "LOGISTIC" | "SOFTMAX" | "SOFTMAX_ZERO") => sums,
        _ => apply_node_transform(body, &sums, Scores::Many)?,
    };
    body.set_output(0, &scores);
    Some(())
}

pub(super) fn classifier(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let ids: BTreeSet<i64> = call.ints("class_ids")?.iter().copied().collect();
    let base = base_values(call);
    let classes = class_labels(body, "classlabels_int64s")?;
    let last = *ids.last()?;
    if classes.len() == 2 {
        return match (last, ids.len(), base.len()) {
            (0, 1, 0 | 1) => one_of_two(body, &classes, base),
            (1, _, 0) => both_of_two(body, &classes, ids.len() == 1),
            _ => None,
        };
    }
    let count = i64::try_from(classes.len()).ok()?;
    if count < 2 || last >= count {
        return None;
    }
    let sums = add_row_sums(body, "class", count)?;
    let sums = add_base(body, sums, base)?;
    output_best_class(body, &sums, &classes);
    let scores = apply_node_transform(body, &sums, Scores::Many)?;
    body.set_output(1, &scores);
    Some(())
}

/// Expands a classifier of two classes whose leaves name one: their sum is the score of the second.
fn one_of_two(body: &mut ExpansionBuilder<'_>, classes: &[i64], base: Vec<f32>) -> Option<()> {
    let weights = float_list(body.call(), "class_weights");
    let is_positive = weights.iter().all(|weight| *weight >= 0.0);
    let sums = add_row_sums(body, "class", 1)?;
    let sums = add_base(body, sums, base)?;
    let (bound, kind) = match is_positive {
        true => (0.5, Scores::One),
        false => (0.0, Scores::Signed),
    };
    let bound = body.add_float(bound);
    let above = body.add_operator("Greater", &[&sums, &bound]);
    output_binary_class(body, &above, classes);
    let scores = apply_node_transform(body, &sums, kind)?;
    body.set_output(1, &scores);
    Some(())
}

/// Expands a classifier of two classes whose leaves name both, or only the second: the score of the
/// second decides, by ONNX Runtime's bounds.
fn both_of_two(body: &mut ExpansionBuilder<'_>, classes: &[i64], second_alone: bool) -> Option<()> {
    let weights = float_list(body.call(), "class_weights");
    let is_positive = weights.iter().all(|weight| *weight >= 0.0);
    let sums = add_row_sums(body, "class", 2)?;
    let one = body.add_int(1);
    let gather = NodeProto::for_operator("Gather", &[&sums, &one], "").with("axis", 1i64);
    let second = body.add(gather);
    let bound = body.add_float(if second_alone && is_positive {
        0.5
    } else {
        0.0
    });
    let above = body.add_operator("Greater", &[&second, &bound]);
    output_binary_class(body, &above, classes);
    let scores = apply_node_transform(body, &sums, Scores::Many)?;
    body.set_output(1, &scores);
    Some(())
}

/// Expands version 5, where transforms are numbers and there is no base.
pub(super) fn of_version_5(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let number = usize::try_from(call.int("post_transform").unwrap_or(0)).ok()?;
    if number == 0 {
        return None;
    }
    let mut node = NodeProto::for_classical_operator("TreeEnsemble", &[body.input_name(0)?], "");
    let others = call.attribute.iter();
    let others = others.filter(|attribute| attribute.name() != "post_transform");
    node.attribute.extend(others.cloned());
    let sums = body.add(node);
    let scores = apply_transform(body, &sums, TRANSFORMS.get(number)?)?;
    body.set_output(0, &scores);
    Some(())
}
