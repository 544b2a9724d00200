//! Infers the outputs of operators that rearrange elements: reshape, transpose, squeeze,
//! concatenate, split, slice, pad.

use super::operation::{Inference, axes_or_all, axis_of, to_extent};
use super::{Dims, Fact, Operation, ShapeFault};

pub(super) fn infer_reshape(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some(Some(to)) = operation.ints_or_input("shape", 1) else {
        // The target's length is the rank even if its contents are unknown.
        let rank = operation
            .input_dims(1)
            .and_then(|dims| dims.first().copied().flatten());
        let dims = rank
            .and_then(|rank| usize::try_from(rank).ok())
            .map(|rank| vec![None; rank]);
        return Operation::single_output(elem, dims);
    };
    let from = operation.input_dims(0);
    let keep_zero = operation.int_or("allowzero", 0) != 0;
    let mut dims: Dims = Vec::with_capacity(to.len());
    for (axis, &size) in to.iter().enumerate() {
        dims.push(match size {
            0 if !keep_zero => from.and_then(|from| from.get(axis).copied().flatten()),
            -1 => None,
            size => to_extent(size, axis)?,
        });
    }
    if let Some(from) = from {
        resolve_open_extent(from, &to, &mut dims)?;
    }
    Operation::single_output(elem, Some(dims))
}

/// Computes the extent that is written as -1 and checks the number of elements.
fn resolve_open_extent(from: &Dims, to: &[i64], dims: &mut Dims) -> Result<(), ShapeFault> {
    let fact = Fact::new_tensor(None, from.clone());
    let Some(count) = fact.element_count() else {
        return Ok(());
    };
    let wrong = || ShapeFault::Count {
        from: from.clone(),
        to: to.to_vec(),
    };
    let known: Option<u64> = dims
        .iter()
        .flatten()
        .try_fold(1u64, |count, dim| count.checked_mul(*dim));
    let known = known.ok_or_else(wrong)?;
    let open: Vec<usize> = (0..dims.len())
        .filter(|&axis| dims[axis].is_none())
        .collect();
    match open.as_slice() {
        [] if known == count => Ok(()),
        [] => Err(wrong()),
        [axis] if known > 0 && count % known == 0 => {
            dims[*axis] = Some(count / known);
            Ok(())
        }
        [_] if known > 0 => Err(wrong()),
        _ => Ok(()),
    }
}

pub(super) fn infer_flatten(operation: &Operation<'_>) -> Inference {
    let Some(dims) = operation.input_dims(0) else {
        return Operation::single_output(operation.input_elem(0), Some(vec![None, None]));
    };
    let axis = operation.int_or("axis", 1);
    let split = match usize::try_from(axis) {
        Ok(axis) if axis == dims.len() => axis,
        _ => axis_of(axis, dims.len())?,
    };
    let product = |part: &[Option<u64>]| Fact::new_tensor(None, part.to_vec()).element_count();
    let (rows, columns) = dims.split_at(split);
    Operation::single_output(
        operation.input_elem(0),
        Some(vec![product(rows), product(columns)]),
    )
}

pub(super) fn infer_transpose(operation: &Operation<'_>) -> Inference {
    let Some(dims) = operation.input_dims(0) else {
        return Operation::single_output(operation.input_elem(0), None);
    };
    let order: Vec<i64> = match operation.node.ints("perm") {
        Some(order) if !order.is_empty() => order.to_vec(),
        _ => (0..dims.len())
            .rev()
            .map(|axis| i64::try_from(axis).unwrap_or(0))
            .collect(),
    };
    if order.len() != dims.len() {
        return Err(ShapeFault::Rank {
            input: 0,
            expected: order.len(),
            found: dims.len(),
        });
    }
    let moved = order
        .iter()
        .map(|&axis| Ok(dims[axis_of(axis, dims.len())?]));
    Operation::single_output(
        operation.input_elem(0),
        Some(moved.collect::<Result<_, ShapeFault>>()?),
    )
}

pub(super) fn infer_squeeze(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let (Some(dims), Some(axes)) = (operation.input_dims(0), operation.ints_or_input("axes", 1))
    else {
        return Operation::single_output(elem, None);
    };
    let kept = match axes {
        Some(axes) => {
            let axes = axes.iter().map(|&axis| axis_of(axis, dims.len()));
            let axes = axes.collect::<Result<Vec<_>, _>>()?;
            let places = (0..dims.len()).filter(|axis| !axes.contains(axis));
            Some(places.map(|axis| dims[axis]).collect())
        }
        None if dims.iter().all(Option::is_some) => {
            Some(dims.iter().copied().filter(|dim| *dim != Some(1)).collect())
        }
        None => None,
    };
    Operation::single_output(elem, kept)
}

pub(super) fn infer_unsqueeze(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let axes = operation.ints_or_input("axes", 1).flatten();
    let (Some(dims), Some(axes)) = (operation.input_dims(0), axes) else {
        return Operation::single_output(elem, None);
    };
    let rank = dims.len() + axes.len();
    let axes = axes
        .iter()
        .map(|&axis| axis_of(axis, rank))
        .collect::<Result<Vec<_>, _>>()?;
    let mut rest = dims.iter().copied();
    let place = |axis: usize| {
        if axes.contains(&axis) {
            Some(1)
        } else {
            rest.next().flatten()
        }
    };
    Operation::single_output(elem, Some((0..rank).map(place).collect()))
}

pub(super) fn infer_concat(operation: &Operation<'_>) -> Inference {
    let facts: Vec<&Fact> = operation.input_facts().collect();
    let elem = operation.input_elem(0);
    let Some(first) = facts.iter().find_map(|fact| fact.dims.as_ref()) else {
        return Operation::single_output(elem, None);
    };
    let axis = axis_of(operation.int_or("axis", 1), first.len())?;
    let mut joined = first.clone();
    let mut total = Some(0u64);
    for fact in &facts {
        let Some(dims) = &fact.dims else {
            total = None;
            continue;
        };
        if dims.len() != first.len() {
            return Err(ShapeFault::Broadcast {
                left: first.clone(),
                right: dims.clone(),
            });
        }
        total = total
            .zip(dims[axis])
            .map(|(total, extent)| total.saturating_add(extent));
        for place in (0..dims.len()).filter(|&place| place != axis) {
            match (joined[place], dims[place]) {
                (Some(a), Some(b)) if a != b => {
                    return Err(ShapeFault::Broadcast {
                        left: first.clone(),
                        right: dims.clone(),
                    });
                }
                (known, other) => joined[place] = known.or(other),
            }
        }
    }
    joined[axis] = total;
    Operation::single_output(elem, Some(joined))
}

pub(super) fn infer_split(operation: &Operation<'_>) -> Inference {
    let pieces = operation.node.output.len();
    let elem = operation.input_elem(0);
    let Some(dims) = operation.input_dims(0) else {
        return Ok(vec![
            Fact {
                elem,
                ..Fact::default()
            };
            pieces
        ]);
    };
    let axis = axis_of(operation.int_or("axis", 0), dims.len())?;
    let sizes: Vec<Option<u64>> = match operation.ints_or_input("split", 1) {
        Some(Some(sizes)) => {
            let sizes = sizes
                .iter()
                .enumerate()
                .map(|(axis, &size)| to_extent(size, axis));
            sizes.collect::<Result<_, _>>()?
        }
        Some(None) => even_pieces(dims[axis], pieces),
        None => vec![None; pieces],
    };
    let piece = |index: usize| {
        let mut dims = dims.clone();
        dims[axis] = sizes.get(index).copied().flatten();
        Fact::new_tensor(elem, dims)
    };
    Ok((0..pieces).map(piece).collect())
}

/// Returns equal pieces; the last one is smaller if the total is not divisible.
fn even_pieces(total: Option<u64>, pieces: usize) -> Vec<Option<u64>> {
    let count = pieces.max(1) as u64;
    let piece = |index: u64| {
        let total = total?;
        let each = total.div_ceil(count);
        Some(each.min(total.saturating_sub(each.saturating_mul(index))))
    };
    (0..count).map(piece).collect()
}

pub(super) fn infer_slice(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some(dims) = operation.input_dims(0) else {
        return Operation::single_output(elem, None);
    };
    let mut sliced = dims.clone();
    let Some(cuts) = axis_cuts(operation, dims.len())? else {
        return Operation::single_output(elem, Some(vec![None; dims.len()]));
    };
    for (axis, cut) in cuts {
        sliced[axis] = match (dims[axis], cut) {
            (Some(size), Some(cut)) => Some(cut.axis_places(size).count() as u64),
            _ => None,
        };
    }
    Operation::single_output(elem, Some(sliced))
}

/// A slice along one axis.
#[derive(Clone, Copy)]
pub(super) struct SliceRange {
    start: i64,
    end: i64,
    step: i64,
}

impl SliceRange {
    /// Returns the places that the slice takes from an axis of `size`.
    pub(super) fn axis_places(self, size: u64) -> impl Iterator<Item = u64> {
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        let from_front = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
        let (start, end) = if self.step > 0 {
            (
                from_front(self.start).clamp(0, size),
                from_front(self.end).clamp(0, size),
            )
        } else {
            (
                from_front(self.start).clamp(-1, size - 1),
                from_front(self.end).clamp(-1, size - 1),
            )
        };
        let span = if self.step > 0 {
            end - start
        } else {
            start - end
        };
        let count = span
            .max(0)
            .unsigned_abs()
            .div_ceil(self.step.unsigned_abs().max(1));
        let step = self.step;
        (0..count).map(move |index| {
            let offset = i64::try_from(index)
                .unwrap_or(i64::MAX)
                .saturating_mul(step);
            start.saturating_add(offset).max(0).unsigned_abs()
        })
    }
}

/// Axes with their slices, `None` for unknown ones.
type AxisCuts = Vec<(usize, Option<SliceRange>)>;

/// Returns the cuts of a `Slice`; `None` if even the axes are unknown, an inner `None` if the
/// bounds are.
pub(super) fn axis_cuts(
    operation: &Operation<'_>,
    rank: usize,
) -> Result<Option<AxisCuts>, ShapeFault> {
    let Some(axes) = operation.ints_or_input("axes", 3) else {
        return Ok(None);
    };
    let starts = operation.ints_or_input("starts", 1).flatten();
    let ends = operation.ints_or_input("ends", 2).flatten();
    let steps = operation.ints_or_input("steps", 4);
    let count = starts.as_ref().or(ends.as_ref()).map_or(rank, Vec::len);
    let axes = match axes {
        Some(axes) => axes,
        None => (0..count)
            .map(|axis| i64::try_from(axis).unwrap_or(0))
            .collect(),
    };
    let cut = |(index, &axis): (usize, &i64)| {
        let axis = axis_of(axis, rank)?;
        let step = match &steps {
            Some(Some(steps)) => steps.get(index).copied(),
            Some(None) => Some(1),
            None => None,
        };
        let start = starts
            .as_ref()
            .and_then(|starts| starts.get(index).copied());
        let end = ends.as_ref().and_then(|ends| ends.get(index).copied());
        let cut = match (start, end, step) {
            (Some(start), Some(end), Some(step)) if step != 0 => {
                Some(SliceRange { start, end, step })
            }
            _ => None,
        };
        Ok((axis, cut))
    };
    axes.iter()
        .enumerate()
        .map(cut)
        .collect::<Result<_, _>>()
        .map(Some)
}

pub(super) fn infer_pad(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some(dims) = operation.input_dims(0) else {
        return Operation::single_output(elem, None);
    };
    let rank = dims.len();
    let Some(axes) = operation.ints_or_input("axes", 3) else {
        return Operation::single_output(elem, Some(vec![None; rank]));
    };
    let axes = axes_or_all(axes.as_deref(), rank)?;
    let pads = operation.ints_or_input("pads", 1).flatten();
    let mut padded = dims.clone();
    for (index, &axis) in axes.iter().enumerate() {
        let pads = pads
            .as_ref()
            .map(|pads| (pads.get(index), pads.get(index + axes.len())));
        padded[axis] = match (dims[axis], pads) {
            (Some(size), Some((Some(begin), Some(end)))) => {
                let size = i64::try_from(size).unwrap_or(i64::MAX);
                to_extent(size.saturating_add(*begin).saturating_add(*end), axis)?
            }
            _ => None,
        };
    }
    Operation::single_output(elem, Some(padded))
}

pub(super) fn infer_expand(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let (Some(dims), Some(to)) = (operation.input_dims(0), operation.input_ints(1)) else {
        return Operation::single_output(elem, None);
    };
    let to = to
        .iter()
        .enumerate()
        .map(|(axis, &size)| to_extent(size, axis));
    let to = to.collect::<Result<Dims, _>>()?;
    Operation::single_output(elem, Some(super::operation::broadcast_dims(dims, &to)?))
}

pub(super) fn infer_tile(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some(dims) = operation.input_dims(0) else {
        return Operation::single_output(elem, None);
    };
    let Some(repeats) = operation.input_ints(1) else {
        return Operation::single_output(elem, Some(vec![None; dims.len()]));
    };
    let tiled = dims
        .iter()
        .zip(repeats)
        .enumerate()
        .map(|(axis, (dim, &repeat))| {
            let repeat = to_extent(repeat, axis)?;
            Ok(dim
                .zip(repeat)
                .map(|(dim, repeat)| dim.saturating_mul(repeat)))
        });
    Operation::single_output(elem, Some(tiled.collect::<Result<_, ShapeFault>>()?))
}

/// Infers `DepthToSpace` and `SpaceToDepth`.
pub(super) fn depth_space(operation: &Operation<'_>, deeper: DepthDirection) -> Inference {
    let elem = operation.input_elem(0);
    let block = u64::try_from(operation.int_or("blocksize", 1))
        .unwrap_or(1)
        .max(1);
    let Some(dims) = operation.dims_of_rank(0, 4)? else {
        return Operation::single_output(elem, None);
    };
    let area = block.saturating_mul(block);
    let channels = |extent: u64| match deeper {
        DepthDirection::Yes => extent.saturating_mul(area),
        DepthDirection::No => extent / area,
    };
    let side = |extent: u64| match deeper {
        DepthDirection::Yes => extent / block,
        DepthDirection::No => extent.saturating_mul(block),
    };
    let moved = vec![
        dims[0],
        dims[1].map(channels),
        dims[2].map(side),
        dims[3].map(side),
    ];
    Operation::single_output(elem, Some(moved))
}

/// The direction in which elements move between channels and space.
#[derive(Clone, Copy)]
pub(super) enum DepthDirection {
    /// Into the channels.
    Yes,
    /// Out of the channels.
    No,
}

/// Infers `CenterCropPad`: the named axes get the requested extents.
pub(super) fn center_crop_pad(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some(dims) = operation.input_dims(0) else {
        return Operation::single_output(elem, None);
    };
    let axes = axes_or_all(operation.node.ints("axes"), dims.len())?;
    let mut cropped = dims.clone();
    for (index, &axis) in axes.iter().enumerate() {
        let size = operation.input_ints(1).and_then(|sizes| sizes.get(index));
        cropped[axis] = size.and_then(|&size| u64::try_from(size).ok());
    }
    Operation::single_output(elem, Some(cropped))
}
