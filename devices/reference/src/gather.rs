//! Computes the operators that read or write elements at indices from another tensor: `Gather`,
//! `Scatter` and their variants, `TensorScatter` and `OneHot`.

use souk_memory::Tensor;

use super::call::{Call, KernelError, Results, resolve_axis};
use super::functions::{max_or_nan, min_or_nan};
use super::shape::{element_count, index_of, split_at_axis, strides};
use super::sort::select_places;
use super::value::{element_bytes, from_bytes, from_floats, from_ints, to_floats, to_ints};

/// Converts an index counted from either end to one counted from the front; the index must exist.
fn resolve_index(index: i64, size: usize, input: usize) -> Result<usize, KernelError> {
    let size = size as i64;
    if index < -size || index >= size {
        return Err(KernelError::Range(input));
    }
    Ok((if index < 0 { index + size } else { index }) as usize)
}

pub(super) fn gather(call: &Call<'_>) -> Results {
    let (data, at) = (call.input(0)?, call.input(1)?);
    let axis = resolve_axis(call.int_attribute("axis", 0), data.dims().len())?;
    let (outer, size, inner) = split_at_axis(data.dims(), axis);
    let indices = call.input_ints(1)?;
    let width = inner * element_bytes(data)?;
    let dims = [&data.dims()[..axis], at.dims(), &data.dims()[axis + 1..]].concat();
    element_count(&dims)?;
    let mut bytes = Vec::with_capacity(outer * indices.len() * width);
    for block in 0..outer {
        for &index in &indices {
            let from = (block * size + resolve_index(index, size, 1)?) * width;
            bytes.extend_from_slice(&data.bytes()[from..from + width]);
        }
    }
    Ok(vec![from_bytes(data.dtype(), &dims, bytes)?])
}

pub(super) fn gather_elements(call: &Call<'_>) -> Results {
    let (data, at) = (call.input(0)?, call.input(1)?);
    let axis = resolve_axis(call.int_attribute("axis", 0), data.dims().len())?;
    let places = element_places(data, at.dims(), &call.input_ints(1)?, axis)?;
    Ok(vec![select_places(data, &places, at.dims())?])
}

/// Returns the positions in `data` that an index tensor refers to along an axis.
fn element_places(
    data: &Tensor,
    dims: &[usize],
    indices: &[i64],
    axis: usize,
) -> Result<Vec<usize>, KernelError> {
    if dims.len() != data.dims().len() {
        return Err(KernelError::Shapes(data.dims().to_vec(), dims.to_vec()));
    }
    let steps = strides(data.dims());
    let place = |(place, &index): (usize, &i64)| {
        let mut at = index_of(place, dims);
        at[axis] = resolve_index(index, data.dims()[axis], 1)?;
        if at
            .iter()
            .zip(data.dims())
            .any(|(index, size)| index >= size)
        {
            return Err(KernelError::Range(1));
        }
        Ok(at
            .iter()
            .zip(&steps)
            .map(|(index, step)| index * step)
            .sum())
    };
    indices.iter().enumerate().map(place).collect()
}

pub(super) fn gather_nd(call: &Call<'_>) -> Results {
    let (data, at) = (call.input(0)?, call.input(1)?);
    let batch = call.int_attribute("batch_dims", 0).max(0) as usize;
    let depth = *at.dims().last().ok_or(KernelError::Range(1))?;
    if batch + depth > data.dims().len() || batch >= at.dims().len() {
        return Err(KernelError::Shapes(
            data.dims().to_vec(),
            at.dims().to_vec(),
        ));
    }
    let steps = strides(data.dims());
    let width = data.dims()[batch + depth..].iter().product::<usize>();
    let batch_size: usize = data.dims()[..batch].iter().product();
    let indices = call.input_ints(1)?;
    let lookups = at.dims()[..at.dims().len() - 1].iter().product::<usize>();
    let each = (lookups / batch_size.max(1)).max(1);
    let stride = data.dims()[batch..].iter().product::<usize>();
    let mut places = Vec::with_capacity(lookups * width);
    for lookup in 0..lookups {
        let mut from = (lookup / each) * stride;
        for (offset, &index) in indices[lookup * depth..(lookup + 1) * depth]
            .iter()
            .enumerate()
        {
            let axis = batch + offset;
            from += resolve_index(index, data.dims()[axis], 1)? * steps[axis];
        }
        places.extend(from..from + width);
    }
    let dims = [
        &at.dims()[..at.dims().len() - 1],
        &data.dims()[batch + depth..],
    ]
    .concat();
    Ok(vec![select_places(data, &places, &dims)?])
}

pub(super) fn scatter_elements(call: &Call<'_>) -> Results {
    let (data, at, updates) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let axis = resolve_axis(call.int_attribute("axis", 0), data.dims().len())?;
    let places = element_places(data, at.dims(), &call.input_ints(1)?, axis)?;
    Ok(vec![scatter_updates(
        data,
        updates,
        &places,
        call.text_attribute("reduction", "none"),
    )?])
}

pub(super) fn scatter_nd(call: &Call<'_>) -> Results {
    let (data, at, updates) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let depth = *at.dims().last().ok_or(KernelError::Range(1))?;
    if depth > data.dims().len() {
        return Err(KernelError::Shapes(
            data.dims().to_vec(),
            at.dims().to_vec(),
        ));
    }
    let steps = strides(data.dims());
    let width = data.dims()[depth..].iter().product::<usize>();
    let mut places = Vec::new();
    for index in call.input_ints(1)?.chunks(depth.max(1)) {
        let mut from = 0;
        for (axis, &index) in index.iter().enumerate() {
            from += resolve_index(index, data.dims()[axis], 1)? * steps[axis];
        }
        places.extend(from..from + width);
    }
    Ok(vec![scatter_updates(
        data,
        updates,
        &places,
        call.text_attribute("reduction", "none"),
    )?])
}

/// Writes `updates` into `data` at `places`, or combines them with the elements there.
fn scatter_updates(
    data: &Tensor,
    updates: &Tensor,
    places: &[usize],
    reduction: &str,
) -> Result<Tensor, KernelError> {
    if updates.shape().element_count() != places.len() {
        return Err(KernelError::Shapes(
            updates.dims().to_vec(),
            vec![places.len()],
        ));
    }
    if reduction == "none" {
        let size = element_bytes(data)?;
        let mut bytes = data.bytes().to_vec();
        for (&place, update) in places.iter().zip(updates.bytes().chunks_exact(size)) {
            bytes[place * size..(place + 1) * size].copy_from_slice(update);
        }
        return from_bytes(data.dtype(), data.dims(), bytes);
    }
    if data.dtype().is_float() {
        let combine: fn(f64, f64) -> f64 = match reduction {
            "add" => |left, right| left + right,
            "mul" => |left, right| left * right,
            "max" => max_or_nan,
            "min" => min_or_nan,
            _ => return Err(KernelError::Attribute("reduction")),
        };
        let mut values = to_floats(data)?;
        for (&place, update) in places.iter().zip(to_floats(updates)?) {
            values[place] = combine(values[place], update);
        }
        return from_floats(data.dtype(), data.dims(), values);
    }
    let combine: fn(i128, i128) -> i128 = match reduction {
        "add" => |left, right| left + right,
        "mul" => i128::wrapping_mul,
        "max" => i128::max,
        "min" => i128::min,
        _ => return Err(KernelError::Attribute("reduction")),
    };
    let mut values = to_ints(data)?;
    for (&place, update) in places.iter().zip(to_ints(updates)?) {
        values[place] = combine(values[place], update);
    }
    from_ints(data.dtype(), data.dims(), values)
}

/// Writes new entries into a cache at each sample's own index.
pub(super) fn tensor_scatter(call: &Call<'_>) -> Results {
    let (past, update) = (call.input(0)?, call.input(1)?);
    let axis = resolve_axis(call.int_attribute("axis", -2), past.dims().len())?;
    let circular = call.text_attribute("mode", "linear") == "circular";
    let batch = past.dims()[0];
    let starts = call.optional_input_ints(2)?.unwrap_or(vec![0; batch]);
    let steps = strides(past.dims());
    let limit = past.dims()[axis];
    let place = |place: usize| {
        let mut at = index_of(place, update.dims());
        let start = usize::try_from(starts[at[0]]).map_err(|_| KernelError::Range(2))?;
        at[axis] += start;
        if circular {
            at[axis] %= limit;
        }
        if at[axis] >= limit {
            return Err(KernelError::Range(2));
        }
        Ok(at
            .iter()
            .zip(&steps)
            .map(|(index, step)| index * step)
            .sum())
    };
    let places: Vec<usize> = (0..update.shape().element_count())
        .map(place)
        .collect::<Result<_, KernelError>>()?;
    Ok(vec![scatter_updates(past, update, &places, "none")?])
}

pub(super) fn one_hot(call: &Call<'_>) -> Results {
    let (at, values) = (call.input(0)?, call.input(2)?);
    let depth = call
        .optional_scalar_int(1)?
        .ok_or(KernelError::Missing(1))?;
    let depth_size = usize::try_from(depth).map_err(|_| KernelError::Range(1))?;
    let axis = resolve_axis(call.int_attribute("axis", -1), at.dims().len() + 1)?;
    let mut dims = at.dims().to_vec();
    dims.insert(axis, depth_size);
    let (outer, _, inner) = split_at_axis(&dims, axis);
    let size = element_bytes(values)?;
    let (off, on) = values.bytes().split_at(size);
    let hot: Vec<i64> = to_floats(at)?.into_iter().map(|it| it as i64).collect();
    let mut bytes = Vec::with_capacity(element_count(&dims)? * size);
    for block in 0..outer {
        for class in 0..depth {
            for offset in 0..inner {
                let index = hot[block * inner + offset];
                let index = if index < 0 { index + depth } else { index };
                bytes.extend_from_slice(if index == class { &on[..size] } else { off });
            }
        }
    }
    Ok(vec![from_bytes(values.dtype(), &dims, bytes)?])
}
