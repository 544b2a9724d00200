//! Rewrites the activations, normalisations and embeddings that ONNX Runtime's optimiser writes
//! into a model as standard ONNX operators, which every device has.

use souk_memory::DType;

use super::builder::ExpansionBuilder;
use crate::{AttributeProto, NodeProto};

/// Operators with the same name, inputs and attributes in the standard.
const SAME: &[&str] = &[
    "DequantizeLinear",
    "Gelu",
    "GridSample",
    "LayerNormalization",
    "QuantizeLinear",
    "Range",
    "Trilu",
    "Unique",
];

/// Expands a node; returns `None` if it is none of these operators.
pub(super) fn expand_node(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    match body.call().op_type() {
        "BiasGelu" => gelu(body, "none"),
        "FastGelu" => gelu(body, "tanh"),
        "QuickGelu" => quick_gelu(body),
        "SimplifiedLayerNormalization" => root_mean_square(body),
        "SkipLayerNormalization" => skip_normalisation(body, "LayerNormalization"),
        "SkipSimplifiedLayerNormalization" => skip_normalisation(body, "RMSNormalization"),
        "EmbedLayerNormalization" => embedding(body),
        operator if SAME.contains(&operator) => replace_with_standard(body),
        _ => None,
    }
}

/// Replaces the node with the same operator of the standard set.
fn replace_with_standard(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let node = NodeProto {
        domain: None,
        ..call.clone()
    };
    let made = body.add_many(node, call.output.len());
    for (index, value) in made.iter().enumerate() {
        body.set_output(index, value);
    }
    Some(())
}

fn gelu(body: &mut ExpansionBuilder<'_>, approximate: &str) -> Option<()> {
    let input = body.input_name(0)?;
    let sum = match body.input_name(1) {
        Some(bias) => body.add_operator("Add", &[input, bias]),
        None => input.to_owned(),
    };
    let gelu = NodeProto::for_operator("Gelu", &[&sum], "").with("approximate", approximate);
    let value = body.add(gelu);
    body.set_output(0, &value);
    Some(())
}

fn quick_gelu(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let alpha = body.call().float("alpha").unwrap_or(1.702);
    let value =
        body.add(NodeProto::for_operator("Swish", &[body.input_name(0)?], "").with("alpha", alpha));
    body.set_output(0, &value);
    Some(())
}

/// Expands a normalisation by the root mean square. Exporters write it as if it were standard.
pub(super) fn root_mean_square(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    if body.needs_output(1) {
        return None;
    }
    let call = body.call();
    let mut node = NodeProto::for_operator(
        "RMSNormalization",
        &[body.input_name(0)?, body.input_name(1)?],
        "",
    );
    let kept = |it: &&AttributeProto| matches!(it.name(), "axis" | "epsilon");
    let attributes = call.attribute.iter().filter(kept);
    node.attribute.extend(attributes.cloned());
    let value = body.add(node);
    body.set_output(0, &value);
    Some(())
}

/// Expands a normalisation of the sum of two values and a bias; returns `None` if the node must
/// also output the mean or the deviation.
fn skip_normalisation(body: &mut ExpansionBuilder<'_>, operator: &str) -> Option<()> {
    if body.needs_output(1) || body.needs_output(2) {
        return None;
    }
    let is_centred = operator == "LayerNormalization";
    let bias = body.input_name(if is_centred { 4 } else { 3 });
    let mut sum = body.add_operator("Add", &[body.input_name(0)?, body.input_name(1)?]);
    if let Some(bias) = bias {
        sum = body.add_operator("Add", &[&sum, bias]);
    }
    let mut inputs = vec![sum.as_str(), body.input_name(2)?];
    inputs.extend(body.input_name(3).filter(|_| is_centred));
    let epsilon = body.call().float("epsilon").unwrap_or(1e-12);
    let node = NodeProto::for_operator(operator, &inputs, "");
    let value = body.add(node.with("axis", -1i64).with("epsilon", epsilon));
    body.set_output(0, &value);
    body.set_output(3, &sum);
    Some(())
}

/// Expands an embedding: looks up words, positions and segments, adds them and normalises the sum.
fn embedding(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let words = body.add_operator("Gather", &[body.input_name(2)?, body.input_name(0)?]);
    let places = match body.input_name(8) {
        Some(places) => body.add_operator("Gather", &[body.input_name(3)?, places]),
        None => first_rows(body, body.input_name(3)?)?,
    };
    let mut sum = body.add_operator("Add", &[&words, &places]);
    if let (Some(segments), Some(table)) = (body.input_name(1), body.input_name(4)) {
        let segments = body.add_operator("Gather", &[table, segments]);
        sum = body.add_operator("Add", &[&sum, &segments]);
    }
    let epsilon = body.call().float("epsilon").unwrap_or(1e-12);
    let inputs = [sum.as_str(), body.input_name(5)?, body.input_name(6)?];
    let node = NodeProto::for_operator("LayerNormalization", &inputs, "");
    let value = body.add(node.with("axis", -1i64).with("epsilon", epsilon));
    body.set_output(0, &value);
    body.set_output(2, &sum);
    if body.needs_output(1) {
        let counts = match body.input_name(7) {
            Some(mask) => body.add_reduction("ReduceSum", mask, 1, 0),
            None => return None,
        };
        let counts = body.add_cast(&counts, DType::I32);
        body.set_output(1, &counts);
    }
    Some(())
}

/// Returns the first rows of a table, one for each word of a text.
fn first_rows(body: &mut ExpansionBuilder<'_>, table: &str) -> Option<String> {
    let shape = body.add_operator("Shape", &[body.input_name(0)?]);
    let [zero, one, two] = [0, 1, 2].map(|at| body.add_ints(vec![at]));
    let length = body.add_operator("Slice", &[&shape, &one, &two]);
    Some(body.add_operator("Slice", &[table, &zero, &length]))
}
