//! Records the kernels of `ScatterElements`, `ScatterND` and `TensorScatter`: a copy of an input in
//! which updates replace elements or are combined with them. A session uses `TensorScatter` to
//! write its caches, which it overwrites in place.
//!
//! An update is a run of `run_length` consecutive elements (1 for `ScatterElements`). Its offset
//! says where it goes in the input, in multiples of `run_length`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use souk_memory::DType;
use souk_reference::call::{KernelError, resolve_axis};
use souk_reference::shape::strides;

use crate::error::GpuError;
use crate::numbers::packed::element_type;
use crate::operators::gather::{element_offsets, tuple_offsets};
use crate::operators::layout::{duplicate_array, overwrite_box};
use crate::recording::{Array, Groups, Step};
use crate::shaders::{combine_kernel, put_kernel};

/// Returns the expression by which a reduction combines two elements `a` and `b`. NaN propagates.
fn combine_expression(reduction: &str, is_float: bool) -> Option<&'static str> {
    Some(match (reduction, is_float) {
        ("add", _) => "a + b",
        ("mul", _) => "a * b",
        ("max", true) => "larger(a, b)",
        ("min", true) => "smaller(a, b)",
        ("max", false) => "max(a, b)",
        ("min", false) => "min(a, b)",
        _ => return None,
    })
}

/// Returns whether the kernels support a reduction of this name.
pub(crate) fn is_supported_reduction(reduction: &str) -> bool {
    combine_expression(reduction, true).is_some()
}

/// Records `ScatterElements`, `Scatter` or `ScatterND`.
pub(crate) fn scatter(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (input, updates) = (step.wide_array(0)?, step.wide_array(2)?);
    let (offsets, run_length) = match step.call.node.op_type() {
        "ScatterND" => {
            let (offsets, tuple_length) = tuple_offsets(step, &input.dims, 0)?;
            (offsets, input.dims[tuple_length..].iter().product())
        }
        _ => (element_offsets(step, &input.dims, 1)?, 1),
    };
    if updates.count() != offsets.len() * run_length {
        let expected_dims = vec![offsets.len(), run_length];
        return Err(KernelError::Shapes(updates.dims, expected_dims).into());
    }
    let result = duplicate_array(step, &input)?;
    match step.call.text_attribute("reduction", "none") {
        "none" => assign_updates(step, &updates, offsets, run_length, &result)?,
        reduction => {
            let is_float = matches!(result.dtype, DType::F32 | DType::F64);
            let reduction = combine_expression(reduction, is_float);
            let reduction = reduction.ok_or(KernelError::Attribute("reduction"))?;
            combine_updates(step, &updates, &offsets, run_length, &result, reduction)?;
        }
    }
    Ok(vec![result])
}

/// Records `TensorScatter`, which writes the update rows of each sample to its cache, from a start
/// row on. In circular mode, the row after the last row of the cache is its first.
pub(crate) fn tensor_scatter(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (past, update) = (step.wide_array(0)?, step.wide_array(1)?);
    let axis = resolve_axis(step.call.int_attribute("axis", -2), past.dims.len())?;
    // Axis 0 is that of the samples.
    if axis == 0 {
        return Err(KernelError::Attribute("axis").into());
    }
    let (capacity, rows) = (past.dims[axis], *update.dims.get(axis).unwrap_or(&0));
    let mut expected_dims = past.dims.clone();
    expected_dims[axis] = rows;
    if update.dims != expected_dims {
        return Err(KernelError::Shapes(update.dims, expected_dims).into());
    }
    let circular = step.call.text_attribute("mode", "linear") == "circular";
    let starts = read_starts(step, [past.dims[0], capacity, rows], circular)?;
    // `wide_array` copies a packed array to a wider one, which this run owns.
    let can_overwrite =
        step.overwrites || !Arc::ptr_eq(&past.buffer, &step.stored_array(0)?.buffer);
    let target = match can_overwrite {
        true => past,
        false => duplicate_array(step, &past)?,
    };
    let (update_strides, target_strides) = (strides(&update.dims), strides(&target.dims));
    let mut box_dims = expected_dims;
    box_dims[0] = 1;
    for (sample, start) in starts.into_iter().enumerate() {
        let mut rows_written = 0;
        while rows_written < rows {
            let row = (start + rows_written) % capacity;
            box_dims[axis] = (rows - rows_written).min(capacity - row);
            let from = sample * update_strides[0] + rows_written * update_strides[axis];
            let to = sample * target_strides[0] + row * target_strides[axis];
            overwrite_box(step, (&update, from), (&target, to), &box_dims)?;
            rows_written += box_dims[axis];
        }
    }
    Ok(vec![target])
}

/// Returns the start row of each sample. Unless the mode is circular, checks that `rows` rows from
/// there fit into the capacity.
fn read_starts(
    step: &Step<'_, '_>,
    [samples, capacity, rows]: [usize; 3],
    circular: bool,
) -> Result<Vec<usize>, KernelError> {
    let starts = step
        .call
        .optional_input_ints(2)?
        .unwrap_or(vec![0; samples]);
    let fits = |start: &usize| match circular {
        true => capacity > 0 || rows == 0,
        false => start.checked_add(rows).is_some_and(|end| end <= capacity),
    };
    let start = |&start: &i64| usize::try_from(start).ok().filter(fits);
    let starts: Option<Vec<usize>> = starts.iter().map(start).collect();
    let starts = starts.filter(|starts| starts.len() == samples);
    starts.ok_or(KernelError::Range(2))
}

/// Replaces elements by updates. If several updates have the same offset, the last one wins.
fn assign_updates(
    step: &mut Step<'_, '_>,
    updates: &Array,
    mut offsets: Vec<i32>,
    run_length: usize,
    result: &Array,
) -> Result<(), GpuError> {
    let mut seen = BTreeSet::new();
    for offset in offsets.iter_mut().rev() {
        if !seen.insert(*offset) {
            // The kernel skips an update whose offset is negative.
            *offset = -1;
        }
    }
    let offsets = step.upload_indices(&offsets)?;
    let sizes = [updates.count(), run_length.max(1)];
    let groups = Groups::Threads(updates.count());
    step.record_kernel(
        &put_kernel(updates.word()),
        &sizes,
        &[updates, &offsets, result],
        groups,
    )
}

/// Combines the updates of an offset with the elements there, in the order of the updates, so that
/// each run of the graph gives the same bits.
fn combine_updates(
    step: &mut Step<'_, '_>,
    updates: &Array,
    offsets: &[i32],
    run_length: usize,
    result: &Array,
    reduction: &str,
) -> Result<(), GpuError> {
    let mut updates_by_offset: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (&offset, update) in offsets.iter().zip(0..) {
        updates_by_offset.entry(offset).or_default().push(update);
    }
    let mut starts = vec![0];
    let mut order: Vec<i32> = Vec::with_capacity(offsets.len());
    for updates in updates_by_offset.values() {
        order.extend(updates);
        starts.push(order.len() as i32);
    }
    let offsets: Vec<i32> = updates_by_offset.into_keys().collect();
    let count = offsets.len() * run_length;
    let offsets = step.upload_indices(&offsets)?;
    let (starts, order) = (step.upload_indices(&starts)?, step.upload_indices(&order)?);
    let source = combine_kernel(element_type(result.dtype, result.is_double), reduction);
    let arrays = [updates, &offsets, &starts, &order, result];
    step.record_kernel(
        &source,
        &[count, run_length.max(1)],
        &arrays,
        Groups::Threads(count),
    )
}
