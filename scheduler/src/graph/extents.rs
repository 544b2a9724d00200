//! Computes the types and extents of all values of a model for given inputs, without running it.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{DType, Tensor};

use super::{Bindings, Graph};

/// Returns the type and extents of each value of a model, if both follow from those of its inputs.
/// Returns `None` if the model cannot be imported for these inputs.
#[must_use]
pub fn value_extents(
    model: Bytes,
    inputs: &BTreeMap<String, Tensor>,
) -> Option<BTreeMap<String, (DType, Vec<usize>)>> {
    let bound = inputs.iter().fold(Bindings::new(), |bound, (name, input)| {
        bound.with_input(name, input.dtype(), input.dims())
    });
    let graph = Graph::import(model, &bound).ok()?;
    let extent = |value: &super::Value| {
        let dims = value.dims()?.into_iter().map(usize::try_from);
        let dims = dims.collect::<Result<_, _>>().ok()?;
        Some((value.name.clone(), (value.dtype()?, dims)))
    };
    Some(graph.values().iter().filter_map(extent).collect())
}
