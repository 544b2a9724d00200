//! Converts the order of the rows of queries and keys. A rotation turns pairs of numbers of a head.
//! GGUF files of Llama store the two numbers of a pair in neighbouring rows; Hugging Face's
//! folders, and so adapters in PEFT's form, store them half a head apart.

use souk_memory::Tensor;

use super::{Weight, Weights};
use crate::config::Config;

/// Moves the rows of queries and keys from the order of GGUF to that of Hugging Face, and notes it
/// in the dimensions. The logits stay the same but for rounding.
///
/// A model stays as it is if it has that order already, if a matrix is in blocks of few bits, or if
/// the rotation turns only a part of each head.
pub(crate) fn order_queries(config: &mut Config, weights: &mut Weights) {
    let width = config.head_width;
    if !config.rotary.interleaved || config.rotary.width != width {
        return;
    }
    let mut ordered = Vec::new();
    for layer in 0..config.layers {
        for part in [
            "q_proj.weight",
            "q_proj.bias",
            "k_proj.weight",
            "k_proj.bias",
        ] {
            let name = format!("model.layers.{layer}.self_attn.{part}");
            let moved = match weights.get(&name) {
                Some(Weight::Floats(tensor)) => order_rows(tensor, width),
                Some(Weight::Blocks { .. }) => None,
                None => continue,
            };
            let Some(moved) = moved else {
                return;
            };
            ordered.push((name, Weight::Floats(moved)));
        }
    }
    weights.extend(ordered);
    config.rotary.interleaved = false;
}

/// Returns a tensor whose heads of `width` rows each have the first numbers of all pairs before the
/// second ones; none if its rows are no such heads.
fn order_rows(tensor: &Tensor, width: usize) -> Option<Tensor> {
    let rows = *tensor.dims().first()?;
    let is_fit = width >= 2 && width.is_multiple_of(2) && rows > 0 && rows.is_multiple_of(width);
    if !is_fit {
        return None;
    }
    let bytes = tensor.bytes();
    let (row_bytes, half) = (bytes.len() / rows, width / 2);
    let mut moved = Vec::with_capacity(bytes.len());
    for head in 0..rows / width {
        for place in 0..width {
            let from = head * width + 2 * (place % half) + place / half;
            moved.extend_from_slice(&bytes[from * row_bytes..][..row_bytes]);
        }
    }
    Tensor::new(tensor.dtype(), tensor.shape().clone(), moved.into()).ok()
}
