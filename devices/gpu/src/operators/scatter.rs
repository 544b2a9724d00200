//! Records the kernels of `ScatterElements`, `ScatterND` and `TensorScatter`: a copy of an input in
//! which updates replace elements or are combined with them. `TensorScatter` writes the caches of a
//! session, which its steps overwrite in place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use souk_memory::DType;
use souk_reference::call::{KernelError, resolve_axis};
use souk_reference::shape::strides;

use crate::error::GpuError;
use crate::numbers::packed::element_type;
use crate::operators::layout::{duplicate_array, element_places, overwrite_box, tuple_places};
use crate::recording::{Array, Groups, Step};
use crate::shaders::{combine_kernel, put_kernel};

/// Returns the expression by which a reduction combines two elements `a` and `b`. NaN stays NaN.
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

/// Whether updates are combined by a reduction of this name.
pub(crate) fn is_known(reduction: &str) -> bool {
    combine_expression(reduction, true).is_some()
}

/// `ScatterElements`, `Scatter` and `ScatterND`.
pub(crate) fn scatter(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (input, updates) = (step.wide_array(0)?, step.wide_array(2)?);
    let (places, run) = match step.call.node.op_type() {
        "ScatterND" => {
            let (places, width) = tuple_places(step, &input.dims, 0)?;
            (places, input.dims[width..].iter().product())
        }
        _ => (element_places(step, &input.dims, 1)?, 1),
    };
    if updates.count() != places.len() * run {
        return Err(KernelError::Shapes(updates.dims, vec![places.len(), run]).into());
    }
    let result = duplicate_array(step, &input)?;
    match step.call.text_attribute("reduction", "none") {
        "none" => put_in(step, &updates, places, run, &result)?,
        reduction => {
            let is_float = matches!(result.dtype, DType::F32 | DType::F64);
            let reduction = combine_expression(reduction, is_float);
            let reduction = reduction.ok_or(KernelError::Attribute("reduction"))?;
            combine_updates(step, &updates, &places, run, &result, reduction)?;
        }
    }
    Ok(vec![result])
}

/// `TensorScatter`: rows of each sample written to its cache from a place on, in circles or not.
pub(crate) fn tensor_scatter(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (past, update) = (step.wide_array(0)?, step.wide_array(1)?);
    let along = resolve_axis(step.call.int_attribute("axis", -2), past.dims.len())?;
    let mut fitting = past.dims.clone();
    if along == 0 {
        return Err(KernelError::Attribute("axis").into());
    }
    let (room, rows) = (past.dims[along], *update.dims.get(along).unwrap_or(&0));
    fitting[along] = rows;
    if update.dims != fitting {
        return Err(KernelError::Shapes(past.dims, update.dims).into());
    }
    let circular = step.call.text_attribute("mode", "linear") == "circular";
    let starts = read_starts(step, [past.dims[0], room, rows], circular)?;
    // A packed array was widened into a new array, which this run owns.
    let is_own = step.overwrites || !Arc::ptr_eq(&past.buffer, &step.stored_array(0)?.buffer);
    let target = match is_own {
        true => past,
        false => duplicate_array(step, &past)?,
    };
    let (read, written) = (strides(&update.dims), strides(&target.dims));
    let mut sizes = fitting;
    sizes[0] = 1;
    for (sample, start) in starts.into_iter().enumerate() {
        let mut done = 0;
        while done < rows {
            let at = (start + done) % room;
            sizes[along] = (rows - done).min(room - at);
            let from = sample * read[0] + done * read[along];
            let to = sample * written[0] + at * written[along];
            overwrite_box(step, (&update, from), (&target, to), &sizes)?;
            done += sizes[along];
        }
    }
    Ok(vec![target])
}

/// Where the rows of each sample go, all of them in the room there is.
fn read_starts(
    step: &Step<'_, '_>,
    [samples, room, rows]: [usize; 3],
    circular: bool,
) -> Result<Vec<usize>, KernelError> {
    let starts = step
        .call
        .optional_input_ints(2)?
        .unwrap_or(vec![0; samples]);
    let fits = |start: &usize| match circular {
        true => room > 0 || rows == 0,
        false => start.checked_add(rows).is_some_and(|end| end <= room),
    };
    let start = |&start: &i64| usize::try_from(start).ok().filter(fits);
    let starts: Option<Vec<usize>> = starts.iter().map(start).collect();
    let starts = starts.filter(|starts| starts.len() == samples);
    starts.ok_or(KernelError::Range(2))
}

/// Replaces elements by updates. If several updates have one place, only the last counts, so this
/// function drops the others.
fn put_in(
    step: &mut Step<'_, '_>,
    updates: &Array,
    mut places: Vec<i32>,
    run: usize,
    result: &Array,
) -> Result<(), GpuError> {
    let mut seen = BTreeSet::new();
    for place in places.iter_mut().rev() {
        if !seen.insert(*place) {
            *place = -1;
        }
    }
    let places = step.upload_places(&places)?;
    let sizes = [updates.count(), run.max(1)];
    let groups = Groups::Threads(updates.count());
    step.record_kernel(
        &put_kernel(updates.word()),
        &sizes,
        &[updates, &places, result],
        groups,
    )
}

/// Combines the updates of a place with its element in the order of the updates, so that a repeated
/// run gives the same bits.
fn combine_updates(
    step: &mut Step<'_, '_>,
    updates: &Array,
    places: &[i32],
    run: usize,
    result: &Array,
    reduction: &str,
) -> Result<(), GpuError> {
    let mut of_place: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (&place, update) in places.iter().zip(0..) {
        of_place.entry(place).or_default().push(update);
    }
    let mut starts = vec![0];
    let mut order: Vec<i32> = Vec::with_capacity(places.len());
    for updates in of_place.values() {
        order.extend(updates);
        starts.push(order.len() as i32);
    }
    let named: Vec<i32> = of_place.into_keys().collect();
    let count = named.len() * run;
    let named = step.upload_places(&named)?;
    let (starts, order) = (step.upload_places(&starts)?, step.upload_places(&order)?);
    let source = combine_kernel(element_type(result.dtype, result.is_double), reduction);
    let arrays = [updates, &named, &starts, &order, result];
    step.record_kernel(
        &source,
        &[count, run.max(1)],
        &arrays,
        Groups::Threads(count),
    )
}
