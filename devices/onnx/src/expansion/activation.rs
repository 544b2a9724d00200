//! Expands activations and normalisations of ONNX Runtime's optimiser.

use souk_memory::DType;

use super::body::Body;
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
pub(super) fn expand(body: &mut Body<'_>) -> Option<()> {
    match body.call().op_type() {
        "BiasGelu" => gelu(body, "none"),
        "FastGelu" => gelu(body, "tanh"),
        "QuickGelu" => quick_gelu(body),
        "SimplifiedLayerNormalization" => root_mean_square(body),
        "SkipLayerNormalization" => skip(body, "LayerNormalization"),
        "SkipSimplifiedLayerNormalization" => skip(body, "RMSNormalization"),
        "EmbedLayerNormalization" => embedding(body),
        operator if SAME.contains(&operator) => same(body),
        _ => None,
    }
}

/// Replaces the node with the same operator of the standard set.
fn same(body: &mut Body<'_>) -> Option<()> {
    let call = body.call();
    let node = NodeProto {
        domain: None,
        ..call.clone()
    };
    let made = body.add_many(node, call.output.len());
    for (index, value) in made.iter().enumerate() {
        body.give(index, value);
    }
    Some(())
}

fn gelu(body: &mut Body<'_>, approximate: &str) -> Option<()> {
    let input = body.input(0)?;
    let sum = match body.input(1) {
        Some(bias) => body.op("Add", &[input, bias]),
        None => input.to_owned(),
    };
    let gelu = NodeProto::of("Gelu", &[&sum], "").with("approximate", approximate);
    let value = body.add(gelu);
    body.give(0, &value);
    Some(())
}

fn quick_gelu(body: &mut Body<'_>) -> Option<()> {
    let alpha = body.call().float("alpha").unwrap_or(1.702);
    let value = body.add(NodeProto::of("Swish", &[body.input(0)?], "").with("alpha", alpha));
    body.give(0, &value);
    Some(())
}

/// Expands a normalisation by the root mean square. Exporters write it as if it were standard.
pub(super) fn root_mean_square(body: &mut Body<'_>) -> Option<()> {
    if body.wants(1) {
        return None;
    }
    let call = body.call();
    let mut node = NodeProto::of("RMSNormalization", &[body.input(0)?, body.input(1)?], "");
    let kept = |it: &&AttributeProto| matches!(it.name(), "axis" | "epsilon");
    let attributes = call.attribute.iter().filter(kept);
    node.attribute.extend(attributes.cloned());
    let value = body.add(node);
    body.give(0, &value);
    Some(())
}

/// Expands a normalisation of the sum of two values and a bias.
fn skip(body: &mut Body<'_>, operator: &str) -> Option<()> {
    if body.wants(1) || body.wants(2) {
        return None;
    }
    let is_centred = operator == "LayerNormalization";
    let bias = body.input(if is_centred { 4 } else { 3 });
    let mut sum = body.op("Add", &[body.input(0)?, body.input(1)?]);
    if let Some(bias) = bias {
        sum = body.op("Add", &[&sum, bias]);
    }
    let mut inputs = vec![sum.as_str(), body.input(2)?];
    inputs.extend(body.input(3).filter(|_| is_centred));
    let epsilon = body.call().float("epsilon").unwrap_or(1e-12);
    let node = NodeProto::of(operator, &inputs, "");
    let value = body.add(node.with("axis", -1i64).with("epsilon", epsilon));
    body.give(0, &value);
    body.give(3, &sum);
    Some(())
}

/// Expands an embedding: looks up words, positions and segments, adds them and normalises the sum.
fn embedding(body: &mut Body<'_>) -> Option<()> {
    let words = body.op("Gather", &[body.input(2)?, body.input(0)?]);
    let places = match body.input(8) {
        Some(places) => body.op("Gather", &[body.input(3)?, places]),
        None => first_rows(body, body.input(3)?)?,
    };
    let mut sum = body.op("Add", &[&words, &places]);
    if let (Some(segments), Some(table)) = (body.input(1), body.input(4)) {
        let segments = body.op("Gather", &[table, segments]);
        sum = body.op("Add", &[&sum, &segments]);
    }
    let epsilon = body.call().float("epsilon").unwrap_or(1e-12);
    let inputs = [sum.as_str(), body.input(5)?, body.input(6)?];
    let node = NodeProto::of("LayerNormalization", &inputs, "");
    let value = body.add(node.with("axis", -1i64).with("epsilon", epsilon));
    body.give(0, &value);
    body.give(2, &sum);
    if body.wants(1) {
        let counts = match body.input(7) {
            Some(mask) => body.reduce("ReduceSum", mask, 1, 0),
            None => return None,
        };
        let counts = body.cast(&counts, DType::I32);
        body.give(1, &counts);
    }
    Some(())
}

/// Returns the first rows of a table, one for each word of a text.
fn first_rows(body: &mut Body<'_>, table: &str) -> Option<String> {
    let shape = body.op("Shape", &[body.input(0)?]);
    let [zero, one, two] = [0, 1, 2].map(|at| body.ints(vec![at]));
    let length = body.op("Slice", &[&shape, &one, &two]);
    Some(body.op("Slice", &[table, &zero, &length]))
}
