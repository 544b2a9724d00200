//! Stacks the matrices of a mixture model's experts, which folders store one by one, so that each
//! layer has one weight for each kind of matrix.
//!
//! A decoder takes the matrices of a layer's experts together. So files of either kind give the
//! same decoder, and a provider's memory holds as many contents as for an ordinary model.

use souk_memory::{Shape, Tensor};

use super::{Weight, WeightError, Weights};
use crate::config::{Architecture, Config};

/// Mixtral's names for the parts of an expert.
const MIXTRAL_NAMES: [(&str, &str); 3] =
    [("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")];
const QWEN_NAMES: [(&str, &str); 3] = [
    ("gate_proj", "gate_proj"),
    ("up_proj", "up_proj"),
    ("down_proj", "down_proj"),
];

/// Stacks separate matrices in the layers of a model; a file that has stacks stays as it is.
///
/// # Errors
/// [`WeightError`] if an expert's weight is missing, or unlike the others.
pub(crate) fn stack_experts(weights: &mut Weights, config: &Config) -> Result<(), WeightError> {
    let Some(experts) = config.experts else {
        return Ok(());
    };
    for layer in 0..config.layers {
        let base = format!("model.layers.{layer}");
        let own = format!("{base}.mlp");
        let (apart, names) = match config.architecture {
            Architecture::Mixtral => (format!("{base}.block_sparse_moe"), MIXTRAL_NAMES),
            _ => (own.clone(), QWEN_NAMES),
        };
        if let Some(router) = weights.remove(&format!("{apart}.gate.weight")) {
            weights.insert(format!("{own}.gate.weight"), router);
        }
        for (part, name) in names {
            let stack = format!("{own}.experts.{name}.weight");
            if !weights.contains_key(&stack) {
                let of = |expert| format!("{apart}.experts.{expert}.{part}.weight");
                let made = stack_weights(weights, (0..experts.count).map(of))?;
                weights.insert(stack, made);
            }
        }
        flat_gate(weights, &format!("{own}.shared_expert_gate.weight"));
    }
    Ok(())
}

/// Concatenates weights.
fn stack_weights(
    weights: &mut Weights,
    names: impl ExactSizeIterator<Item = String>,
) -> Result<Weight, WeightError> {
    let (mut bytes, count) = (Vec::new(), names.len());
    let mut first: Option<Tensor> = None;
    for name in names {
        let missing = || WeightError::Missing(name.clone());
        let Weight::Floats(tensor) = weights.remove(&name).ok_or_else(missing)? else {
            return Err(WeightError::Unlike { name });
        };
        let known = first.get_or_insert_with(|| tensor.clone());
        if tensor.dtype() != known.dtype() {
            return Err(WeightError::Unlike { name });
        }
        if tensor.dims() != known.dims() {
            return Err(WeightError::Sizes {
                name,
                found: tensor.dims().to_vec(),
                expected: known.dims().to_vec(),
            });
        }
        bytes.extend_from_slice(tensor.bytes());
    }
    let first = first.expect("there is one expert at least");
    let dims = [&[count], first.dims()].concat();
    let shape = Shape::new(dims).expect("files hold as many elements");
    let stack = Tensor::new(first.dtype(), shape, bytes.into());
    Ok(Weight::Floats(
        stack.expect("as many bytes as its parts have"),
    ))
}

/// Reshapes a gate of one row, which some files store as a vector.
fn flat_gate(weights: &mut Weights, name: &str) {
    if let Some(Weight::Floats(tensor)) = weights.get_mut(name)
        && let &[width] = tensor.dims()
        && let Ok(row) = tensor.to_shape([1, width])
    {
        *tensor = row;
    }
}
