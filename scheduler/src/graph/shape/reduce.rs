//! Infers the outputs of reductions over axes, such as sums and means.

use souk_onnx::DataType;

use super::operation::{Inference, axis_of};
use super::{Dims, Operation};

/// Infers `ReduceSum` and similar operators: the axes are an attribute, an input, or all.
pub(super) fn infer_reduce(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some(dims) = operation.input_dims(0) else {
        return Operation::single_output(elem, None);
    };
    let keep = operation.int_or("keepdims", 1) != 0;
    let Some(axes) = operation.ints_or_input("axes", 1) else {
        return Operation::single_output(elem, keep.then(|| vec![None; dims.len()]));
    };
    let none = axes.as_ref().is_none_or(Vec::is_empty);
    if none && operation.int_or("noop_with_empty_axes", 0) != 0 {
        return Operation::single_output(elem, Some(dims.clone()));
    }
    let mut reduced = vec![none; dims.len()];
    for axis in axes.unwrap_or_default() {
        reduced[axis_of(axis, dims.len())?] = true;
    }
    Operation::single_output(elem, Some(reduce_dims(dims, &reduced, keep)))
}

/// Infers `ArgMax` and `ArgMin`: indices along one axis.
pub(super) fn infer_arg(operation: &Operation<'_>) -> Inference {
    let elem = Some(DataType::Int64);
    let Some(dims) = operation.input_dims(0) else {
        return Operation::single_output(elem, None);
    };
    let mut reduced = vec![false; dims.len()];
    reduced[axis_of(operation.int_or("axis", 0), dims.len())?] = true;
    let keep = operation.int_or("keepdims", 1) != 0;
    Operation::single_output(elem, Some(reduce_dims(dims, &reduced, keep)))
}

fn reduce_dims(dims: &Dims, reduced: &[bool], keep: bool) -> Dims {
    let places = dims.iter().zip(reduced);
    let kept = places.filter_map(|(dim, &reduced)| match (reduced, keep) {
        (false, _) => Some(*dim),
        (true, true) => Some(Some(1)),
        (true, false) => None,
    });
    kept.collect()
}
