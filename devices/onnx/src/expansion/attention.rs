//! Rewrites the operators for attention and rotary embeddings that ONNX Runtime's optimiser and
//! exporters write as the standard `Attention` and `RotaryEmbedding`. The standard operators take
//! tensors with the heads in the last axis (three dimensions) or in an axis of their own (four).

use souk_memory::DType;

use super::builder::ExpansionBuilder;
use crate::NodeProto;

/// Expands a node; returns `None` if it is another operator, or has an unsupported form.
pub(super) fn expand_node(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    match body.call().op_type() {
        "Attention" => expand_attention(body),
        "QAttention" => expand_quantized_attention(body),
        "MultiHeadAttention" => expand_multi_head(body),
        "GroupQueryAttention" => expand_group_query(body),
        "RotaryEmbedding" => expand_rotary_embedding(body),
        _ => None,
    }
}

/// The inputs of the standard `Attention`; empty names are absent.
#[derive(Default)]
struct AttentionInputs {
    query: String,
    key: String,
    value: String,
    mask: String,
    past_key: String,
    past_value: String,
}

/// Adds the standard operator; returns its output, present keys and present values.
fn add_attention(
    body: &mut ExpansionBuilder<'_>,
    parts: &AttentionInputs,
    heads: [i64; 2],
    causal: i64,
) -> Vec<String> {
    let inputs = [
        &parts.query,
        &parts.key,
        &parts.value,
        &parts.mask,
        &parts.past_key,
        &parts.past_value,
    ];
    let used = inputs
        .iter()
        .rposition(|name| !name.is_empty())
        .unwrap_or(0);
    let inputs: Vec<&str> = inputs.iter().map(|name| name.as_str()).collect();
    let mut node = NodeProto::for_operator("Attention", &inputs[..=used], "")
        .with("q_num_heads", heads[0])
        .with("kv_num_heads", heads[1]);
    if causal != 0 {
        node = node.with("is_causal", 1i64);
    }
    let scale = body.call().float("scale").filter(|scale| *scale != 0.0);
    if let Some(scale) = scale {
        node = node.with("scale", scale);
    }
    let softcap = body.call().float("softcap").filter(|cap| *cap > 0.0);
    if let Some(softcap) = softcap {
        node = node.with("softcap", softcap);
    }
    body.add_many(node, 3)
}

/// Converts a mask with an entry for each token into booleans that broadcast over all heads, and
/// over the queries if the mask does not distinguish them.
fn mask_from_tokens(body: &mut ExpansionBuilder<'_>, index: usize) -> Option<String> {
    let mask = body.input_name(index)?;
    let truths = body.add_cast(mask, DType::Bool);
    Some(match body.rank(mask)? {
        2 => {
            let by_query = body.add_unsqueeze(&truths, 1);
            body.add_unsqueeze(&by_query, 1)
        }
        3 => body.add_unsqueeze(&truths, 1),
        4 => truths,
        _ => return None,
    })
}

/// Makes a mask from the number of tokens of each sequence, which is input `index`. Input `keys`
/// has the positions that the mask distinguishes. `None` for the forms with several numbers for
/// each sequence; if the sizes are open, the node that they become fails when it runs.
fn mask_from_lengths(body: &mut ExpansionBuilder<'_>, index: usize, keys: usize) -> Option<String> {
    let known = |index: usize| *body.open_dims(index)?.first()?;
    if let (Some(lengths), Some(batch)) = (known(index), known(keys))
        && lengths != batch
    {
        return None;
    }
    let lengths = body.input_name(index)?;
    let shape = body.add_operator("Shape", &[body.input_name(keys)?]);
    let [zero, one] = [0, 1].map(|at| body.add_int(at));
    let tokens = body.add_operator("Gather", &[&shape, &one]);
    let positions = body.add_operator("Range", &[&zero, &tokens, &one]);
    let [first, second] = [0, 1].map(|at| body.add_ints(vec![at]));
    let batch = body.add_operator("Slice", &[&shape, &first, &second]);
    let ones = body.add_ints(vec![1; 3]);
    let sizes = NodeProto::for_operator("Concat", &[&batch, &ones], "").with("axis", 0i64);
    let sizes = body.add(sizes);
    let lengths = body.add_cast(lengths, DType::I64);
    let lengths = body.add_operator("Reshape", &[&lengths, &sizes]);
    Some(body.add_operator("Less", &[&positions, &lengths]))
}

/// Input indices of a node that computes queries, keys and values with one product.
struct InputIndices {
    mask: usize,
    past: usize,
    /// Input that is added to the scores.
    bias: Option<usize>,
}

/// Expands `Attention` of ONNX Runtime, in floats.
fn expand_attention(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    if body.input_name(6).is_some() {
        return None;
    }
    let product = body.add_operator("MatMul", &[body.input_name(0)?, body.input_name(1)?]);
    let indices = InputIndices {
        mask: 3,
        past: 4,
        bias: Some(5),
    };
    expand_packed(body, product, &indices)
}

/// Expands `QAttention`, the integer form: dequantises its inputs, and computes in floats.
fn expand_quantized_attention(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let mut value = vec![body.input_name(0)?, body.input_name(3)?];
    value.extend(body.input_name(6));
    let mut weights = vec![body.input_name(1)?, body.input_name(4)?];
    weights.extend(body.input_name(7));
    let mut weights = NodeProto::for_operator("DequantizeLinear", &weights, "");
    match body.input_dims(4)?.as_slice() {
        [] | [1] => {}
        // One scale per column.
        _ if body.opset() >= 13 => weights = weights.with("axis", 1i64),
        _ => return None,
    }
    let value = body.add_operator("DequantizeLinear", &value);
    let weights = body.add(weights);
    let product = body.add_operator("MatMul", &[&value, &weights]);
    let indices = InputIndices {
        mask: 5,
        past: 8,
        bias: None,
    };
    expand_packed(body, product, &indices)
}

/// Expands attention whose queries, keys and values come from one product.
fn expand_packed(
    body: &mut ExpansionBuilder<'_>,
    mut product: String,
    indices: &InputIndices,
) -> Option<()> {
    let call = body.call();
    let (heads, past) = (call.int("num_heads")?, body.input_name(indices.past));
    let is_set = |name: &str| call.int(name).unwrap_or(0) != 0;
    if is_set("do_rotary") || is_set("past_present_share_buffer") {
        return None;
    }
    if let Some(bias) = body.input_name(2) {
        product = body.add_operator("Add", &[&product, bias]);
    }
    let sizes = match call.ints("qkv_hidden_sizes").filter(|it| it.len() == 3) {
        Some(sizes) => sizes.to_vec(),
        None => vec![body.input_dims(1)?.get(1)? / 3; 3],
    };
    let mut packed = body.split_last_axis(&product, &sizes).into_iter();
    let mut parts = AttentionInputs {
        query: packed.next()?,
        key: packed.next()?,
        value: packed.next()?,
        ..AttentionInputs::default()
    };
    if let Some(mask) = body.input_name(indices.mask) {
        parts.mask = match body.rank(mask)? {
            1 if past.is_none() => mask_from_lengths(body, indices.mask, 0)?,
            _ => mask_from_tokens(body, indices.mask)?,
        };
    }
    if let Some(bias) = indices.bias.and_then(|at| body.input_name(at)) {
        parts.mask = combine_mask(body, &parts.mask, bias);
    }
    if let Some(past) = past {
        let [zero, one] = [0, 1].map(|at| body.add_int(at));
        parts.past_key = body.add_operator("Gather", &[past, &zero]);
        parts.past_value = body.add_operator("Gather", &[past, &one]);
    }
    let causal = call.int("unidirectional").unwrap_or(0);
    let made = add_attention(body, &parts, [heads, heads], causal);
    body.set_output(0, &made[0]);
    if body.needs_output(1) {
        let [key, value] = [&made[1], &made[2]].map(|part| body.add_unsqueeze(part, 0));
        let both = NodeProto::for_operator("Concat", &[&key, &value], "").with("axis", 0i64);
        let present = body.add(both);
        body.set_output(1, &present);
    }
    Some(())
}

/// Combines a mask with a bias for the scores: the lowest float where the mask excludes a position.
fn combine_mask(body: &mut ExpansionBuilder<'_>, mask: &str, bias: &str) -> String {
    if mask.is_empty() {
        return bias.to_owned();
    }
    let least = body.add_float(f32::MIN);
    let least = body.add_operator("CastLike", &[&least, bias]);
    body.add_operator("Where", &[mask, bias, &least])
}

/// Expands `MultiHeadAttention`, whose queries, keys and values are inputs of their own.
fn expand_multi_head(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let heads = call.int("num_heads")?;
    let later = (8..call.input.len()).any(|index| body.input_name(index).is_some());
    if later || body.needs_output(3) {
        return None;
    }
    let mut parts = AttentionInputs {
        query: body.input_name(0)?.to_owned(),
        key: body.input_name(1)?.to_owned(),
        value: body.input_name(2)?.to_owned(),
        past_key: body.input_name(6).unwrap_or_default().to_owned(),
        past_value: body.input_name(7).unwrap_or_default().to_owned(),
        ..AttentionInputs::default()
    };
    // Keys that an earlier node projected have four dimensions, and then the queries need four too.
    if body.rank(body.input_name(0)?)? != 3 || body.rank(body.input_name(1)?)? != 3 {
        return None;
    }
    if let Some(bias) = body.input_name(3) {
        let width = body.input_dims(3)?.first()? / 3;
        let biases = body.split_last_axis(bias, &[width; 3]);
        let own = [&mut parts.query, &mut parts.key, &mut parts.value];
        for (part, bias) in own.into_iter().zip(&biases) {
            *part = body.add_operator("Add", &[part, bias]);
        }
    }
    if let Some(mask) = body.input_name(4) {
        parts.mask = match body.rank(mask)? {
            1 if body.input_name(6).is_none() => mask_from_lengths(body, 4, 1)?,
            _ => mask_from_tokens(body, 4)?,
        };
    }
    if let Some(bias) = body.input_name(5) {
        parts.mask = combine_mask(body, &parts.mask, bias);
    }
    let causal = call.int("unidirectional").unwrap_or(0);
    let made = add_attention(body, &parts, [heads, heads], causal);
    made.iter()
        .enumerate()
        .for_each(|(index, value)| body.set_output(index, value));
    Some(())
}

/// Expands `GroupQueryAttention`, whose query heads share keys and values in groups. Sequences of
/// a batch must have the same length.
fn expand_group_query(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let heads = [call.int("num_heads")?, call.int("kv_num_heads")?];
    let is_set = |name: &str| call.int(name).unwrap_or(0) != 0;
    let window = call.int("local_window_size").unwrap_or(-1);
    let later = (9..call.input.len()).any(|index| body.input_name(index).is_some());
    if window >= 0 || is_set("smooth_softmax") || later || body.needs_output(3) {
        return None;
    }
    let mut parts = AttentionInputs {
        query: body.input_name(0)?.to_owned(),
        past_key: body.input_name(3).unwrap_or_default().to_owned(),
        past_value: body.input_name(4).unwrap_or_default().to_owned(),
        ..AttentionInputs::default()
    };
    match (body.input_name(1), body.input_name(2)) {
        (Some(key), Some(value)) => {
            parts.key = key.to_owned();
            parts.value = value.to_owned();
        }
        _ => {
            let sizes = packed_sizes(body.input_width(0)?, heads)?;
            let mut packed = body.split_last_axis(&parts.query, &sizes).into_iter();
            parts.query = packed.next()?;
            parts.key = packed.next()?;
            parts.value = packed.next()?;
        }
    }
    if is_set("do_rotary") {
        let positions = token_positions(body)?;
        parts.query = rotate_heads(body, &parts.query, heads[0], &positions)?;
        parts.key = rotate_heads(body, &parts.key, heads[1], &positions)?;
    }
    let made = add_attention(body, &parts, heads, 1);
    made.iter()
        .enumerate()
        .for_each(|(index, value)| body.set_output(index, value));
    Some(())
}

/// Returns the widths of the queries, keys and values that a packed input of this width holds, with
/// these numbers of heads for the queries and for the others.
fn packed_sizes(width: i64, heads: [i64; 2]) -> Option<[i64; 3]> {
    let [query, own] = heads;
    if query <= 0 || own <= 0 {
        return None;
    }
    let all = own.checked_mul(2)?.checked_add(query)?;
    let each = Some(width / all).filter(|each| *each > 0)?;
    Some([query * each, own * each, own * each])
}

/// Returns the positions of the first input's tokens, which follow the past ones.
fn token_positions(body: &mut ExpansionBuilder<'_>) -> Option<String> {
    let shape = body.add_operator("Shape", &[body.input_name(0)?]);
    let [zero, one, two] = [0, 1, 2].map(|at| body.add_int(at));
    let tokens = body.add_operator("Gather", &[&shape, &one]);
    let start = match body.input_name(3) {
        Some(past) => {
            let shape = body.add_operator("Shape", &[past]);
            body.add_operator("Gather", &[&shape, &two])
        }
        None => zero,
    };
    let end = body.add_operator("Add", &[&start, &tokens]);
    let positions = body.add_operator("Range", &[&start, &end, &one]);
    let positions = body.add_unsqueeze(&positions, 0);
    let [first, second] = [0, 1].map(|at| body.add_ints(vec![at]));
    let batch = body.add_operator("Slice", &[&shape, &first, &second]);
    let once = body.add_ints(vec![1]);
    let sizes = NodeProto::for_operator("Concat", &[&batch, &once], "").with("axis", 0i64);
    let sizes = body.add(sizes);
    Some(body.add_operator("Expand", &[&positions, &sizes]))
}

/// Rotates heads by the angles of their positions.
fn rotate_heads(
    body: &mut ExpansionBuilder<'_>,
    value: &str,
    heads: i64,
    positions: &str,
) -> Option<String> {
    let inputs = [value, body.input_name(7)?, body.input_name(8)?, positions];
    let interleaved = body.call().int("rotary_interleaved").unwrap_or(0);
    let mut node = NodeProto::for_operator("RotaryEmbedding", &inputs, "")
        .with("num_heads", heads)
        .with("interleaved", interleaved);
    // The tables have a column for each pair of elements that turn: all of a head, or its
    // beginning.
    if let Some(columns) = body.input_width(7) {
        node = node.with("rotary_embedding_dim", columns.checked_mul(2)?);
    }
    Some(body.add(node))
}

/// Expands a rotary embedding: reorders its inputs; positions must be one per token.
fn expand_rotary_embedding(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let (value, positions) = (body.input_name(0)?, body.input_name(1)?);
    let heads = call.int("num_heads").unwrap_or(0);
    let is_scaled = call.float("scale").is_some_and(|scale| scale != 1.0);
    let is_known = body.rank(positions) == Some(2) && (heads > 0 || body.rank(value) == Some(4));
    let is_packed = call.int("is_packed_batching").unwrap_or(0) != 0;
    if is_scaled || is_packed || !is_known {
        return None;
    }
    let inputs = [value, body.input_name(2)?, body.input_name(3)?, positions];
    let mut node = NodeProto::for_operator("RotaryEmbedding", &inputs, "");
    for name in ["interleaved", "num_heads", "rotary_embedding_dim"] {
        if let Some(value) = call.int(name) {
            node = node.with(name, value);
        }
    }
    let value = body.add(node);
    body.set_output(0, &value);
    Some(())
}
