//! Computes reductions over axes, running sums and products, and the indices of extremes.

use souk_memory::Tensor;

use super::call::{Call, KernelError, Results, resolve_axes, resolve_axis};
use super::functions::{max_or_nan, min_or_nan};
use super::shape::{index_offsets, split_at_axis, strides};
use super::sort::{Key, sort_keys};
use super::value::{from_floats, from_indices, from_ints, to_floats, to_ints};

/// The elements of a reduction: the kept positions, the offsets to reduce at each, the result's
/// shape.
struct ReductionPlan {
    kept: Vec<usize>,
    reduced: Vec<usize>,
    dims: Vec<usize>,
}

/// Plans a reduction; returns `None` if no axis is to be reduced.
fn plan_reduction(call: &Call<'_>, input: &Tensor) -> Result<Option<ReductionPlan>, KernelError> {
    let dims = input.dims();
    let rank = dims.len();
    let list = call.int_list_argument("axes", 1)?.unwrap_or_default();
    if list.is_empty() && call.is_flag_set("noop_with_empty_axes") {
        return Ok(None);
    }
    let reduced = if list.is_empty() {
        (0..rank).collect()
    } else {
        resolve_axes(&list, rank)?
    };
    let keep = call.int_attribute("keepdims", 1) != 0;
    let steps = strides(dims);
    let chosen = |inside: bool| {
        let axes = (0..rank).filter(move |axis| reduced.contains(axis) == inside);
        axes.collect::<Vec<usize>>()
    };
    let (over, rest) = (chosen.clone()(true), chosen(false));
    let pick = |axes: &[usize]| {
        let sizes: Vec<usize> = axes.iter().map(|&axis| dims[axis]).collect();
        let steps: Vec<usize> = axes.iter().map(|&axis| steps[axis]).collect();
        index_offsets(&sizes, &steps)
    };
    let result = (0..rank).filter(|axis| keep || !over.contains(axis));
    let result = result
        .map(|axis| if over.contains(&axis) { 1 } else { dims[axis] })
        .collect();
    Ok(Some(ReductionPlan {
        kept: pick(&rest),
        reduced: pick(&over),
        dims: result,
    }))
}

/// Reduces floats.
pub(super) fn reduce_floats(
    call: &Call<'_>,
    combine: impl Fn(&mut dyn Iterator<Item = f64>) -> f64,
) -> Results {
    let input = call.input(0)?;
    let values = to_floats(input)?;
    let Some(plan) = plan_reduction(call, input)? else {
        let each = values
            .iter()
            .map(|&value| combine(&mut std::iter::once(value)))
            .collect();
        return Ok(vec![from_floats(input.dtype(), input.dims(), each)?]);
    };
    let one = |&place: &usize| combine(&mut plan.reduced.iter().map(|&step| values[place + step]));
    let results = plan.kept.iter().map(one).collect();
    Ok(vec![from_floats(input.dtype(), &plan.dims, results)?])
}

/// Reduces floats or integers, by the input's type.
pub(super) fn reduce_either(
    call: &Call<'_>,
    float: impl Fn(&mut dyn Iterator<Item = f64>) -> f64,
    int: impl Fn(&mut dyn Iterator<Item = i128>) -> i128,
) -> Results {
    let input = call.input(0)?;
    if input.dtype().is_float() {
        return reduce_floats(call, float);
    }
    let values = to_ints(input)?;
    let Some(plan) = plan_reduction(call, input)? else {
        let each = values
            .iter()
            .map(|&value| int(&mut std::iter::once(value)))
            .collect();
        return Ok(vec![from_ints(input.dtype(), input.dims(), each)?]);
    };
    let one = |&place: &usize| int(&mut plan.reduced.iter().map(|&step| values[place + step]));
    let results = plan.kept.iter().map(one).collect();
    Ok(vec![from_ints(input.dtype(), &plan.dims, results)?])
}

/// Returns the maximum; of no elements it is minus infinity, or the smallest integer. NaN wins.
pub(super) fn reduce_max(call: &Call<'_>) -> Results {
    let lowest = lowest_integer(call.input(0)?);
    reduce_either(
        call,
        |values| values.fold(f64::NEG_INFINITY, max_or_nan),
        |values| values.max().unwrap_or(lowest),
    )
}

/// Returns the minimum; of no elements it is infinity, or the largest integer. NaN wins.
pub(super) fn reduce_min(call: &Call<'_>) -> Results {
    let highest = -lowest_integer(call.input(0)?) - 1;
    reduce_either(
        call,
        |values| values.fold(f64::INFINITY, min_or_nan),
        |values| values.min().unwrap_or(highest),
    )
}

/// Returns the smallest integer of the type: 0 for unsigned types and booleans.
fn lowest_integer(input: &Tensor) -> i128 {
    let bits = input.dtype().bit_width();
    if input.dtype().name().starts_with('i') {
        -(1i128 << (bits - 1))
    } else {
        0
    }
}

/// Computes the log of a sum of exponentials, shifted by the largest so that none overflows.
pub(super) fn log_sum_exp(call: &Call<'_>) -> Results {
    reduce_floats(call, |values| {
        let values: Vec<f64> = values.collect();
        let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shift = if largest.is_finite() { largest } else { 0.0 };
        shift
            + values
                .iter()
                .map(|value| (value - shift).exp())
                .sum::<f64>()
                .ln()
    })
}

/// Computes the length of a vector; truncates it for integers.
pub(super) fn reduce_l2(call: &Call<'_>) -> Results {
    let square = |value: i128| value.unsigned_abs().saturating_mul(value.unsigned_abs());
    reduce_either(
        call,
        |values| values.map(|x| x * x).sum::<f64>().sqrt(),
        |values| {
            let squares = values.map(square);
            squares.fold(0, u128::saturating_add).isqrt() as i128
        },
    )
}

/// Computes the mean; truncates integers towards zero.
pub(super) fn reduce_mean(call: &Call<'_>) -> Results {
    reduce_either(
        call,
        |values| {
            let (sum, count) = values.fold((0.0, 0u64), |(sum, n), value| (sum + value, n + 1));
            sum / count as f64
        },
        |values| {
            let (sum, count) = values.fold((0, 0), |(sum, n), value| (sum + value, n + 1));
            if count == 0 { 0 } else { sum / count }
        },
    )
}

/// Returns the index of the maximum (or minimum) along an axis: the first, or the last if
/// `select_last_index`.
pub(super) fn arg_extreme(call: &Call<'_>, better: impl Fn(Key, Key) -> bool) -> Results {
    let input = call.input(0)?;
    let axis = resolve_axis(call.int_attribute("axis", 0), input.dims().len())?;
    let last = call.is_flag_set("select_last_index");
    let (outer, size, inner) = split_at_axis(input.dims(), axis);
    if size == 0 {
        return Err(KernelError::Range(0));
    }
    let values = sort_keys(input)?;
    let mut found = Vec::with_capacity(outer * inner);
    for lane in 0..outer * inner {
        let start = (lane / inner) * size * inner + lane % inner;
        let at = |index: usize| values[start + index * inner];
        let best = (1..size).fold(0, |best, index| {
            let wins = better(at(index), at(best)) || (last && at(index) == at(best));
            if wins { index } else { best }
        });
        found.push(best as i64);
    }
    let mut dims = input.dims().to_vec();
    if call.int_attribute("keepdims", 1) != 0 {
        dims[axis] = 1;
    } else {
        dims.remove(axis);
    }
    Ok(vec![from_indices(&dims, found)?])
}

/// Computes a running sum or product along an axis.
pub(super) fn accumulate_axis(
    call: &Call<'_>,
    start: i128,
    float: impl Fn(f64, f64) -> f64,
    int: impl Fn(i128, i128) -> i128,
) -> Results {
    let input = call.input(0)?;
    let along = call
        .optional_scalar_int(1)?
        .ok_or(KernelError::Missing(1))?;
    let axis = resolve_axis(along, input.dims().len())?;
    let around = split_at_axis(input.dims(), axis);
    let order = ScanOrder {
        exclusive: call.is_flag_set("exclusive"),
        reverse: call.is_flag_set("reverse"),
    };
    if input.dtype().is_float() {
        let values = accumulate_lanes(
            &to_floats(input)?,
            around.0,
            around.1,
            around.2,
            &order,
            start as f64,
            float,
        );
        return Ok(vec![from_floats(input.dtype(), input.dims(), values)?]);
    }
    let values = accumulate_lanes(
        &to_ints(input)?,
        around.0,
        around.1,
        around.2,
        &order,
        start,
        int,
    );
    Ok(vec![from_ints(input.dtype(), input.dims(), values)?])
}

/// The direction of a running value along its axis.
struct ScanOrder {
    /// Whether each element excludes its own value.
    exclusive: bool,
    /// Whether it runs from the end.
    reverse: bool,
}

fn accumulate_lanes<T: Copy>(
    values: &[T],
    outer: usize,
    size: usize,
    inner: usize,
    order: &ScanOrder,
    start: T,
    combine: impl Fn(T, T) -> T,
) -> Vec<T> {
    let mut results = values.to_vec();
    for lane in 0..outer * inner {
        let first = (lane / inner) * size * inner + lane % inner;
        let mut total = start;
        for step in 0..size {
            let index = if order.reverse { size - 1 - step } else { step };
            let place = first + index * inner;
            let before = total;
            total = combine(total, values[place]);
            results[place] = if order.exclusive { before } else { total };
        }
    }
    results
}
