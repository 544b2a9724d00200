//! Records the kernels of operators that only move elements, such as `Transpose` and `Slice`.

use souk_memory::DType;
use souk_reference::call::{KernelError, resolve_axes, resolve_axis};
use souk_reference::shape::{broadcast_shape, strides};

use crate::error::GpuError;
use crate::recording::{Array, Groups, Step, to_word};
use crate::shaders::copy_kernel;

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

/// Copies `axes` to a new array in C order. Positions outside the source get `fill`, an array of
/// one element on the device.
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

/// Copies `axes` to a new array in C order. Positions outside the source get `fill`.
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

/// Copies an array to a new one.
pub(crate) fn duplicate_array(step: &mut Step<'_, '_>, array: &Array) -> Result<Array, GpuError> {
    copy_axes(step, array, &mut array_axes(array), 0)
}

/// Copies a box of `sizes` from one array to another, each from an offset in elements on.
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

/// Returns the input with the output shape of a node that changes only the shape.
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
