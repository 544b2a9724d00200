//! Records the kernels of `Gather`, `GatherElements` and `GatherND`, and computes the offsets of
//! the elements or slices that indices select. The scatter operators write to the same offsets.

use souk_reference::call::{KernelError, resolve_axis};
use souk_reference::shape::{split_at_axis, strides};

use crate::error::GpuError;
use crate::recording::{Array, Groups, Step};
use crate::shaders::take_kernel;

/// Copies runs of `run_length` elements from a source. The offset of a run in the source is in
/// multiples of `run_length`; a negative one gives zeros.
pub(crate) fn take_runs(
    step: &mut Step<'_, '_>,
    source: &Array,
    offsets: &[i32],
    run_length: usize,
    dims: &[usize],
) -> Result<Array, GpuError> {
    let target = step.stream.allocate_array(source.dtype, dims)?;
    let offsets = step.upload_indices(offsets)?;
    let fill = 0;
    let sizes = [target.count(), run_length.max(1), fill];
    let groups = Groups::Threads(target.count());
    step.record_kernel(
        &take_kernel(source.word()),
        &sizes,
        &[source, &offsets, &target],
        groups,
    )?;
    Ok(target)
}

/// Resolves an index, which counts from the end if it is negative, to one from 0 to `size - 1`.
fn resolve_index(index: i64, size: usize, input: usize) -> Result<usize, KernelError> {
    let size = size as i64;
    let from_front = if index < 0 { index + size } else { index };
    if !(0..size).contains(&from_front) {
        return Err(KernelError::Range(input));
    }
    Ok(from_front as usize)
}

fn to_i32(offset: usize) -> Result<i32, KernelError> {
    i32::try_from(offset).map_err(|_| KernelError::TooLarge(offset as u128))
}

/// Records `Gather`: selects slices along an axis, by indices that the host has.
pub(crate) fn gather(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let along = resolve_axis(step.call.int_attribute("axis", 0), input.dims.len())?;
    let (outer, size, inner) = split_at_axis(&input.dims, along);
    let indices = step.call.input_ints(1)?;
    let mut offsets = Vec::with_capacity(outer * indices.len());
    for block in 0..outer {
        for &index in &indices {
            offsets.push(to_i32(block * size + resolve_index(index, size, 1)?)?);
        }
    }
    let index_dims = step.call.input(1)?.dims();
    let dims = [&input.dims[..along], index_dims, &input.dims[along + 1..]].concat();
    Ok(vec![take_runs(step, &input, &offsets, inner, &dims)?])
}

/// Returns the offset of the element for each index of `GatherElements` or `ScatterElements`.
pub(crate) fn element_offsets(
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
    let offset = |(flat_index, &index): (usize, &i64)| {
        let mut position = souk_reference::shape::index_of(flat_index, index_dims);
        position[along] = resolve_index(index, dims[along], input)?;
        to_i32(
            position
                .iter()
                .zip(&steps)
                .map(|(at, step)| at * step)
                .sum(),
        )
    };
    indices.iter().enumerate().map(offset).collect()
}

/// `GatherElements`.
pub(crate) fn gather_elements(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let offsets = element_offsets(step, &input.dims, 1)?;
    let dims = step.call.input(1)?.dims().to_vec();
    Ok(vec![take_runs(step, &input, &offsets, 1, &dims)?])
}

/// Returns the offset of the slice for each tuple of indices, and the length of a tuple. The first
/// `batch_dims` dimensions are common to the input and the indices.
pub(crate) fn tuple_offsets(
    step: &Step<'_, '_>,
    dims: &[usize],
    batch_dims: usize,
) -> Result<(Vec<i32>, usize), KernelError> {
    let tensor = step.call.input(1)?;
    let length = *tensor.dims().last().ok_or(KernelError::Range(1))?;
    let indexed_dims = batch_dims + length;
    if tensor.dims().len() <= batch_dims || indexed_dims > dims.len() || length == 0 {
        return Err(KernelError::Range(1));
    }
    let indices = step.call.input_ints(1)?;
    let tuples = indices.len() / length;
    let batches: usize = dims[..batch_dims].iter().product();
    let tuples_per_batch = tuples.checked_div(batches).unwrap_or(0).max(1);
    let tuple_dims = &dims[batch_dims..indexed_dims];
    let offset = |(tuple_index, tuple): (usize, &[i64])| {
        let mut offset = tuple_index / tuples_per_batch;
        for (&index, &size) in tuple.iter().zip(tuple_dims) {
            offset = offset * size + resolve_index(index, size, 1)?;
        }
        to_i32(offset)
    };
    let offsets = indices.chunks_exact(length).enumerate().map(offset);
    Ok((offsets.collect::<Result<_, _>>()?, length))
}

/// `GatherND`.
pub(crate) fn gather_nd(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let batch_dims = step.call.int_attribute("batch_dims", 0).max(0) as usize;
    let (offsets, tuple_length) = tuple_offsets(step, &input.dims, batch_dims)?;
    let index_dims = step.call.input(1)?.dims();
    let slice_dims = &input.dims[batch_dims + tuple_length..];
    let dims = [&index_dims[..index_dims.len() - 1], slice_dims].concat();
    let run_length = slice_dims.iter().product();
    Ok(vec![take_runs(step, &input, &offsets, run_length, &dims)?])
}
