//! Infers the outputs of operators that create tensors from a shape, a range or nothing at all.

use souk_onnx::DataType;

use super::operation::Inference;
use super::{Dims, Fact, Operation, data_type, tensor_fact};

fn to_extents(ints: &[i64]) -> Dims {
    ints.iter().map(|&int| u64::try_from(int).ok()).collect()
}

/// Infers `Shape`: an integer for each dimension of the input, or for those between `start` and
/// `end`.
pub(super) fn infer_shape(operation: &Operation<'_>) -> Inference {
    let length = shape_range(operation).map(|range| range.len() as u64);
    Operation::single_output(Some(DataType::Int64), Some(vec![length]))
}

/// Returns the axes that a `Shape` node outputs.
pub(super) fn shape_range(operation: &Operation<'_>) -> Option<std::ops::Range<usize>> {
    let rank = i64::try_from(operation.input_dims(0)?.len()).ok()?;
    let place = |name: &str, default: i64| {
        let at = operation.int_or(name, default);
        let at = if at < 0 { at + rank } else { at };
        usize::try_from(at.clamp(0, rank)).unwrap_or(0)
    };
    let start = place("start", 0);
    Some(start..place("end", rank).max(start))
}

pub(super) fn infer_size(_: &Operation<'_>) -> Inference {
    Operation::single_output(Some(DataType::Int64), Some(Vec::new()))
}

/// Infers `Constant` in the forms that stay nodes.
pub(super) fn infer_constant(operation: &Operation<'_>) -> Inference {
    let fact = operation.node.tensor("value").and_then(tensor_fact);
    Ok(fact.into_iter().collect())
}

pub(super) fn constant_of_shape(operation: &Operation<'_>) -> Inference {
    let value = operation.node.tensor("value");
    let elem = value.map_or(Some(DataType::Float), |value| data_type(value.data_type()));
    Operation::single_output(elem, shape_input(operation, 0))
}

/// Returns the extents in the contents of an input; only the rank if the contents are unknown.
fn shape_input(operation: &Operation<'_>, index: usize) -> Option<Dims> {
    if let Some(ints) = operation.input_ints(index) {
        return Some(to_extents(ints));
    }
    let rank = operation.input_dims(index)?.first().copied().flatten()?;
    Some(vec![None; usize::try_from(rank).ok()?])
}

pub(super) fn infer_range(operation: &Operation<'_>) -> Inference {
    let ints = [0, 1, 2].map(|index| {
        operation
            .input_ints(index)
            .and_then(|ints| ints.first().copied())
    });
    let floats = [0, 1, 2].map(|index| {
        operation
            .input_floats(index)
            .and_then(|floats| floats.first().copied())
    });
    let count = match (ints, floats) {
        ([Some(start), Some(limit), Some(step)], _) if step != 0 => {
            let span = if step > 0 {
                limit.checked_sub(start)
            } else {
                start.checked_sub(limit)
            };
            span.map(|span| span.max(0).unsigned_abs().div_ceil(step.unsigned_abs()))
        }
        (_, [Some(start), Some(limit), Some(step)]) if step != 0.0 => {
            let steps = ((f64::from(limit) - f64::from(start)) / f64::from(step)).ceil();
            (steps.is_finite() && steps < 2f64.powi(53)).then_some(steps.max(0.0) as u64)
        }
        _ => None,
    };
    Operation::single_output(operation.input_elem(0), Some(vec![count]))
}

/// Infers random tensors whose extents are an attribute.
pub(super) fn infer_random(operation: &Operation<'_>) -> Inference {
    let dims = operation.node.ints("shape").map(to_extents);
    Operation::single_output(operation.result_elem(), dims)
}

/// Infers `Multinomial`: samples for each row.
pub(super) fn infer_multinomial(operation: &Operation<'_>) -> Inference {
    let rows = operation.dims_of_rank(0, 2)?.and_then(|dims| dims[0]);
    let samples = u64::try_from(operation.int_or("sample_size", 1)).ok();
    Operation::single_output(operation.result_elem(), Some(vec![rows, samples]))
}

/// Infers `TfIdfVectorizer`: a column for each sequence that counts.
pub(super) fn infer_ngrams(operation: &Operation<'_>) -> Inference {
    let width = Some(souk_onnx::expansion::ngrams::output_width(operation.node) as u64);
    let dims = operation.input_dims(0).map(|dims| match *dims.as_slice() {
        [rows, _] => vec![rows, width],
        _ => vec![width],
    });
    Operation::single_output(operation.result_elem(), dims)
}

/// Infers `HannWindow` and similar operators: the input contains the length.
pub(super) fn infer_window(operation: &Operation<'_>) -> Inference {
    let size = operation
        .input_ints(0)
        .and_then(|ints| ints.first().copied());
    Operation::single_output(
        operation.result_elem(),
        Some(vec![size.and_then(|size| u64::try_from(size).ok())]),
    )
}

/// Infers `AffineGrid`: a coordinate for each place of the output.
pub(super) fn affine_grid(operation: &Operation<'_>) -> Inference {
    let Some(size) = operation.input_ints(1).filter(|size| size.len() >= 3) else {
        return Operation::single_output(operation.input_elem(0), None);
    };
    let mut dims: Dims = to_extents(&size[..1]);
    dims.extend(to_extents(&size[2..]));
    dims.push(Some(size.len() as u64 - 2));
    Operation::single_output(operation.input_elem(0), Some(dims))
}

/// Infers `GridSample`: channels of the image at the places of the grid.
pub(super) fn grid_sample(operation: &Operation<'_>) -> Inference {
    let pair = operation
        .dims_of_rank(0, 3)?
        .zip(operation.dims_of_rank(1, 3)?);
    let dims = pair.map(|(image, grid)| {
        let mut dims = vec![image[0], image[1]];
        dims.extend(&grid[1..grid.len() - 1]);
        dims
    });
    Operation::single_output(operation.input_elem(0), dims)
}

/// Infers the loss operators: a scalar, or the extents of the labels; possibly the logarithms as
/// well.
pub(super) fn infer_loss(operation: &Operation<'_>) -> Inference {
    let whole = operation.node.string("reduction") == Some("none");
    let dims = if whole {
        operation.input_dims(1).cloned()
    } else {
        Some(Vec::new())
    };
    let mut facts = Operation::single_output(operation.input_elem(0), dims)?;
    facts.push(Fact {
        elem: operation.input_elem(0),
        dims: operation.input_dims(0).cloned(),
        ..Fact::default()
    });
    Ok(facts)
}
