//! Infers the outputs of operators that keep the extents of their input or broadcast several
//! inputs, such as activations, arithmetic and normalisations.

use souk_onnx::DataType;

use super::operation::{Inference, broadcast_all};
use super::{Fact, Operation};

/// Infers an output with the extents of the first input.
pub(super) fn infer_same_shape(operation: &Operation<'_>) -> Inference {
    Operation::single_output(operation.result_elem(), operation.input_dims(0).cloned())
}

/// Infers an output with all inputs broadcast to one shape.
pub(super) fn infer_broadcast(operation: &Operation<'_>) -> Inference {
    Operation::single_output(
        operation.result_elem(),
        broadcast_all(operation.input_facts())?,
    )
}

/// Infers `Dropout`: the value and a mask of booleans.
pub(super) fn infer_dropout(operation: &Operation<'_>) -> Inference {
    let dims = operation.input_dims(0).cloned();
    let mask = Fact {
        elem: Some(if operation.opset < 10 {
            operation.input_elem(0).unwrap_or(DataType::Float)
        } else {
            DataType::Bool
        }),
        dims: dims.clone(),
        ..Fact::default()
    };
    let mut facts = Operation::single_output(operation.input_elem(0), dims)?;
    facts.push(mask);
    Ok(facts)
}

/// Infers layer normalisation: the value, and mean and inverse deviation with the normalised axes
/// at 1.
pub(super) fn layer_norm(operation: &Operation<'_>) -> Inference {
    let mut facts = infer_same_shape(operation)?;
    let rank = operation.input_fact(0).and_then(Fact::rank);
    let first = match rank {
        Some(rank) => Some(super::operation::axis_of(
            operation.int_or("axis", -1),
            rank,
        )?),
        None => None,
    };
    let dims = operation.input_dims(0).zip(first).map(|(dims, first)| {
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
    let mut facts = infer_same_shape(operation)?;
    for index in [3, 4, 3, 4] {
        facts.extend(Operation::single_output(
            operation.input_elem(index),
            operation.input_dims(index).cloned(),
        )?);
    }
    Ok(facts)
}

/// Infers `DynamicQuantizeLinear`: bytes, a scale and a zero point.
pub(super) fn dynamic_quantize(operation: &Operation<'_>) -> Inference {
    let mut facts = infer_same_shape(operation)?;
    facts.push(Fact::new_tensor(Some(DataType::Float), Vec::new()));
    facts.push(Fact::new_tensor(Some(DataType::Uint8), Vec::new()));
    Ok(facts)
}
