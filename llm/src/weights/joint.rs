//! Separates matrices that some families store stacked.
//!
//! A decoder gives the same results with joint or separate products, and the other families use
//! separate ones.

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
    let wide = config.feed_forward;
    let looks = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)];
    let gates = [("gate_proj", wide), ("up_proj", wide)];
    for layer in 0..config.layers {
        let base = format!("model.layers.{layer}");
        let own = format!("{base}.self_attn");
        split_matrix(weights, &own, "qkv_proj", &looks, config.hidden)?;
        let own = format!("{base}.mlp");
        split_matrix(weights, &own, "gate_up_proj", &gates, config.hidden)?;
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
        let own = weight.slice_rows(from..from + rows);
        weights.insert(format!("{base}.{part}.weight"), own);
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
    let row = tensor.bytes().len() / dims[0];
    let bytes = tensor.bytes().slice(rows.start * row..rows.end * row);
    dims[0] = rows.len();
    let shape = Shape::new(dims).expect("it is no larger than the whole");
    Tensor::new(tensor.dtype(), shape, bytes).expect("as many bytes as the rows have")
}
