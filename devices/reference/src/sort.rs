//! Computes the operators that sort or find elements: `TopK`, `NonZero`, `Unique` and `Compress`.

use souk_memory::Tensor;

use super::call::{Call, KernelError, Results, resolve_axis};
use super::shape::{index_of, split_at_axis};
use super::value::{element_bytes, from_bytes, from_indices, to_floats, to_ints, to_truths};

/// A key that orders elements of any number type exactly.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) enum Key {
    Int(i128),
    Float(f64),
}

/// Returns the key of each element; zero and NaN have no sign.
pub(super) fn sort_keys(tensor: &Tensor) -> Result<Vec<Key>, KernelError> {
    if tensor.dtype().is_float() {
        let unsigned = |value: f64| {
            if value.is_nan() {
                f64::NAN
            } else {
                value + 0.0
            }
        };
        let values = to_floats(tensor)?.into_iter().map(unsigned);
        return Ok(values.map(Key::Float).collect());
    }
    Ok(to_ints(tensor)?.into_iter().map(Key::Int).collect())
}

/// Orders two keys, with NaN last.
fn compare_keys(left: Key, right: Key) -> std::cmp::Ordering {
    match (left, right) {
        (Key::Float(left), Key::Float(right)) => left.total_cmp(&right),
        _ => left
            .partial_cmp(&right)
            .unwrap_or(std::cmp::Ordering::Equal),
    }
}

/// Returns the elements of `tensor` at `places`, which must be as many as `dims` says.
pub(super) fn select_places(
    tensor: &Tensor,
    places: &[usize],
    dims: &[usize],
) -> Result<Tensor, KernelError> {
    let size = element_bytes(tensor)?;
    let mut bytes = Vec::with_capacity(places.len() * size);
    for &place in places {
        bytes.extend_from_slice(&tensor.bytes()[place * size..(place + 1) * size]);
    }
    from_bytes(tensor.dtype(), dims, bytes)
}

pub(super) fn top_k(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let rank = input.dims().len();
    let axis = resolve_axis(call.int_attribute("axis", -1), rank)?;
    let wanted = call
        .optional_scalar_int(1)?
        .or(call.node.int("k"))
        .ok_or(KernelError::Missing(1))?;
    let (outer, size, inner) = split_at_axis(input.dims(), axis);
    let wanted = usize::try_from(wanted).ok().filter(|&k| k <= size);
    let wanted = wanted.ok_or(KernelError::Range(1))?;
    let largest = call.int_attribute("largest", 1) != 0;
    let keys = sort_keys(input)?;
    let mut places = vec![0; outer * wanted * inner];
    let mut found = vec![0i64; outer * wanted * inner];
    for lane in 0..outer * inner {
        let (block, offset) = (lane / inner, lane % inner);
        let place = |index: usize| (block * size + index) * inner + offset;
        let mut order: Vec<usize> = (0..size).collect();
        // Stable, so that the first of equal elements comes first.
        order.sort_by(|&left, &right| {
            let order = compare_keys(keys[place(left)], keys[place(right)]);
            if largest { order.reverse() } else { order }
        });
        for (rank, &index) in order.iter().take(wanted).enumerate() {
            let target = (block * wanted + rank) * inner + offset;
            places[target] = place(index);
            found[target] = index as i64;
        }
    }
    let mut dims = input.dims().to_vec();
    dims[axis] = wanted;
    Ok(vec![
        select_places(input, &places, &dims)?,
        from_indices(&dims, found)?,
    ])
}

pub(super) fn non_zero(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let rank = input.dims().len();
    let marks = to_truths(input)?;
    let found: Vec<Vec<usize>> = marks
        .iter()
        .enumerate()
        .filter(|(_, mark)| **mark)
        .map(|(place, _)| index_of(place, input.dims()))
        .collect();
    let by_axis = (0..rank).flat_map(|axis| found.iter().map(move |index| index[axis] as i64));
    Ok(vec![from_indices(&[rank, found.len()], by_axis.collect())?])
}

pub(super) fn unique(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let (flat, along) = match call.node.int("axis") {
        Some(along) => (input.clone(), resolve_axis(along, input.dims().len())?),
        None => (input.to_shape([input.shape().element_count()])?, 0),
    };
    let keys = sort_keys(&flat)?;
    let (outer, size, inner) = split_at_axis(flat.dims(), along);
    let slice = |index: usize| -> Vec<Key> {
        let lanes = (0..outer * inner).map(|lane| (lane / inner, lane % inner));
        lanes
            .map(|(block, offset)| keys[(block * size + index) * inner + offset])
            .collect()
    };
    let slices: Vec<Vec<Key>> = (0..size).map(slice).collect();
    let same = |left: usize, right: usize| {
        let mut pairs = slices[left].iter().zip(&slices[right]);
        pairs.all(|(&left, &right)| compare_keys(left, right).is_eq())
    };
    // Distinct slices, by the first of each, in the requested order.
    let mut firsts: Vec<usize> = Vec::new();
    for index in 0..size {
        if !firsts.iter().any(|&first| same(first, index)) {
            firsts.push(index);
        }
    }
    if call.int_attribute("sorted", 1) != 0 {
        firsts.sort_by(|&left, &right| {
            let pairs = slices[left].iter().zip(&slices[right]);
            let mut orders = pairs.map(|(&left, &right)| compare_keys(left, right));
            orders
                .find(|order| order.is_ne())
                .unwrap_or(std::cmp::Ordering::Equal)
        });
    }
    let group = |index: usize| {
        let place = firsts.iter().position(|&first| same(first, index));
        place.expect("every slice has its first")
    };
    let inverse: Vec<usize> = (0..size).map(group).collect();
    let count = |group: usize| inverse.iter().filter(|&&it| it == group).count() as i64;
    let counts: Vec<i64> = (0..firsts.len()).map(count).collect();
    let mut dims = flat.dims().to_vec();
    dims[along] = firsts.len();
    let places: Vec<usize> = (0..outer * firsts.len() * inner)
        .map(|place| {
            let (block, rest) = (
                place / (firsts.len() * inner),
                place % (firsts.len() * inner),
            );
            (block * size + firsts[rest / inner]) * inner + rest % inner
        })
        .collect();
    let first_indices = firsts.iter().map(|&first| first as i64).collect();
    let inverse = inverse.into_iter().map(|group| group as i64).collect();
    Ok(vec![
        select_places(&flat, &places, &dims)?,
        from_indices(&[firsts.len()], first_indices)?,
        from_indices(&[size], inverse)?,
        from_indices(&[firsts.len()], counts)?,
    ])
}

pub(super) fn compress(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let condition = to_truths(call.input(1)?)?;
    let (flat, along) = match call.node.int("axis") {
        Some(along) => (input.clone(), resolve_axis(along, input.dims().len())?),
        None => (input.to_shape([input.shape().element_count()])?, 0),
    };
    let (outer, size, inner) = split_at_axis(flat.dims(), along);
    let marked = condition
        .iter()
        .take(size)
        .enumerate()
        .filter(|(_, keep)| **keep);
    let kept: Vec<usize> = marked.map(|(index, _)| index).collect();
    let mut places = Vec::with_capacity(outer * kept.len() * inner);
    for block in 0..outer {
        for &index in &kept {
            places.extend((0..inner).map(|offset| (block * size + index) * inner + offset));
        }
    }
    let mut dims = flat.dims().to_vec();
    dims[along] = kept.len();
    Ok(vec![select_places(&flat, &places, &dims)?])
}
