//! Infers the outputs of operators that pick elements by index.

use souk_onnx::DataType;

use super::operation::{Inference, axis_of};
use super::{Dims, Fact, Operation, ShapeFault};

pub(super) fn infer_gather(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some((data, indices)) = operation.dims_of_rank(0, 1)?.zip(operation.input_dims(1)) else {
        return Operation::single_output(elem, None);
    };
    let axis = axis_of(operation.int_or("axis", 0), data.len())?;
    let mut dims: Dims = data[..axis].to_vec();
    dims.extend(indices);
    dims.extend(&data[axis + 1..]);
    Operation::single_output(elem, Some(dims))
}

/// Infers `GatherElements`: the extents of the indices.
pub(super) fn gather_elements(operation: &Operation<'_>) -> Inference {
    Operation::single_output(operation.input_elem(0), operation.input_dims(1).cloned())
}

pub(super) fn gather_nd(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some((data, indices)) = operation
        .dims_of_rank(0, 1)?
        .zip(operation.dims_of_rank(1, 1)?)
    else {
        return Operation::single_output(elem, None);
    };
    let batch = usize::try_from(operation.int_or("batch_dims", 0)).unwrap_or(0);
    let Some(depth) = indices[indices.len() - 1] else {
        return Operation::single_output(elem, None);
    };
    let mut dims: Dims = indices[..indices.len() - 1].to_vec();
    let skipped = usize::try_from(depth)
        .unwrap_or(usize::MAX)
        .saturating_add(batch);
    match data.get(skipped..) {
        Some(rest) => dims.extend(rest),
        None => {
            return Err(ShapeFault::Rank {
                input: 0,
                expected: skipped,
                found: data.len(),
            });
        }
    }
    Operation::single_output(elem, Some(dims))
}

/// Infers `TopK`: values and indices.
pub(super) fn top_k(operation: &Operation<'_>) -> Inference {
    let count = match operation.node.int("k") {
        Some(count) => Some(count),
        None => operation
            .input_ints(1)
            .and_then(|ints| ints.first().copied()),
    };
    let dims = match operation.dims_of_rank(0, 1)? {
        None => None,
        Some(dims) => {
            let axis = axis_of(operation.int_or("axis", -1), dims.len())?;
            let mut dims = dims.clone();
            dims[axis] = count.and_then(|count| u64::try_from(count).ok());
            Some(dims)
        }
    };
    let mut facts = Operation::single_output(operation.input_elem(0), dims.clone())?;
    facts.extend(Operation::single_output(Some(DataType::Int64), dims)?);
    Ok(facts)
}

/// Infers `NonZero`: a column for each non-zero element.
pub(super) fn non_zero(operation: &Operation<'_>) -> Inference {
    let rank = operation
        .input_fact(0)
        .and_then(Fact::rank)
        .map(|rank| rank as u64);
    Operation::single_output(Some(DataType::Int64), Some(vec![rank, None]))
}

/// Infers `Compress`: the extent along the axis is the number of ones in the condition.
pub(super) fn infer_compress(operation: &Operation<'_>) -> Inference {
    let dims = match (operation.node.int("axis"), operation.input_dims(0)) {
        (None, _) => Some(vec![None]),
        (Some(_), None) => None,
        (Some(axis), Some(dims)) => {
            let axis = axis_of(axis, dims.len())?;
            let mut dims = dims.clone();
            dims[axis] = None;
            Some(dims)
        }
    };
    Operation::single_output(operation.input_elem(0), dims)
}

/// Infers `Unique`: values, and three lists of indices.
pub(super) fn infer_unique(operation: &Operation<'_>) -> Inference {
    let mut facts = infer_compress(operation)?;
    for dims in [vec![None], vec![None], vec![None]] {
        facts.push(Fact::new_tensor(Some(DataType::Int64), dims));
    }
    Ok(facts)
}

pub(super) fn one_hot(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(2);
    let Some(indices) = operation.input_dims(0) else {
        return Operation::single_output(elem, None);
    };
    let depth = operation
        .input_ints(1)
        .and_then(|ints| ints.first().copied());
    let axis = axis_of(operation.int_or("axis", -1), indices.len() + 1)?;
    let mut dims = indices.clone();
    dims.insert(axis, depth.and_then(|depth| u64::try_from(depth).ok()));
    Operation::single_output(elem, Some(dims))
}
