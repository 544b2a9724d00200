//! Infers the outputs of `Attention` of operator set 23: the result and the growing caches of keys
//! and values.

use super::operation::Inference;
use super::{Dims, Fact, Operation};

/// Infers the output, the present keys and values, and the product of queries and keys.
pub(super) fn infer_attention(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let (Some(query), Some(key), Some(value)) = (
        operation.input_dims(0),
        operation.input_dims(1),
        operation.input_dims(2),
    ) else {
        return Ok(vec![
            Fact {
                elem,
                ..Fact::default()
            };
            4
        ]);
    };
    let heads = |name: &str| {
        operation
            .node
            .int(name)
            .and_then(|heads| u64::try_from(heads).ok())
    };
    let query_heads = heads("q_num_heads");
    let pair_heads = heads("kv_num_heads");
    let past = match operation.has_input(4) {
        true => operation
            .input_dims(4)
            .and_then(|dims| dims.get(2).copied().flatten()),
        false => Some(0),
    };
    let (Some(q), Some(k), Some(v)) = (
        by_heads(query, query_heads),
        by_heads(key, pair_heads),
        by_heads(value, pair_heads),
    ) else {
        return Ok(vec![
            Fact {
                elem,
                ..Fact::default()
            };
            4
        ]);
    };
    let total = past.zip(k[2]).map(|(past, now)| past.saturating_add(now));
    let output: Dims = if query.len() == 3 {
        let width = q[1]
            .zip(v[3])
            .map(|(heads, size)| heads.saturating_mul(size));
        vec![q[0], q[2], width]
    } else {
        vec![q[0], q[1], q[2], v[3]]
    };
    Ok(vec![
        Fact::new_tensor(elem, output),
        Fact::new_tensor(operation.input_elem(1), vec![k[0], k[1], total, k[3]]),
        Fact::new_tensor(operation.input_elem(2), vec![v[0], v[1], total, v[3]]),
        Fact::new_tensor(elem, vec![q[0], q[1], q[2], total]),
    ])
}

/// Returns the extents [batch, heads, length, size] of a value in that form or in the form [batch,
/// length, heads x size].
fn by_heads(dims: &Dims, heads: Option<u64>) -> Option<Dims> {
    match dims.as_slice() {
        [batch, heads, length, size] => Some(vec![*batch, *heads, *length, *size]),
        [batch, length, width] => {
            let size = width
                .zip(heads)
                .and_then(|(width, heads)| width.checked_div(heads));
            Some(vec![*batch, heads, *length, size])
        }
        _ => None,
    }
}
