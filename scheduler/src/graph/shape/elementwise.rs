//! Operators that keep their input's extents, and those that broadcast several inputs.

use souk_onnx::DataType;

use super::operation::{Inference, broadcast_all};
use super::{Fact, Operation, data_type};

/// Same type and extents as the first input.
pub(super) fn same(operation: &Operation<'_>) -> Inference {
    Operation::one(operation.elem(0), operation.dims(0).cloned())
}

/// Same extents as the first input, another type.
pub(super) fn same_shape(operation: &Operation<'_>, elem: Option<DataType>) -> Inference {
    Operation::one(elem, operation.dims(0).cloned())
}

/// `Cast`, and the generators that take their type from the attribute `dtype`.
pub(super) fn cast(operation: &Operation<'_>, attribute: &str) -> Inference {
    let stated = operation
        .node
        .int(attribute)
        .and_then(|code| i32::try_from(code).ok());
    let elem = stated.map_or(operation.elem(0), data_type);
    same_shape(operation, elem)
}

/// All inputs broadcast; the type is the first input's.
pub(super) fn arithmetic(operation: &Operation<'_>) -> Inference {
    broadcast(operation, operation.elem(0))
}

/// All inputs broadcast; booleans come out.
pub(super) fn comparison(operation: &Operation<'_>) -> Inference {
    broadcast(operation, Some(DataType::Bool))
}

/// `Where`: the type is the second input's.
pub(super) fn select(operation: &Operation<'_>) -> Inference {
    broadcast(operation, operation.elem(1))
}

fn broadcast(operation: &Operation<'_>, elem: Option<DataType>) -> Inference {
    Operation::one(elem, broadcast_all(operation.inputs())?)
}

/// `Dropout`: the value and a mask of booleans.
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

/// Layer normalisation: the value, and mean and inverse deviation with the normalised axes at 1.
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

/// `BatchNormalization`: the value, and statistics as long as the channels.
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

/// `DynamicQuantizeLinear`: bytes, a scale and a zero point.
pub(super) fn dynamic_quantize(operation: &Operation<'_>) -> Inference {
    let mut facts = same_shape(operation, Some(DataType::Uint8))?;
    facts.push(Fact::tensor(Some(DataType::Float), Vec::new()));
    facts.push(Fact::tensor(Some(DataType::Uint8), Vec::new()));
    Ok(facts)
}

/// `QuantizeLinear`: the zero point's type, or what `output_dtype` says, or unsigned bytes.
pub(super) fn quantize(operation: &Operation<'_>) -> Inference {
    let stated = operation
        .node
        .int("output_dtype")
        .and_then(|code| i32::try_from(code).ok());
    let elem = stated.and_then(data_type).or(operation.elem(2));
    let byte = (!operation.has(2)).then_some(DataType::Uint8);
    same_shape(operation, elem.or(byte))
}

/// `DequantizeLinear`: the scale's type.
pub(super) fn dequantize(operation: &Operation<'_>) -> Inference {
    let stated = operation
        .node
        .int("output_dtype")
        .and_then(|code| i32::try_from(code).ok());
    same_shape(operation, stated.and_then(data_type).or(operation.elem(1)))
}
