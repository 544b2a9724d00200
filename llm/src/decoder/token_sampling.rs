//! Extends a decoder's model so that the device that computes it also samples the next tokens, with
//! souk's operator `Sample`.
//!
//! The logits of a position are hundreds of times larger than its token, so the model returns them
//! only on request. It also feeds the sampled token to the next request, which then need not bring
//! a token.

use bytes::Bytes;
use souk_memory::DType;
use souk_onnx::custom::DOMAIN;
use souk_onnx::{
    DecodeError, Dimension, GraphProto, NodeProto, OperatorSetIdProto, ValueInfoProto,
    decode_model, encode_model, sampling, states,
};

use super::{LOGITS, TOKENS};

/// Input of the rows whose logits the decoder returns: `[logit_rows]`.
pub const LOGIT_ROWS: &str = "requested_rows";
/// Input of the numbers that control how the decoder samples the token after each row: `[numbers]`,
/// as [`Sampling::to_numbers`](crate::sampling::Sampling::to_numbers) returns them.
pub const SAMPLING: &str = "sampling";
/// Output of the tokens that the decoder samples after each row: `[1, rows]`.
pub const SAMPLED_TOKENS: &str = "sampled_tokens";

/// The logits of all rows.
const LOGITS_ALL: &str = "logits.all";

/// Converts a decoder's model to one that samples tokens. Its outputs other than states are then
/// [`SAMPLED_TOKENS`] and the requested part of [`LOGITS`].
///
/// # Errors
/// [`DecodeError`] if the bytes are no model.
pub fn to_sampling_model(model: Bytes) -> Result<Bytes, DecodeError> {
    let mut model = decode_model(model)?;
    if model.opset(DOMAIN).is_none() {
        model.opset_import.push(own_operators());
    }
    add_sample_nodes(model.graph.get_or_insert_default());
    Ok(encode_model(&model))
}

/// Returns the version of souk's own operators.
pub(super) fn own_operators() -> OperatorSetIdProto {
    OperatorSetIdProto {
        domain: Some(DOMAIN.to_owned()),
        version: Some(1),
    }
}

fn add_sample_nodes(graph: &mut GraphProto) {
    let outputs = graph.node.iter_mut().flat_map(|node| &mut node.output);
    for name in outputs.filter(|name| *name == LOGITS) {
        LOGITS_ALL.clone_into(name);
    }
    let gather = NodeProto {
        attribute: vec![super::nodes::integer_attribute("axis", 1)],
        ..name_after_output(NodeProto::for_operator(
            "Gather",
            &[LOGITS_ALL, LOGIT_ROWS],
            LOGITS,
        ))
    };
    let sample = NodeProto {
        domain: Some(DOMAIN.to_owned()),
        metadata_props: vec![states::fed_entry(0, TOKENS)],
        ..name_after_output(NodeProto::for_operator(
            sampling::OPERATOR,
            &[LOGITS_ALL, SAMPLING],
            SAMPLED_TOKENS,
        ))
    };
    graph.node.extend([gather, sample]);
    let symbol = |name: &str| vec![Dimension::new_symbol(name)];
    let port = |name: &str, dtype: DType, dims| {
        ValueInfoProto::new_tensor(name, dtype.onnx_code(), Some(dims))
    };
    graph.input.extend([
        port(LOGIT_ROWS, DType::I64, symbol("requested")),
        port(SAMPLING, DType::F64, symbol("numbers")),
    ]);
    for logits in graph.output.iter_mut().filter(|port| port.name() == LOGITS) {
        let shape = logits.tensor_type().and_then(|it| it.shape.clone());
        let mut dims = shape.map_or_else(Vec::new, |shape| shape.dim);
        if let Some(rows) = dims.get_mut(1) {
            *rows = Dimension::new_symbol("requested");
        }
        *logits = port(LOGITS, DType::F32, dims);
    }
    let rows = vec![Dimension::new_fixed(1), Dimension::new_symbol("rows")];
    graph
        .output
        .insert(0, port(SAMPLED_TOKENS, DType::I64, rows));
}

/// Gives a node the name of its output.
fn name_after_output(node: NodeProto) -> NodeProto {
    NodeProto {
        name: node.output.first().cloned(),
        ..node
    }
}
