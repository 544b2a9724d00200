//! Scatters: a copy into which updates are put, or with which they are combined.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::DType;
use souk_reference::call::KernelError;

use crate::error::GpuError;
use crate::numbers::packed::element;
use crate::operators::layout::{duplicate, element_places, tuple_places};
use crate::recording::{Array, Groups, Step};
use crate::shaders::{combine, put};

/// What two elements `a` and `b` are combined to by a reduction. What is no number stays.
fn expression(reduction: &str, is_float: bool) -> Option<&'static str> {
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
    expression(reduction, true).is_some()
}

/// `ScatterElements`, `Scatter` and `ScatterND`.
pub(crate) fn scatter(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (input, updates) = (step.array(0)?, step.array(2)?);
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
    let result = duplicate(step, &input)?;
    match step.call.text("reduction", "none") {
        "none" => put_in(step, &updates, places, run, &result)?,
        reduction => {
            let is_float = matches!(result.dtype, DType::F32 | DType::F64);
            let reduction = expression(reduction, is_float);
            let reduction = reduction.ok_or(KernelError::Attribute("reduction"))?;
            combined(step, &updates, &places, run, (&result, reduction))?;
        }
    }
    Ok(vec![result])
}

/// Of several updates for one place the last counts, so the others are left out.
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
    let places = step.places(&places)?;
    let sizes = [updates.count(), run.max(1)];
    let groups = Groups::Threads(updates.count());
    step.kernel(
        &put(updates.word()),
        &sizes,
        &[updates, &places, result],
        groups,
    )
}

/// All updates of a place are combined with what is there in the order in which they are given, so
/// a run that repeats gives the same bits.
fn combined(
    step: &mut Step<'_, '_>,
    updates: &Array,
    places: &[i32],
    run: usize,
    (result, reduction): (&Array, &str),
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
    let named = step.places(&named)?;
    let (starts, order) = (step.places(&starts)?, step.places(&order)?);
    let source = combine(element(result.dtype, result.is_double), reduction);
    let arrays = [updates, &named, &starts, &order, result];
    step.kernel(
        &source,
        &[count, run.max(1)],
        &arrays,
        Groups::Threads(count),
    )
}
