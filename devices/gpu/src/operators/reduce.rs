//! Records the kernels of operators that work along some axes: reductions such as `ReduceSum`,
//! softmax, normalisations, `ArgMax` and `TopK`.
//!
//! They first bring the reduced axes to the middle of three dimensions: by a new shape where the
//! axes are adjacent, otherwise by a transpose.

use souk_memory::DType;
use souk_reference::call::{KernelError, resolve_axes, resolve_axis};
use souk_reference::shape::split_at_axis;

use crate::error::GpuError;
use crate::numbers::integers::value_range;
use crate::numbers::packed::compute_dtype;
use crate::operators::casts::cast_wide;
use crate::operators::elementwise::{map, output_dtype};
use crate::operators::layout::permute_axes;
use crate::recording::{Array, Groups, Step};
use crate::shaders::{
    Softmax, normalise_kernel, place_of_extreme, reduce, softmax_kernel, top_kernel,
};

/// From this many elements on, a whole workgroup computes one result.
const GROUPED_MIN: usize = 128;

/// The four expressions of a reduction: start, of each element `v`, of two results `a` and `b`,
/// of the last result `a` and the count `n`.
pub(crate) type Reduction = [&'static str; 4];

/// Returns the expressions of a reducing operator.
pub(crate) fn find_reduction(operator: &str) -> Option<Reduction> {
    Some(match operator {
        "ReduceSum" => ["0.0", "v", "a + b", "a"],
        "ReduceMean" | "GlobalAveragePool" => ["0.0", "v", "a + b", "a / n"],
        "ReduceMax" | "GlobalMaxPool" => ["-infinity()", "v", "larger(a, b)", "a"],
        "ReduceMin" => ["infinity()", "v", "smaller(a, b)", "a"],
        "ReduceProd" => ["1.0", "v", "a * b", "a"],
        "ReduceL1" => ["0.0", "abs(v)", "a + b", "a"],
        "ReduceL2" => ["0.0", "v * v", "a + b", "sqrt(a)"],
        "ReduceSumSquare" => ["0.0", "v * v", "a + b", "a"],
        "ReduceLogSum" => ["0.0", "v", "a + b", "log(a)"],
        _ => return None,
    })
}

/// Reduces the middle one of three dimensions, to floats of some type.
pub(crate) fn reduce_middle(
    step: &mut Step<'_, '_>,
    input: &Array,
    sides: (usize, usize, usize),
    reduction: Reduction,
    to: DType,
    dims: &[usize],
) -> Result<Array, GpuError> {
    let (outer, size, inner) = sides;
    let result = step.stream.allocate_array(to, dims)?;
    let grouped = size >= GROUPED_MIN;
    let source = reduce(input.numbers_to(&result), reduction, grouped);
    let groups = if grouped {
        Groups::Each(outer * inner)
    } else {
        Groups::Threads(outer * inner)
    };
    let sizes = [outer * inner, size, inner.max(1)];
    step.record_kernel(&source, &sizes, &[input, &result], groups)?;
    Ok(result)
}

/// The input with its reduced axes in the middle of three dimensions; the result's shape.
struct Plan {
    input: Array,
    sides: (usize, usize, usize),
    dims: Vec<usize>,
}

fn plan_reduction(step: &mut Step<'_, '_>, over: &[usize], keep: bool) -> Result<Plan, GpuError> {
    let input = step.native_array(0)?;
    let rank = input.dims.len();
    let is_over = |axis: usize| over.contains(&axis);
    let dims = (0..rank).filter(|&axis| keep || !is_over(axis));
    let dims = dims.map(|axis| if is_over(axis) { 1 } else { input.dims[axis] });
    let dims: Vec<usize> = dims.collect();
    let first = (0..rank).find(|&axis| is_over(axis)).unwrap_or(rank);
    let end = first + (first..rank).take_while(|&axis| is_over(axis)).count();
    if (end..rank).any(is_over) {
        let kept = (0..rank).filter(|&axis| !is_over(axis));
        let order: Vec<usize> = kept
            .chain((0..rank).filter(|&axis| is_over(axis)))
            .collect();
        let input = permute_axes(step, &input, &order)?;
        let kept = rank - (0..rank).filter(|&axis| is_over(axis)).count();
        let (left, right) = input.dims.split_at(kept);
        let sides = (left.iter().product(), right.iter().product(), 1);
        return Ok(Plan { input, sides, dims });
    }
    let product = |range: std::ops::Range<usize>| input.dims[range].iter().product();
    let sides = (product(0..first), product(first..end), product(end..rank));
    Ok(Plan { input, sides, dims })
}

/// Returns the axes that a reducing node names; `None` if the node must do nothing.
fn named_axes(step: &Step<'_, '_>) -> Result<Option<Vec<usize>>, GpuError> {
    let rank = step.input_dims(0)?.len();
    let list = step.call.int_list_argument("axes", 1)?.unwrap_or_default();
    if list.is_empty() && step.call.is_flag_set("noop_with_empty_axes") {
        return Ok(None);
    }
    Ok(Some(if list.is_empty() {
        (0..rank).collect()
    } else {
        resolve_axes(&list, rank)?
    }))
}

/// Records the sum of all elements of an array.
pub(crate) fn sum_all(step: &mut Step<'_, '_>, input: &Array) -> Result<Array, GpuError> {
    let by = find_reduction("ReduceSum").expect("it is in the table");
    reduce_all(step, input, by)
}

/// Reduces all elements to one.
pub(crate) fn reduce_all(
    step: &mut Step<'_, '_>,
    input: &Array,
    by: Reduction,
) -> Result<Array, GpuError> {
    reduce_middle(step, input, (1, input.count(), 1), by, DType::F32, &[])
}

/// `ReduceSum` and the like.
pub(crate) fn reduce_axes(step: &mut Step<'_, '_>, by: Reduction) -> Result<Vec<Array>, GpuError> {
    // Without axes each element is reduced alone.
    let over = named_axes(step)?.unwrap_or_default();
    let keep = step.call.int_attribute("keepdims", 1) != 0;
    let mut plan = plan_reduction(step, &over, keep)?;
    let dtype = plan.input.dtype;
    if dtype.is_float() {
        let to = (output_dtype(step, compute_dtype(dtype)), &plan.dims[..]);
        return Ok(vec![reduce_middle(
            step,
            &plan.input,
            plan.sides,
            by,
            to.0,
            to.1,
        )?]);
    }
    // Types that are not floats only need the largest and the smallest, and 32-bit floats hold all
    // their values. An empty reduction gives the end of the type's own range.
    plan.input = cast_wide(step, plan.input, DType::F32)?;
    let found = reduce_middle(
        step,
        &plan.input,
        plan.sides,
        by,
        DType::F32,
        &plan.dims[..],
    )?;
    let [low, high] = dtype_bounds(step.stored_array(0)?.dtype);
    let expression = match dtype {
        DType::Bool => "u32(clamp(a, s, t))",
        _ => "i32(clamp(a, s, t))",
    };
    let numbers = [low, high, 0.0];
    let found = map(step, expression, &[(&found, DType::F32)], dtype, numbers)?;
    Ok(vec![found])
}

/// The least and the greatest value of truths or integers of 16 bits or fewer.
fn dtype_bounds(dtype: DType) -> [f64; 2] {
    match dtype {
        DType::Bool => [0.0, 1.0],
        dtype => value_range(dtype),
    }
}

/// `ReduceLogSumExp`.
pub(crate) fn log_sum_exp(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let over = named_axes(step)?.unwrap_or_default();
    let keep = step.call.int_attribute("keepdims", 1) != 0;
    let Plan { input, sides, dims } = plan_reduction(step, &over, keep)?;
    let (outer, size, inner) = sides;
    let result = step
        .stream
        .allocate_array(output_dtype(step, compute_dtype(input.dtype)), &dims)?;
    let sizes = [outer * inner, size, inner.max(1)];
    let groups = Groups::Each(outer * inner);
    let source = softmax_kernel(input.numbers_to(&result), Softmax::LogSum);
    step.record_kernel(&source, &sizes, &[&input, &result], groups)?;
    Ok(vec![result])
}

/// `GlobalAveragePool` and `GlobalMaxPool`.
pub(crate) fn global_pool(step: &mut Step<'_, '_>, by: Reduction) -> Result<Vec<Array>, GpuError> {
    let rank = step.input_dims(0)?.len();
    let over: Vec<usize> = (2..rank).collect();
    let plan = plan_reduction(step, &over, true)?;
    let to = (
        output_dtype(step, compute_dtype(plan.input.dtype)),
        &plan.dims[..],
    );
    Ok(vec![reduce_middle(
        step,
        &plan.input,
        plan.sides,
        by,
        to.0,
        to.1,
    )?])
}

/// `Softmax` and `LogSoftmax`; before version 13 over all dimensions from the axis on.
pub(crate) fn apply_softmax(
    step: &mut Step<'_, '_>,
    kind: Softmax,
) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let rank = input.dims.len();
    let old = step.call.opset < 13;
    let along = resolve_axis(
        step.call.int_attribute("axis", if old { 1 } else { -1 }),
        rank,
    )?;
    let (outer, size, inner) = if old {
        let (left, right) = input.dims.split_at(along);
        (left.iter().product(), right.iter().product(), 1)
    } else {
        split_at_axis(&input.dims, along)
    };
    let to = output_dtype(step, compute_dtype(input.dtype));
    Ok(vec![softmax_middle(
        step, &input, to, outer, size, inner, kind,
    )?])
}

/// Softmax over the middle one of three dimensions, to floats of some type.
pub(crate) fn softmax_middle(
    step: &mut Step<'_, '_>,
    input: &Array,
    to: DType,
    outer: usize,
    size: usize,
    inner: usize,
    kind: Softmax,
) -> Result<Array, GpuError> {
    let result = step.stream.allocate_array(to, &input.dims)?;
    let sizes = [outer * inner, size, inner.max(1)];
    let groups = Groups::Each(outer * inner);
    let source = softmax_kernel(input.numbers_to(&result), kind);
    step.record_kernel(&source, &sizes, &[input, &result], groups)?;
    Ok(result)
}

/// `ArgMax` and `ArgMin`.
pub(crate) fn arg_extreme(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let along = resolve_axis(step.call.int_attribute("axis", 0), input.dims.len())?;
    let (outer, size, inner) = split_at_axis(&input.dims, along);
    if size == 0 {
        return Err(KernelError::Range(0).into());
    }
    let mut dims = input.dims.clone();
    if step.call.int_attribute("keepdims", 1) != 0 {
        dims[along] = 1;
    } else {
        dims.remove(along);
    }
    let result = step.stream.array_of_words(DType::I64, &dims)?;
    let last = usize::from(step.call.is_flag_set("select_last_index"));
    let smallest = usize::from(step.call.node.op_type() == "ArgMin");
    let sizes = [outer * inner, size, inner, last, smallest];
    let groups = Groups::Threads(outer * inner);
    let source = place_of_extreme(input.numbers_to(&result));
    step.record_kernel(&source, &sizes, &[&input, &result], groups)?;
    Ok(vec![result])
}

/// `TopK`, sorted.
pub(crate) fn top_k(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let along = resolve_axis(step.call.int_attribute("axis", -1), input.dims.len())?;
    let (outer, size, inner) = split_at_axis(&input.dims, along);
    let wanted = match step.call.optional_scalar_int(1)? {
        Some(wanted) => wanted,
        None => step.call.int_attribute("k", 0),
    };
    let wanted = usize::try_from(wanted)
        .ok()
        .filter(|&wanted| wanted <= size)
        .ok_or(KernelError::Range(1))?;
    let mut dims = input.dims.clone();
    dims[along] = wanted;
    let values = step
        .stream
        .allocate_array(output_dtype(step, compute_dtype(input.dtype)), &dims)?;
    let places = step.stream.array_of_words(DType::I64, &dims)?;
    let largest = usize::from(step.call.int_attribute("largest", 1) != 0);
    let count = outer * size * inner;
    let sizes = [count, size, inner, wanted, largest];
    let arrays = [&input, &values, &places];
    let source = top_kernel(input.numbers_to(&values));
    step.record_kernel(&source, &sizes, &arrays, Groups::Threads(count))?;
    Ok(vec![values, places])
}

/// How rows are normalised.
struct Rows {
    rows: usize,
    length: usize,
    centred: bool,
    /// How many neighbours share a scale and shift.
    sharing: usize,
}

/// Rows normalised, then scaled and shifted; with the mean and inverse deviation of each.
fn normalise_rows(
    step: &mut Step<'_, '_>,
    input: &Array,
    rows: &Rows,
    scale: &Array,
    shift: &Array,
    statistics: &[usize],
) -> Result<Vec<Array>, GpuError> {
    let epsilon = step.call.float_attribute("epsilon", 1e-5) as f32;
    let result = step
        .stream
        .allocate_array(step.output_dtype(), &input.dims)?;
    let means = step.stream.allocate_array(DType::F32, statistics)?;
    let inverses = step.stream.allocate_array(DType::F32, statistics)?;
    let sizes = [
        rows.rows,
        rows.length,
        epsilon.to_bits() as usize,
        usize::from(rows.centred),
        rows.sharing.max(1),
        scale.count().max(1),
    ];
    let arrays = [input, scale, shift, &result, &means, &inverses];
    let source = normalise_kernel(input.numbers_to(&result));
    step.record_kernel(&source, &sizes, &arrays, Groups::Each(rows.rows))?;
    Ok(vec![result, means, inverses])
}

/// A number for each of `count` elements.
fn constant_array(step: &Step<'_, '_>, value: f32, count: usize) -> Result<Array, GpuError> {
    let words: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), count)
        .flatten()
        .collect();
    step.stream().upload_words(DType::F32, &[count], &words)
}

/// `LayerNormalization` and `RMSNormalization`: over all dimensions from the axis on.
pub(crate) fn layer_norm(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let along = resolve_axis(step.call.int_attribute("axis", -1), input.dims.len())?;
    let (left, right) = input.dims.split_at(along);
    let length = right.iter().product();
    let rows_of = Rows {
        rows: left.iter().product(),
        length,
        centred: step.call.node.op_type() == "LayerNormalization",
        sharing: 1,
    };
    let mut statistics = left.to_vec();
    statistics.resize(input.dims.len(), 1);
    let scale = broadcast_input(step, 1, right)?.ok_or(KernelError::Missing(1))?;
    let shift = match broadcast_input(step, 2, right)? {
        Some(shift) => shift,
        None => constant_array(step, 0.0, length)?,
    };
    normalise_rows(step, &input, &rows_of, &scale, &shift, &statistics)
}

/// Returns an input repeated to `dims`, if the node has it.
fn broadcast_input(
    step: &mut Step<'_, '_>,
    index: usize,
    dims: &[usize],
) -> Result<Option<Array>, GpuError> {
    let Some(array) = step.optional_wide(index)? else {
        return Ok(None);
    };
    if array.dims == dims {
        return Ok(Some(array));
    }
    let count = dims.iter().product();
    let zeros = constant_array(step, 0.0, count)?.with_dims(dims);
    let inputs = [(&array, DType::F32), (&zeros, DType::F32)];
    let repeated = map(step, "a + b", &inputs, DType::F32, [0.0; 3])?;
    if repeated.dims != dims {
        return Err(KernelError::Shapes(array.dims, dims.to_vec()).into());
    }
    Ok(Some(repeated))
}

/// `InstanceNormalization` and `GroupNormalization`: over each group of channels of a sample.
pub(crate) fn group_norm(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let &[samples, channels, ref spatial @ ..] = &input.dims[..] else {
        return Err(KernelError::Range(0).into());
    };
    let plane: usize = spatial.iter().product();
    let groups = match step.call.node.op_type() {
        "GroupNormalization" => step.call.int_attribute("num_groups", 1).max(1) as usize,
        _ => channels,
    };
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(KernelError::Attribute("num_groups").into());
    }
    let (mut scale, mut shift) = (step.wide_array(1)?, step.wide_array(2)?);
    // Before version 21 a whole group shared its scale and shift.
    let by_group = step.call.node.op_type() == "GroupNormalization" && step.call.opset < 21;
    let sharing = if by_group && groups != channels {
        plane * (channels / groups)
    } else {
        plane
    };
    let expected = if by_group { groups } else { channels };
    if scale.count() != expected || shift.count() != expected {
        return Err(KernelError::Range(1).into());
    }
    scale.dims = vec![expected];
    shift.dims = vec![expected];
    let rows_of = Rows {
        rows: samples * groups,
        length: plane * (channels / groups),
        centred: true,
        sharing,
    };
    let statistics = [samples * groups];
    let mut results = normalise_rows(step, &input, &rows_of, &scale, &shift, &statistics)?;
    results.truncate(1);
    Ok(results)
}
