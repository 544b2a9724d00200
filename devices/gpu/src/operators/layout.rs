//! Records the kernels of operators that only move elements, such as `Transpose` and `Gather`.

use souk_memory::DType;
use souk_reference::call::{KernelError, resolve_axes, resolve_axis};
use souk_reference::shape::{broadcast_shape, split_at_axis, strides};

use crate::error::GpuError;
use crate::recording::{Array, Groups, Step, to_word};
use crate::shaders::{copy_kernel, take_kernel};

/// How to fill positions outside the source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PaddingMode {
    Nothing = 0,
    Fill = 1,
    Reflected = 2,
    Edge = 3,
    Wrapped = 4,
}

/// One dimension of a copy: position `i` reads index `start + i * stride` of the source.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    read: usize,
    written: usize,
    start: i64,
    stride: i64,
    source: usize,
    outside: PaddingMode,
}

impl Axis {
    /// A dimension read and written in order.
    fn new_plain(size: usize, read: usize, written: usize) -> Self {
        Self {
            size,
            read,
            written,
            start: 0,
            stride: 1,
            source: size,
            outside: PaddingMode::Nothing,
        }
    }
}

/// Records a copy of `axes` from `source` at `first` to `target` at `to`.
fn record_copy(
    step: &mut Step<'_, '_>,
    source: &Array,
    first: usize,
    target: &Array,
    to: usize,
    axes: &[Axis],
    fill: u32,
) -> Result<(), GpuError> {
    let sizes = copy_arguments(axes, first, to, fill);
    let groups = Groups::Threads(sizes[0]);
    step.record_kernel(
        &copy_kernel(source.word(), false),
        &sizes,
        &[source, target],
        groups,
    )
}

/// Returns the arguments of the copying kernel; the first is the number of elements.
fn copy_arguments(axes: &[Axis], first: usize, to: usize, fill: u32) -> Vec<usize> {
    let count = axes.iter().map(|axis| axis.size).product();
    let mut sizes = vec![count, axes.len(), first, to, fill as usize];
    for axis in axes {
        sizes.extend([
            axis.size,
            axis.read,
            axis.written,
            to_word(axis.start),
            to_word(axis.stride),
            axis.source,
            axis.outside as usize,
        ]);
    }
    sizes
}

/// A copy of `axes` in C order, filled with an element that lies on the device.
fn copy_with_fill(
    step: &mut Step<'_, '_>,
    source: &Array,
    axes: &mut [Axis],
    fill: &Array,
) -> Result<Array, GpuError> {
    if fill.count() != 1 || fill.dtype != source.dtype {
        return Err(KernelError::Range(2).into());
    }
    let dims: Vec<usize> = axes.iter().map(|axis| axis.size).collect();
    for (axis, written) in axes.iter_mut().zip(strides(&dims)) {
        axis.written = written;
    }
    let target = step.stream.allocate_array(source.dtype, &dims)?;
    let sizes = copy_arguments(axes, 0, 0, 0);
    let groups = Groups::Threads(sizes[0]);
    let source_of_copy = copy_kernel(source.word(), true);
    step.record_kernel(&source_of_copy, &sizes, &[source, fill, &target], groups)?;
    Ok(target)
}

/// A copy of `axes` in C order into a new array.
fn copy_axes(
    step: &mut Step<'_, '_>,
    source: &Array,
    axes: &mut [Axis],
    fill: u32,
) -> Result<Array, GpuError> {
    let dims: Vec<usize> = axes.iter().map(|axis| axis.size).collect();
    for (axis, written) in axes.iter_mut().zip(strides(&dims)) {
        axis.written = written;
    }
    let target = step.stream.allocate_array(source.dtype, &dims)?;
    record_copy(step, source, 0, &target, 0, axes, fill)?;
    Ok(target)
}

/// An array of its own with the same values.
pub(crate) fn duplicate_array(step: &mut Step<'_, '_>, array: &Array) -> Result<Array, GpuError> {
    copy_axes(step, array, &mut array_axes(array), 0)
}

/// Writes a box of an array over another array, each from a first place on.
pub(crate) fn overwrite_box(
    step: &mut Step<'_, '_>,
    from: (&Array, usize),
    to: (&Array, usize),
    sizes: &[usize],
) -> Result<(), GpuError> {
    let steps = strides(&from.0.dims).into_iter().zip(strides(&to.0.dims));
    let axes = sizes.iter().zip(steps);
    let axes = axes.map(|(&size, (read, written))| Axis::new_plain(size, read, written));
    let axes: Vec<Axis> = axes.collect();
    record_copy(step, from.0, from.1, to.0, to.1, &axes, 0)
}

/// All dimensions of an array, in order.
fn array_axes(array: &Array) -> Vec<Axis> {
    let steps = strides(&array.dims);
    let axes = array.dims.iter().zip(steps);
    axes.map(|(&size, step)| Axis::new_plain(size, step, step))
        .collect()
}

/// Returns the input in the shape that a node which only renames gives it.
pub(crate) fn change_shape(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.stored_array(0)?;
    let dims = match step.call.node.op_type() {
        "Identity" => input.dims.clone(),
        "Flatten" => flatten_dims(step, &input.dims)?,
        "Squeeze" => squeeze_dims(step, &input.dims)?,
        "Unsqueeze" => unsqueeze_dims(step, &input.dims)?,
        _ => reshape_dims(step, &input)?,
    };
    if dims.iter().product::<usize>() != input.count() {
        return Err(KernelError::Shapes(input.dims, dims).into());
    }
    Ok(vec![input.with_dims(dims)])
}

fn reshape_dims(step: &Step<'_, '_>, input: &Array) -> Result<Vec<usize>, KernelError> {
    let wanted = step.call.int_list_argument("shape", 1)?.unwrap_or_default();
    let keeps_zero = step.call.is_flag_set("allowzero");
    let mut dims = Vec::with_capacity(wanted.len());
    let mut open = None;
    for (axis, &size) in wanted.iter().enumerate() {
        dims.push(match size {
            -1 => {
                open = Some(axis);
                1
            }
            0 if !keeps_zero => *input.dims.get(axis).ok_or(KernelError::Range(1))?,
            size => usize::try_from(size).map_err(|_| KernelError::Range(1))?,
        });
    }
    if let Some(open) = open {
        let known: usize = dims.iter().product();
        dims[open] = input.count().checked_div(known).unwrap_or(0);
    }
    Ok(dims)
}

fn flatten_dims(step: &Step<'_, '_>, dims: &[usize]) -> Result<Vec<usize>, KernelError> {
    let rank = dims.len();
    let at = match step.call.int_attribute("axis", 1) {
        at if at == rank as i64 => rank,
        at => resolve_axis(at, rank)?,
    };
    Ok(vec![
        dims[..at].iter().product(),
        dims[at..].iter().product(),
    ])
}

fn squeeze_dims(step: &Step<'_, '_>, dims: &[usize]) -> Result<Vec<usize>, KernelError> {
    let gone = match step.call.int_list_argument("axes", 1)? {
        Some(list) => resolve_axes(&list, dims.len())?,
        None => (0..dims.len()).filter(|&axis| dims[axis] == 1).collect(),
    };
    let kept = (0..dims.len()).filter(|axis| !gone.contains(axis));
    Ok(kept.map(|axis| dims[axis]).collect())
}

fn unsqueeze_dims(step: &Step<'_, '_>, dims: &[usize]) -> Result<Vec<usize>, KernelError> {
    let list = step.call.required_int_list("axes", 1)?;
    let rank = dims.len() + list.len();
    let new = resolve_axes(&list, rank)?;
    let mut old = dims.iter().copied();
    let size = |axis| {
        if new.contains(&axis) {
            Some(1)
        } else {
            old.next()
        }
    };
    let dims: Option<Vec<usize>> = (0..rank).map(size).collect();
    dims.ok_or(KernelError::Range(1))
}

/// `Transpose`.
pub(crate) fn transpose(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let rank = input.dims.len();
    let order = match step.call.node.ints("perm") {
        Some(order) => resolve_axes(order, rank)?,
        None => (0..rank).rev().collect(),
    };
    if order.len() != rank {
        return Err(KernelError::Attribute("perm").into());
    }
    Ok(vec![permute_axes(step, &input, &order)?])
}

/// Returns an array with its axes in another order.
pub(crate) fn permute_axes(
    step: &mut Step<'_, '_>,
    input: &Array,
    order: &[usize],
) -> Result<Array, GpuError> {
    let all = array_axes(input);
    let mut axes: Vec<Axis> = order.iter().map(|&axis| all[axis]).collect();
    copy_axes(step, input, &mut axes, 0)
}

/// `Expand`.
pub(crate) fn expand(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let wanted = to_sizes(&step.call.input_ints(1)?, 1)?;
    let dims = broadcast_shape(&input.dims, &wanted)?;
    let steps = super::elementwise::broadcast_steps(&input.dims, &dims);
    let mut axes: Vec<Axis> = dims
        .iter()
        .zip(steps)
        .map(|(&size, read)| Axis::new_plain(size, read, 0))
        .collect();
    Ok(vec![copy_axes(step, &input, &mut axes, 0)?])
}

/// `Tile`.
pub(crate) fn tile(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let repeats = to_sizes(&step.call.input_ints(1)?, 1)?;
    if repeats.len() != input.dims.len() {
        return Err(KernelError::Range(1).into());
    }
    let mut axes = array_axes(&input);
    for (axis, repeats) in axes.iter_mut().zip(repeats) {
        axis.size = axis
            .size
            .checked_mul(repeats)
            .ok_or(KernelError::TooLarge(u128::MAX))?;
        axis.outside = PaddingMode::Wrapped;
    }
    Ok(vec![copy_axes(step, &input, &mut axes, 0)?])
}

fn to_sizes(list: &[i64], input: usize) -> Result<Vec<usize>, KernelError> {
    let size = |&size: &i64| usize::try_from(size).map_err(|_| KernelError::Range(input));
    list.iter().map(size).collect()
}

/// `Slice`.
pub(crate) fn slice(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let call = &step.call;
    let starts = call.required_int_list("starts", 1)?;
    let ends = call.required_int_list("ends", 2)?;
    let all: Vec<i64> = (0..starts.len() as i64).collect();
    let axes = call.int_list_argument("axes", 3)?.unwrap_or(all);
    let along = resolve_axes(&axes, input.dims.len())?;
    let strides = call.optional_input_ints(4)?;
    let strides = strides.unwrap_or(vec![1; starts.len()]);
    if [ends.len(), along.len(), strides.len()] != [starts.len(); 3] {
        return Err(KernelError::Range(2).into());
    }
    let mut axes = array_axes(&input);
    for (index, &axis) in along.iter().enumerate() {
        let size = input.dims[axis] as i64;
        let (start, stride) = (starts[index], strides[index]);
        let (first, count) = slice_bounds(start, ends[index], stride, size)?;
        axes[axis].size = count;
        axes[axis].start = first;
        axes[axis].stride = stride.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
    }
    Ok(vec![copy_axes(step, &input, &mut axes, 0)?])
}

/// The first index of a slice and how many there are; bounds can lie outside.
fn slice_bounds(start: i64, end: i64, stride: i64, size: i64) -> Result<(i64, usize), KernelError> {
    if stride == 0 {
        return Err(KernelError::Range(4));
    }
    let absolute = |bound: i64| {
        if bound < 0 {
            bound.saturating_add(size)
        } else {
            bound
        }
    };
    let (low, high) = if stride > 0 {
        (0, size)
    } else {
        (-1, size - 1)
    };
    let first = absolute(start).clamp(low.max(0), high.max(0));
    let last = absolute(end).clamp(low, high);
    let span = if stride > 0 {
        last - first
    } else {
        first.min(size - 1) - last
    };
    let count = span.max(0) as u64;
    Ok((first, count.div_ceil(stride.unsigned_abs()) as usize))
}

/// `Split`.
pub(crate) fn split(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let along = resolve_axis(step.call.int_attribute("axis", 0), input.dims.len())?;
    let size = input.dims[along];
    let lengths = match step.call.int_list_argument("split", 1)? {
        Some(list) => to_sizes(&list, 1)?,
        None => {
            let outputs = step.call.output_count() as i64;
            let parts = step.call.int_attribute("num_outputs", outputs).max(1) as usize;
            let length = size.div_ceil(parts);
            let rest = |part: usize| length.min(size.saturating_sub(part * length));
            (0..parts).map(rest).collect()
        }
    };
    if lengths.iter().sum::<usize>() != size {
        return Err(KernelError::Range(1).into());
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(lengths.len());
    for length in lengths {
        let mut axes = array_axes(&input);
        axes[along].size = length;
        axes[along].start = start;
        start += length as i64;
        parts.push(copy_axes(step, &input, &mut axes, 0)?);
    }
    Ok(parts)
}

/// `Concat`.
pub(crate) fn concat(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let parts: Vec<Array> = (0..step.values.len())
        .map(|index| step.native_array(index))
        .collect::<Result<_, _>>()?;
    let rank = parts.first().ok_or(KernelError::Missing(0))?.dims.len();
    let default = if step.call.opset < 4 { 1 } else { 0 };
    let along = resolve_axis(step.call.int_attribute("axis", default), rank)?;
    let parts: Vec<&Array> = parts.iter().collect();
    Ok(vec![join_arrays(step, &parts, along)?])
}

/// Joins arrays along an axis.
pub(crate) fn join_arrays(
    step: &mut Step<'_, '_>,
    parts: &[&Array],
    along: usize,
) -> Result<Array, GpuError> {
    let first = *parts.first().ok_or(KernelError::Missing(0))?;
    let mut dims = first.dims.clone();
    dims[along] = 0;
    for part in parts {
        let mut others = part.dims.clone();
        if others.len() != dims.len() {
            return Err(KernelError::Shapes(dims, others).into());
        }
        let length = std::mem::replace(&mut others[along], dims[along]);
        if others != dims || part.dtype != first.dtype {
            return Err(KernelError::Shapes(first.dims.clone(), part.dims.clone()).into());
        }
        dims[along] += length;
    }
    let target = step.stream.allocate_array(first.dtype, &dims)?;
    let written = strides(&dims);
    let mut start = 0;
    for part in parts {
        let mut axes = array_axes(part);
        for (axis, &written) in axes.iter_mut().zip(&written) {
            axis.written = written;
        }
        record_copy(step, part, 0, &target, start * written[along], &axes, 0)?;
        start += part.dims[along];
    }
    Ok(target)
}

/// `Pad`, in all four modes; negative padding crops.
pub(crate) fn pad(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.wide_array(0)?;
    let call = &step.call;
    let rank = input.dims.len();
    let pads = call.required_int_list("pads", 1)?;
    let along = match call.optional_input_ints(3)? {
        Some(list) => resolve_axes(&list, rank)?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * along.len() {
        return Err(KernelError::Range(1).into());
    }
    let outside = match call.text_attribute("mode", "constant") {
        "edge" => PaddingMode::Edge,
        "wrap" => PaddingMode::Wrapped,
        "reflect" => PaddingMode::Reflected,
        _ => PaddingMode::Fill,
    };
    let on_device =
        step.values.get(2).copied().flatten().is_some() && call.optional_input(2).is_none();
    let value = match call.optional_scalar_float(2)? {
        Some(value) => value,
        None => call.float_attribute("value", 0.0),
    };
    let fill = match input.dtype {
        DType::I32 => (value as i32).cast_unsigned(),
        DType::U32 => value as u32,
        _ => (value as f32).to_bits(),
    };
    let mut axes = array_axes(&input);
    for (index, &axis) in along.iter().enumerate() {
        let (before, after) = (pads[index], pads[index + along.len()]);
        let size = input.dims[axis] as i64;
        if size == 0 && outside != PaddingMode::Fill && before.saturating_add(after) > 0 {
            return Err(KernelError::Range(0).into());
        }
        let padded = size.saturating_add(before).saturating_add(after).max(0);
        axes[axis].size = padded as usize;
        axes[axis].start = before.saturating_neg();
        axes[axis].outside = outside;
    }
    if on_device {
        let fill = step.wide_array(2)?;
        return Ok(vec![copy_with_fill(step, &input, &mut axes, &fill)?]);
    }
    if input.is_double {
        let fill = match step.optional_wide(2)? {
            Some(fill) => fill,
            None => {
                let bytes = match input.dtype {
                    DType::F64 => value.to_le_bytes(),
                    _ => (value as i64).to_le_bytes(),
                };
                step.stream.upload_words(input.dtype, &[], &bytes)?
            }
        };
        return Ok(vec![copy_with_fill(step, &input, &mut axes, &fill)?]);
    }
    Ok(vec![copy_axes(step, &input, &mut axes, fill)?])
}

/// Copies runs of `run` words from places of a source; places below 0 give `fill`.
pub(crate) fn take_runs(
    step: &mut Step<'_, '_>,
    source: &Array,
    places: &[i32],
    run: usize,
    dims: &[usize],
) -> Result<Array, GpuError> {
    let target = step.stream.allocate_array(source.dtype, dims)?;
    let places = step.upload_places(places)?;
    let sizes = [target.count(), run.max(1), 0];
    let groups = Groups::Threads(target.count());
    step.record_kernel(
        &take_kernel(source.word()),
        &sizes,
        &[source, &places, &target],
        groups,
    )?;
    Ok(target)
}

/// An index counted from either end, as a place below `size`.
fn resolve_index(index: i64, size: usize, input: usize) -> Result<usize, KernelError> {
    let size = size as i64;
    let from_front = if index < 0 { index + size } else { index };
    if !(0..size).contains(&from_front) {
        return Err(KernelError::Range(input));
    }
    Ok(from_front as usize)
}

fn to_i32(place: usize) -> Result<i32, KernelError> {
    i32::try_from(place).map_err(|_| KernelError::TooLarge(place as u128))
}

/// `Gather`: slices along an axis, by indices the host has.
pub(crate) fn gather(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let along = resolve_axis(step.call.int_attribute("axis", 0), input.dims.len())?;
    let (outer, size, inner) = split_at_axis(&input.dims, along);
    let indices = step.call.input_ints(1)?;
    let mut places = Vec::with_capacity(outer * indices.len());
    for block in 0..outer {
        for &index in &indices {
            places.push(to_i32(block * size + resolve_index(index, size, 1)?)?);
        }
    }
    let index_dims = step.call.input(1)?.dims();
    let dims = [&input.dims[..along], index_dims, &input.dims[along + 1..]].concat();
    Ok(vec![take_runs(step, &input, &places, inner, &dims)?])
}

/// Places of the elements that `GatherElements` and `ScatterElements` name.
pub(crate) fn element_places(
    step: &Step<'_, '_>,
    dims: &[usize],
    input: usize,
) -> Result<Vec<i32>, KernelError> {
    let along = resolve_axis(step.call.int_attribute("axis", 0), dims.len())?;
    let indices = step.call.input_ints(input)?;
    let index_dims = step.call.input(input)?.dims();
    let fits = index_dims.len() == dims.len()
        && (0..dims.len()).all(|axis| axis == along || index_dims[axis] <= dims[axis]);
    if !fits {
        return Err(KernelError::Shapes(dims.to_vec(), index_dims.to_vec()));
    }
    let steps = strides(dims);
    let one = |(at, &index): (usize, &i64)| {
        let mut own = souk_reference::shape::index_of(at, index_dims);
        own[along] = resolve_index(index, dims[along], input)?;
        to_i32(own.iter().zip(&steps).map(|(at, step)| at * step).sum())
    };
    indices.iter().enumerate().map(one).collect()
}

/// `GatherElements`.
pub(crate) fn gather_elements(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let places = element_places(step, &input.dims, 1)?;
    let dims = step.call.input(1)?.dims().to_vec();
    Ok(vec![take_runs(step, &input, &places, 1, &dims)?])
}

/// Places of the slices that tuples of indices name, and how many indices a tuple has.
pub(crate) fn tuple_places(
    step: &Step<'_, '_>,
    dims: &[usize],
    shared: usize,
) -> Result<(Vec<i32>, usize), KernelError> {
    let tensor = step.call.input(1)?;
    let width = *tensor.dims().last().ok_or(KernelError::Range(1))?;
    if tensor.dims().len() <= shared || shared + width > dims.len() || width == 0 {
        return Err(KernelError::Range(1));
    }
    let indices = step.call.input_ints(1)?;
    let tuples = indices.len() / width;
    let samples: usize = dims[..shared].iter().product();
    let each = tuples.checked_div(samples).unwrap_or(0).max(1);
    let named = &dims[shared..shared + width];
    let one = |(at, tuple): (usize, &[i64])| {
        let mut flat = at / each;
        for (&index, &size) in tuple.iter().zip(named) {
            flat = flat * size + resolve_index(index, size, 1)?;
        }
        to_i32(flat)
    };
    let places = indices.chunks_exact(width).enumerate().map(one);
    Ok((places.collect::<Result<_, _>>()?, width))
}

/// `GatherND`.
pub(crate) fn gather_nd(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let shared = step.call.int_attribute("batch_dims", 0).max(0) as usize;
    let (places, width) = tuple_places(step, &input.dims, shared)?;
    let index_dims = step.call.input(1)?.dims();
    let rest = &input.dims[shared + width..];
    let dims = [&index_dims[..index_dims.len() - 1], rest].concat();
    let run = rest.iter().product();
    Ok(vec![take_runs(step, &input, &places, run, &dims)?])
}
