//! Infers operators that keep their input's extents, and those that broadcast several inputs.

use souk_onnx::DataType;

use super::operation::{Inference, broadcast_all};
use super::{Fact, Operation};

/// Infers an output with the extents of the first input.
pub(super) fn same(operation: &Operation<'_>) -> Inference {
    Operation::one(operation.result_elem(), operation.dims(0).cloned())
}

/// Infers an output with all inputs broadcast to one shape.
pub(super) fn repeated(operation: &Operation<'_>) -> Inference {
    Operation::one(operation.result_elem(), broadcast_all(operation.inputs())?)
}

/// Infers `Dropout`: the value and a mask of booleans.
pub(super) fn dropout(operation: &Operation<'_>) -> Inference {
    let dims = operation.dims(0).cloned();
    let mask = Fact {
        elem: Some(if operation.opset < 10 {
            operation.elem(0).unwrap_or(DataType::Float)
        } else {
            DataType::Bool
        }),
        dims: dims.clone(),
        ..Fact::default()
    };
    let mut facts = Operation::one(operation.elem(0), dims)?;
    facts.push(mask);
    Ok(facts)
}

/// Infers layer normalisation: the value, and mean and inverse deviation with the normalised axes
/// at 1.
pub(super) fn layer_norm(operation: &Operation<'_>) -> Inference {
    let mut facts = same(operation)?;
    let rank = operation.input(0).and_then(Fact::rank);
    let first = match rank {
        Some(rank) => Some(super::operation::axis_of(
            operation.int_or("axis", -1),
            rank,
        )?),
        None => None,
    };
    let dims = operation.dims(0).zip(first).map(|(dims, first)| {
        let places = dims.iter().enumerate();
        places
            .map(|(axis, dim)| if axis < first { *dim } else { Some(1) })
            .collect()
    });
    let statistics = Fact {
        elem: Some(DataType::Float),
        dims,
        ..Fact::default()
    };
    facts.extend([statistics.clone(), statistics]);
    Ok(facts)
}

/// Infers `BatchNormalization`: the value, and statistics for each channel.
pub(super) fn batch_norm(operation: &Operation<'_>) -> Inference {
    let mut facts = same(operation)?;
    for index in [3, 4, 3, 4] {
        facts.extend(Operation::one(
            operation.elem(index),
            operation.dims(index).cloned(),
        )?);
    }
    Ok(facts)
}

/// Infers `DynamicQuantizeLinear`: bytes, a scale and a zero point.
pub(super) fn dynamic_quantize(operation: &Operation<'_>) -> Inference {
    let mut facts = same(operation)?;
    facts.push(Fact::tensor(Some(DataType::Float), Vec::new()));
    facts.push(Fact::tensor(Some(DataType::Uint8), Vec::new()));
    Ok(facts)
}
