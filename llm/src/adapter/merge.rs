//! Adds an adapter to the weights of its model. The sum is computed in 32 bits and keeps the type
//! of the weight, as PEFT's own merge does.

use std::collections::BTreeSet;

use souk_memory::Tensor;

use super::{Adapter, AdapterError, PREFIX};
use crate::weights::{Weight, Weights, read_floats, with_floats};

/// Adds an adapter to weights.
///
/// # Errors
/// [`AdapterError::Model`] if it does not fit them; the weights may then be changed in part.
pub(crate) fn merge_into(weights: &mut Weights, adapter: &Adapter) -> Result<(), AdapterError> {
    let matrices: BTreeSet<&str> = adapter.tensors.keys().map(|it| matrix_of(it)).collect();
    for matrix in matrices {
        let name = format!("{matrix}.weight");
        let refused = |why| AdapterError::Model {
            name: name.clone(),
            why,
        };
        let missing = || refused("has only one of its two tensors");
        let [down, up] = adapter.pair_of(matrix).ok_or_else(missing)?;
        let weight = weights.get_mut(&name);
        let weight = weight.ok_or_else(|| refused("is no weight of this model"))?;
        let Weight::Floats(base) = weight else {
            return Err(refused(
                "is in blocks of few bits: give the model in f32, f16 or bf16",
            ));
        };
        let is_fit = matches!((base.dims(), down.dims(), up.dims()),
            ([outputs, inputs], [rank, from], [to, again])
                if inputs == from && outputs == to && rank == again && *rank == adapter.rank);
        if !is_fit || down.bytes().is_empty() {
            return Err(refused("has other sizes"));
        }
        let merged = add_product(base, [down, up], adapter.scale);
        *base = merged.ok_or_else(|| refused("is not in f32, f16 or bf16"))?;
    }
    Ok(())
}

/// Returns the name of the matrix that a tensor of an adapter belongs to.
fn matrix_of(tensor: &str) -> &str {
    let name = tensor.strip_prefix(PREFIX).unwrap_or(tensor);
    name.rsplit_once(".lora_")
        .map_or(name, |(matrix, _)| matrix)
}

/// Returns `base + scale · up·down`, none of which is empty; none if a type is no float.
fn add_product(base: &Tensor, [down, up]: [&Tensor; 2], scale: f32) -> Option<Tensor> {
    let (mut sums, down, up) = (read_floats(base)?, read_floats(down)?, read_floats(up)?);
    let inputs = base.dims()[1];
    let rank = down.len() / inputs;
    for (row, factors) in sums.chunks_mut(inputs).zip(up.chunks(rank)) {
        for (factor, narrow) in factors.iter().zip(down.chunks(inputs)) {
            let factor = factor * scale;
            let pairs = row.iter_mut().zip(narrow);
            pairs.for_each(|(sum, value)| *sum += factor * value);
        }
    }
    Some(with_floats(base, sums))
}
