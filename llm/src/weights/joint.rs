//! Splits the fused matrices `qkv_proj` and `gate_up_proj`, which some model families store, into
//! the separate ones that the other families store. The decoder then needs one form only, and its
//! results are the same.

use std::ops::Range;

use souk_memory::{Shape, Tensor};

use super::{Weight, WeightError, Weights};
use crate::config::Config;

/// Separates the joint matrices in the layers of a model.
///
/// # Errors
/// [`WeightError::Sizes`].
pub(crate) fn split_joint_matrices(
    weights: &mut Weights,
    config: &Config,
) -> Result<(), WeightError> {
    if !config.architecture.has_joint_matrices() {
        return Ok(());
    }
    let queries = config.heads * config.head_width;
    let keys = config.key_heads * config.head_width;
    let feed_forward = config.feed_forward;
    let attention_parts = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)];
    let feed_forward_parts = [("gate_proj", feed_forward), ("up_proj", feed_forward)];
    for layer in 0..config.layers {
        let base = format!("model.layers.{layer}");
        let block = format!("{base}.self_attn");
        split_matrix(weights, &block, "qkv_proj", &attention_parts, config.hidden)?;
        let block = format!("{base}.mlp");
        split_matrix(
            weights,
            &block,
            "gate_up_proj",
            &feed_forward_parts,
            config.hidden,
        )?;
    }
    Ok(())
}

/// Replaces a joint matrix with parts of these numbers of rows. A file without one stores the parts
/// separately.
fn split_matrix(
    weights: &mut Weights,
    base: &str,
    joint: &str,
    parts: &[(&str, usize)],
    depth: usize,
) -> Result<(), WeightError> {
    let name = format!("{base}.{joint}.weight");
    let Some(weight) = weights.remove(&name) else {
        return Ok(());
    };
    let rows: usize = parts.iter().map(|(_, rows)| rows).sum();
    if weight.dims() != [rows, depth] {
        return Err(WeightError::Sizes {
            name,
            found: weight.dims().to_vec(),
            expected: vec![rows, depth],
        });
    }
    let mut from = 0;
    for (part, rows) in parts {
        let slice = weight.slice_rows(from..from + rows);
        weights.insert(format!("{base}.{part}.weight"), slice);
        from += rows;
    }
    Ok(())
}

impl Weight {
    /// Returns some rows of a matrix.
    fn slice_rows(&self, rows: Range<usize>) -> Self {
        match self {
            Self::Floats(tensor) => Self::Floats(tensor_rows(tensor, rows)),
            Self::Blocks { integers, scales } => Self::Blocks {
                integers: tensor_rows(integers, rows.clone()),
                scales: tensor_rows(scales, rows),
            },
        }
    }
}

fn tensor_rows(tensor: &Tensor, rows: Range<usize>) -> Tensor {
    let mut dims = tensor.dims().to_vec();
    // A row of 4-bit blocks takes whole bytes, because a block has 32 integers.
    let row_bytes = tensor.bytes().len() / dims[0];
    let bytes = tensor
        .bytes()
        .slice(rows.start * row_bytes..rows.end * row_bytes);
    dims[0] = rows.len();
    let shape = Shape::new(dims).expect("it is no larger than the whole");
    Tensor::new(tensor.dtype(), shape, bytes).expect("as many bytes as the rows have")
}
