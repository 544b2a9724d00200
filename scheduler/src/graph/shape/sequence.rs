//! Infers the outputs of recurrent networks (`RNN`, `GRU`, `LSTM`) and of signal transforms.

use super::operation::Inference;
use super::{Dims, Fact, Operation};

/// Infers `RNN`, `GRU` and `LSTM`: all steps, the last state and, for `LSTM`, the last cell.
pub(super) fn infer_recurrent(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some(input) = operation.dims_of_rank(0, 3)? else {
        return Ok(vec![
            Fact {
                elem,
                ..Fact::default()
            };
            3
        ]);
    };
    let by_weights = operation
        .input_dims(2)
        .and_then(|dims| dims.last().copied().flatten());
    let hidden = operation
        .node
        .int("hidden_size")
        .and_then(|size| u64::try_from(size).ok());
    let hidden = hidden.or(by_weights);
    let directions = match operation.node.string("direction") {
        Some("bidirectional") => Some(2),
        _ => Some(1),
    };
    let batch_first = operation.int_or("layout", 0) != 0;
    let (steps, last): (Dims, Dims) = if batch_first {
        (
            vec![input[0], input[1], directions, hidden],
            vec![input[0], directions, hidden],
        )
    } else {
        (
            vec![input[0], directions, input[1], hidden],
            vec![directions, input[1], hidden],
        )
    };
    let state = Fact::new_tensor(elem, last);
    Ok(vec![Fact::new_tensor(elem, steps), state.clone(), state])
}

/// Infers `DFT`: the last axis becomes a complex pair, or half the frequencies if one-sided.
pub(super) fn infer_dft(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some(input) = operation.dims_of_rank(0, 2)? else {
        return Operation::single_output(elem, None);
    };
    let axis = match operation.node.int("axis") {
        Some(axis) => Some(axis),
        None if operation.opset < 20 => Some(1),
        None if operation.has_input(2) => operation
            .input_ints(2)
            .and_then(|ints| ints.first().copied()),
        None => Some(-2),
    };
    let mut dims = input.clone();
    let rank = dims.len();
    dims[rank - 1] = Some(2);
    let Some(axis) = axis else {
        return Operation::single_output(elem, Some(vec![None; rank]));
    };
    let axis = super::operation::axis_of(axis, rank)?;
    if operation.has_input(1) {
        let length = operation
            .input_ints(1)
            .and_then(|ints| ints.first().copied());
        dims[axis] = length.and_then(|length| u64::try_from(length).ok());
    }
    let onesided = operation.int_or("onesided", 0) != 0;
    let inverse = operation.int_or("inverse", 0) != 0;
    if onesided && inverse {
        // The inverse returns real numbers: the extents depend on the operator set's
        // interpretation.
        return Operation::single_output(elem, None);
    }
    if onesided {
        dims[axis] = dims[axis].map(|extent| extent / 2 + 1);
    }
    Operation::single_output(elem, Some(dims))
}
