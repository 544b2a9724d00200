//! Computes the operators that move or select elements without arithmetic, such as `Reshape`,
//! `Concat` and `Slice`, and `Shape` and `Size`.

use souk_memory::Tensor;

use super::call::{Call, KernelError, Results, resolve_axes, resolve_axis};
use super::shape::{
    broadcast_places, broadcast_shape, element_count, index_offsets, split_at_axis, strides,
};
use super::sort::select_places;
use super::value::{element_bytes, from_bytes, from_indices, to_indices};

pub(super) fn identity(call: &Call<'_>) -> Results {
    Ok(vec![call.input(0)?.clone()])
}

pub(super) fn reshape(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let wanted = call.int_list_argument("shape", 1)?.unwrap_or_default();
    let allow_zero = call.is_flag_set("allowzero");
    let mut dims = Vec::with_capacity(wanted.len());
    for (axis, &size) in wanted.iter().enumerate() {
        dims.push(match size {
            -1 => usize::MAX,
            0 if !allow_zero => *input.dims().get(axis).ok_or(KernelError::Range(1))?,
            size => usize::try_from(size).map_err(|_| KernelError::Range(1))?,
        });
    }
    if let Some(open) = dims.iter().position(|&size| size == usize::MAX) {
        dims[open] = 1;
        let known = element_count(&dims)?;
        let all = input.shape().element_count();
        dims[open] = all.checked_div(known).unwrap_or(0);
    }
    Ok(vec![input.to_shape(dims)?])
}

pub(super) fn flatten(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let rank = input.dims().len();
    let at = call.int_attribute("axis", 1);
    let at = if at == rank as i64 {
        rank
    } else {
        resolve_axis(at, rank)?
    };
    let (rows, columns) = input.dims().split_at(at);
    Ok(vec![input.to_shape([
        rows.iter().product(),
        columns.iter().product(),
    ])?])
}

pub(super) fn squeeze(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let rank = input.dims().len();
    let gone = match call.int_list_argument("axes", 1)? {
        Some(list) => resolve_axes(&list, rank)?,
        None => (0..rank).filter(|&axis| input.dims()[axis] == 1).collect(),
    };
    let kept = (0..rank).filter(|axis| !gone.contains(axis));
    let dims: Vec<usize> = kept.map(|axis| input.dims()[axis]).collect();
    Ok(vec![input.to_shape(dims)?])
}

pub(super) fn unsqueeze(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let list = call
        .int_list_argument("axes", 1)?
        .ok_or(KernelError::Missing(1))?;
    let rank = input.dims().len() + list.len();
    let new = resolve_axes(&list, rank)?;
    let mut old = input.dims().iter().copied();
    let size = |axis| {
        if new.contains(&axis) {
            Some(1)
        } else {
            old.next()
        }
    };
    let dims: Option<Vec<usize>> = (0..rank).map(size).collect();
    Ok(vec![input.to_shape(dims.ok_or(KernelError::Range(1))?)?])
}

pub(super) fn transpose(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let rank = input.dims().len();
    let order = match call.node.ints("perm") {
        Some(order) => resolve_axes(order, rank)?,
        None => (0..rank).rev().collect(),
    };
    if order.len() != rank {
        return Err(KernelError::Attribute("perm"));
    }
    Ok(vec![permute_axes(input, &order)?])
}

/// Reorders the axes of a tensor.
pub(super) fn permute_axes(input: &Tensor, order: &[usize]) -> Result<Tensor, KernelError> {
    let steps = strides(input.dims());
    let dims: Vec<usize> = order.iter().map(|&axis| input.dims()[axis]).collect();
    let steps: Vec<usize> = order.iter().map(|&axis| steps[axis]).collect();
    select_places(input, &index_offsets(&dims, &steps), &dims)
}

pub(super) fn concat(call: &Call<'_>) -> Results {
    let tensors: Vec<&Tensor> = call.inputs.iter().flatten().collect();
    let first = *tensors.first().ok_or(KernelError::Missing(0))?;
    let default = if call.opset < 4 { 1 } else { 0 };
    let along = resolve_axis(call.int_attribute("axis", default), first.dims().len())?;
    Ok(vec![concat_along(&tensors, along)?])
}

/// Joins tensors along an axis; their types and their other sizes must be equal.
pub(super) fn concat_along(tensors: &[&Tensor], along: usize) -> Result<Tensor, KernelError> {
    let first = *tensors.first().ok_or(KernelError::Missing(0))?;
    let size = element_bytes(first)?;
    let mut dims = first.dims().to_vec();
    *dims.get_mut(along).ok_or(KernelError::Range(0))? = 0;
    for tensor in tensors {
        let mut others = tensor.dims().to_vec();
        if others.len() != dims.len() {
            return Err(KernelError::Shapes(dims, others));
        }
        let length = others[along];
        others[along] = dims[along];
        if others != dims || tensor.dtype() != first.dtype() {
            return Err(KernelError::Shapes(
                first.dims().to_vec(),
                tensor.dims().to_vec(),
            ));
        }
        dims[along] += length;
    }
    let outer = dims[..along].iter().product();
    let mut bytes = Vec::with_capacity(element_count(&dims)? * size);
    for block in 0..outer {
        for tensor in tensors {
            let run = tensor.dims()[along..].iter().product::<usize>() * size;
            bytes.extend_from_slice(&tensor.bytes()[block * run..(block + 1) * run]);
        }
    }
    from_bytes(first.dtype(), &dims, bytes)
}

pub(super) fn split(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let along = resolve_axis(call.int_attribute("axis", 0), input.dims().len())?;
    let (_, size, _) = split_at_axis(input.dims(), along);
    let lengths = match call.int_list_argument("split", 1)? {
        Some(list) => to_sizes(&list, 1)?,
        None => {
            let parts = call
                .int_attribute("num_outputs", call.output_count() as i64)
                .max(1) as usize;
            let length = size.div_ceil(parts);
            (0..parts)
                .map(|part| length.min(size.saturating_sub(part * length)))
                .collect()
        }
    };
    if lengths.iter().sum::<usize>() != size {
        return Err(KernelError::Range(1));
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(lengths.len());
    for length in lengths {
        parts.push(slice_along(input, along, start, length)?);
        start += length;
    }
    Ok(parts)
}

/// Returns `length` slices of a tensor from `start` on.
pub(super) fn slice_along(
    input: &Tensor,
    along: usize,
    start: usize,
    length: usize,
) -> Result<Tensor, KernelError> {
    let (outer, size, inner) = split_at_axis(input.dims(), along);
    let width = inner * element_bytes(input)?;
    let mut bytes = Vec::with_capacity(outer * length * width);
    for block in 0..outer {
        let from = (block * size + start) * width;
        bytes.extend_from_slice(&input.bytes()[from..from + length * width]);
    }
    let mut dims = input.dims().to_vec();
    dims[along] = length;
    from_bytes(input.dtype(), &dims, bytes)
}

pub(super) fn slice(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let rank = input.dims().len();
    let starts = call
        .int_list_argument("starts", 1)?
        .ok_or(KernelError::Missing(1))?;
    let ends = call
        .int_list_argument("ends", 2)?
        .ok_or(KernelError::Missing(2))?;
    let all: Vec<i64> = (0..starts.len() as i64).collect();
    let along = resolve_axes(&call.int_list_argument("axes", 3)?.unwrap_or(all), rank)?;
    let steps = call
        .optional_input_ints(4)?
        .unwrap_or(vec![1; starts.len()]);
    if ends.len() != starts.len() || along.len() != starts.len() || steps.len() != starts.len() {
        return Err(KernelError::Range(2));
    }
    let mut chosen: Vec<Vec<usize>> = input
        .dims()
        .iter()
        .map(|&size| (0..size).collect())
        .collect();
    for (index, &axis) in along.iter().enumerate() {
        let size = input.dims()[axis] as i64;
        chosen[axis] = slice_indices(starts[index], ends[index], steps[index], size)?;
    }
    select_indices(input, &chosen).map(|tensor| vec![tensor])
}

/// Returns the indices of a slice, whose bounds can count from the end and lie outside.
fn slice_indices(start: i64, end: i64, step: i64, size: i64) -> Result<Vec<usize>, KernelError> {
    if step == 0 {
        return Err(KernelError::Range(4));
    }
    let absolute = |bound: i64| {
        if bound < 0 {
            bound.saturating_add(size)
        } else {
            bound
        }
    };
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let first = absolute(start).clamp(low.max(0), high.max(0));
    let last = absolute(end).clamp(low, high);
    let mut indices = Vec::new();
    let mut at = first;
    while (step > 0 && at < last) || (step < 0 && at > last && at < size) {
        indices.push(at as usize);
        at = at.saturating_add(step);
    }
    Ok(indices)
}

/// Returns the elements at chosen indices of every axis.
fn select_indices(input: &Tensor, chosen: &[Vec<usize>]) -> Result<Tensor, KernelError> {
    let dims: Vec<usize> = chosen.iter().map(Vec::len).collect();
    element_count(&dims)?;
    let steps = strides(input.dims());
    let mut found = vec![0usize];
    for (indices, step) in chosen.iter().zip(steps) {
        let next = found
            .iter()
            .flat_map(|&at| indices.iter().map(move |index| at + index * step));
        found = next.collect();
    }
    select_places(input, &found, &dims)
}

pub(super) fn pad(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let rank = input.dims().len();
    let pads = call
        .int_list_argument("pads", 1)?
        .or(call.node.ints("paddings").map(<[i64]>::to_vec));
    let pads = pads.ok_or(KernelError::Missing(1))?;
    let along = match call.optional_input_ints(3)? {
        Some(list) => resolve_axes(&list, rank)?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * along.len() {
        return Err(KernelError::Range(1));
    }
    let mode = call.text_attribute("mode", "constant");
    let mut sources: Vec<Vec<Option<usize>>> = input
        .dims()
        .iter()
        .map(|&size| (0..size).map(Some).collect())
        .collect();
    for (index, &axis) in along.iter().enumerate() {
        let (before, after) = (pads[index], pads[index + along.len()]);
        sources[axis] = padding_sources(input.dims()[axis] as i64, before, after, mode)?;
    }
    let fill = match call.optional_input(2) {
        Some(value) => value.bytes().to_vec(),
        None => {
            let value = vec![call.float_attribute("value", 0.0)];
            super::value::from_floats(input.dtype(), &[1], value)?
                .bytes()
                .to_vec()
        }
    };
    select_or_fill(input, &sources, &fill).map(|tensor| vec![tensor])
}

/// Returns the source of each element of a padded axis; `None` is the fill.
fn padding_sources(
    size: i64,
    before: i64,
    after: i64,
    mode: &str,
) -> Result<Vec<Option<usize>>, KernelError> {
    let source = |index: i64| -> Option<i64> {
        let inside = (0..size).contains(&index);
        match mode {
            _ if inside => Some(index),
            "edge" => Some(index.clamp(0, size - 1)),
            "wrap" => Some(index.rem_euclid(size)),
            "reflect" => {
                let period = (2 * (size - 1)).max(1);
                let folded = index.rem_euclid(period);
                Some(if folded < size {
                    folded
                } else {
                    period - folded
                })
            }
            _ => None,
        }
    };
    if size == 0 && mode != "constant" && before + after > 0 {
        return Err(KernelError::Range(0));
    }
    Ok((-before..size + after)
        .map(|index| source(index).map(|it| it as usize))
        .collect())
}

/// Returns the elements at chosen indices of every axis, and `fill` where there is none.
fn select_or_fill(
    input: &Tensor,
    sources: &[Vec<Option<usize>>],
    fill: &[u8],
) -> Result<Tensor, KernelError> {
    let size = element_bytes(input)?;
    let dims: Vec<usize> = sources.iter().map(Vec::len).collect();
    let steps = strides(input.dims());
    let mut found = vec![Some(0usize)];
    element_count(&dims)?;
    for (indices, step) in sources.iter().zip(steps) {
        let next = found
            .iter()
            .flat_map(|&at| indices.iter().map(move |&index| Some(at? + index? * step)));
        found = next.collect();
    }
    let mut bytes = Vec::with_capacity(found.len() * size);
    for place in found {
        match place {
            Some(at) => bytes.extend_from_slice(&input.bytes()[at * size..(at + 1) * size]),
            None => bytes.extend_from_slice(fill.get(..size).ok_or(KernelError::Range(2))?),
        }
    }
    from_bytes(input.dtype(), &dims, bytes)
}

pub(super) fn center_crop_pad(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let rank = input.dims().len();
    let wanted = call.input_ints(1)?;
    let all: Vec<i64> = (0..rank as i64).collect();
    let along = resolve_axes(call.node.ints("axes").unwrap_or(&all), rank)?;
    let mut sources: Vec<Vec<Option<usize>>> = input
        .dims()
        .iter()
        .map(|&size| (0..size).map(Some).collect())
        .collect();
    for (&axis, &target) in along.iter().zip(&wanted) {
        let size = input.dims()[axis] as i64;
        let start = if target > size {
            -((target - size) / 2)
        } else {
            (size - target) / 2
        };
        let inside = |index: i64| (0..size).contains(&index).then_some(index as usize);
        sources[axis] = (start..start + target).map(inside).collect();
    }
    select_or_fill(input, &sources, &[0; 16]).map(|tensor| vec![tensor])
}

pub(super) fn tile(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let repeats = to_sizes(&call.input_ints(1)?, 1)?;
    if repeats.len() != input.dims().len() {
        return Err(KernelError::Range(1));
    }
    let chosen: Vec<Vec<usize>> = input
        .dims()
        .iter()
        .zip(&repeats)
        .map(|(&size, &times)| (0..size * times).map(|index| index % size).collect())
        .collect();
    select_indices(input, &chosen).map(|tensor| vec![tensor])
}

pub(super) fn expand(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let dims = broadcast_shape(input.dims(), &to_sizes(&call.input_ints(1)?, 1)?)?;
    Ok(vec![select_places(
        input,
        &broadcast_places(input.dims(), &dims),
        &dims,
    )?])
}

pub(super) fn shape(call: &Call<'_>) -> Results {
    let dims: Vec<i64> = call
        .input(0)?
        .dims()
        .iter()
        .map(|&size| size as i64)
        .collect();
    let rank = dims.len() as i64;
    let bound = |value: i64| (if value < 0 { value + rank } else { value }).clamp(0, rank) as usize;
    let (start, end) = (
        bound(call.int_attribute("start", 0)),
        bound(call.int_attribute("end", rank)),
    );
    let dims = dims.get(start..end.max(start)).unwrap_or(&[]).to_vec();
    Ok(vec![from_indices(&[dims.len()], dims)?])
}

pub(super) fn size(call: &Call<'_>) -> Results {
    Ok(vec![Tensor::scalar(
        call.input(0)?.shape().element_count() as i64
    )])
}

pub(super) fn depth_to_space(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let block = call.int_attribute("blocksize", 1).max(1) as usize;
    let &[n, c, h, w] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    let depth = c / (block * block);
    let (split, order) = if call.text_attribute("mode", "DCR") == "DCR" {
        ([n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2])
    } else {
        ([n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3])
    };
    let moved = permute_axes(&input.to_shape(split)?, &order)?;
    Ok(vec![moved.to_shape([n, depth, h * block, w * block])?])
}

pub(super) fn space_to_depth(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let block = call.int_attribute("blocksize", 1).max(1) as usize;
    let &[n, c, h, w] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    let (rows, columns) = (h / block, w / block);
    let split = input.to_shape([n, c, rows, block, columns, block])?;
    let dcr = call.text_attribute("mode", "DCR") == "DCR";
    let order = if dcr {
        [0, 3, 5, 1, 2, 4]
    } else {
        [0, 1, 3, 5, 2, 4]
    };
    let moved = permute_axes(&split, &order)?;
    Ok(vec![moved.to_shape([
        n,
        c * block * block,
        rows,
        columns,
    ])?])
}

pub(super) fn reverse_sequence(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let lengths = call.input_ints(1)?;
    let rank = input.dims().len();
    let batch = resolve_axis(call.int_attribute("batch_axis", 1), rank)?;
    let time = resolve_axis(call.int_attribute("time_axis", 0), rank)?;
    let steps = strides(input.dims());
    let place = |place: usize| {
        let index = super::shape::index_of(place, input.dims());
        let length = lengths.get(index[batch]).copied().unwrap_or(0) as usize;
        if index[time] >= length {
            return place;
        }
        place - index[time] * steps[time] + (length - 1 - index[time]) * steps[time]
    };
    let found: Vec<usize> = (0..input.shape().element_count()).map(place).collect();
    Ok(vec![select_places(input, &found, input.dims())?])
}

pub(super) fn trilu(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let shift = call.optional_scalar_int(1)?.unwrap_or(0);
    let upper = call.int_attribute("upper", 1) != 0;
    let &[.., rows, columns] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    let size = element_bytes(input)?;
    let mut bytes = input.bytes().to_vec();
    for (place, element) in bytes.chunks_exact_mut(size).enumerate() {
        let row = ((place / columns) % rows) as i64;
        let column = (place % columns) as i64;
        let keep = if upper {
            column - row >= shift
        } else {
            column - row <= shift
        };
        if !keep {
            element.fill(0);
        }
    }
    Ok(vec![from_bytes(input.dtype(), input.dims(), bytes)?])
}

/// Converts integers, which must not be negative, to sizes.
pub(super) fn to_sizes(list: &[i64], input: usize) -> Result<Vec<usize>, KernelError> {
    let size = |&value: &i64| usize::try_from(value).map_err(|_| KernelError::Range(input));
    list.iter().map(size).collect()
}

/// Reads an input as sizes.
pub(super) fn sizes_of(tensor: &Tensor, input: usize) -> Result<Vec<usize>, KernelError> {
    to_sizes(&to_indices(tensor)?, input)
}
