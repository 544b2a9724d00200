//! Helps the other kernels to address the elements of tensors: computes strides, broadcast shapes,
//! and the indices of all elements.

use super::error::KernelError;

/// A result can have at most this many elements, 4 GiB of 64-bit floats. A few bytes of a model can
/// request any number, and an allocation that fails ends the process.
const ELEMENTS_MAX: u128 = 1 << 29;

/// Returns the number of elements of a shape, if it is below the limit. A kernel should call this
/// before it allocates a result.
pub fn element_count(dims: &[usize]) -> Result<usize, KernelError> {
    let elements: u128 = dims.iter().map(|&size| size as u128).product();
    if elements > ELEMENTS_MAX {
        return Err(KernelError::TooLarge(elements));
    }
    Ok(elements as usize)
}

/// Returns the elements to step over for each dimension, in C order.
pub fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

/// Returns the shape to which both shapes broadcast.
pub fn broadcast_shape(left: &[usize], right: &[usize]) -> Result<Vec<usize>, KernelError> {
    let rank = left.len().max(right.len());
    let size = |dims: &[usize], axis: usize| {
        let missing = rank - dims.len();
        if axis < missing {
            1
        } else {
            dims[axis - missing]
        }
    };
    let one = |axis| match (size(left, axis), size(right, axis)) {
        (one, other) if one == other => Ok(one),
        (1, other) | (other, 1) => Ok(other),
        _ => Err(KernelError::Shapes(left.to_vec(), right.to_vec())),
    };
    let dims: Vec<usize> = (0..rank).map(one).collect::<Result<_, _>>()?;
    element_count(&dims)?;
    Ok(dims)
}

/// Returns for each element of `dims` the position of the element of `source` that broadcasts
/// there. `source` must broadcast to `dims`.
pub fn broadcast_places(source: &[usize], dims: &[usize]) -> Vec<usize> {
    let missing = dims.len() - source.len();
    let inner = strides(source);
    let step = |axis: usize| match axis.checked_sub(missing) {
        Some(inside) if source[inside] != 1 => inner[inside],
        _ => 0,
    };
    let steps: Vec<usize> = (0..dims.len()).map(step).collect();
    index_offsets(dims, &steps)
}

/// Returns for each index into `dims`, in C order, the sum of index times step.
pub fn index_offsets(dims: &[usize], steps: &[usize]) -> Vec<usize> {
    let mut places = vec![0usize];
    for (&size, &step) in dims.iter().zip(steps) {
        places = places
            .iter()
            .flat_map(|&place| (0..size).map(move |index| place + index * step))
            .collect();
    }
    places
}

/// Returns the index in each dimension of the element at `place`.
pub fn index_of(mut place: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for axis in (0..dims.len()).rev() {
        index[axis] = place % dims[axis];
        place /= dims[axis];
    }
    index
}

/// Returns the elements before, along and after an axis: the three loops of most kernels. The axis
/// must exist.
pub fn split_at_axis(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    let outer = dims[..axis].iter().product();
    let inner = dims[axis + 1..].iter().product();
    (outer, dims[axis], inner)
}
