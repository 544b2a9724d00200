//! Computes normalisations, such as `BatchNormalization` and `LayerNormalization`, and softmax.

use souk_memory::{DType, Tensor};

use super::call::{Call, KernelError, Results, resolve_axes, resolve_axis};
use super::shape::{broadcast_places, element_count, split_at_axis};
use super::value::{from_floats, to_floats};

/// Returns mean and variance of some values.
fn compute_moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    (
        mean,
        values
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>()
            / count,
    )
}

pub(super) fn batch_norm(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let &[_, channels, ref spatial @ ..] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    let plane = element_count(spatial)?;
    let values = to_floats(input)?;
    let (scale, bias) = (call.input_floats(1)?, call.input_floats(2)?);
    let (old_mean, old_variance) = (call.input_floats(3)?, call.input_floats(4)?);
    if [&scale, &bias, &old_mean, &old_variance]
        .iter()
        .any(|list| list.len() != channels)
    {
        return Err(KernelError::Shapes(
            input.dims().to_vec(),
            vec![scale.len()],
        ));
    }
    let epsilon = call.float_attribute("epsilon", 1e-5);
    let channel_of = |place: usize| place / plane % channels;
    let training = call.is_flag_set("training_mode");
    let (mean, variance): (Vec<f64>, Vec<f64>) = if training {
        let of = |channel: usize| {
            let own = values
                .iter()
                .enumerate()
                .filter(|(place, _)| channel_of(*place) == channel);
            compute_moments(&own.map(|(_, value)| *value).collect::<Vec<f64>>())
        };
        (0..channels).map(of).unzip()
    } else {
        (old_mean.clone(), old_variance.clone())
    };
    let normal = |(place, value): (usize, f64)| {
        let at = channel_of(place);
        scale[at] * (value - mean[at]) / (variance[at] + epsilon).sqrt() + bias[at]
    };
    let results = values.into_iter().enumerate().map(normal).collect();
    let mut outputs = vec![from_floats(input.dtype(), input.dims(), results)?];
    if training {
        let momentum = call.float_attribute("momentum", 0.9);
        let dtype = call.input(3)?.dtype();
        let blended = |old: &[f64], new: &[f64]| {
            let pairs = old.iter().zip(new);
            pairs
                .map(|(old, new)| old * momentum + new * (1.0 - momentum))
                .collect::<Vec<f64>>()
        };
        outputs.push(from_floats(dtype, &[channels], blended(&old_mean, &mean))?);
        outputs.push(from_floats(
            dtype,
            &[channels],
            blended(&old_variance, &variance),
        )?);
    }
    Ok(outputs)
}

/// Normalises groups of channels of each sample to mean 0 and variance 1, then scales them.
fn by_group(call: &Call<'_>, groups: usize, scaled_by_group: bool) -> Results {
    let input = call.input(0)?;
    let &[samples, channels, ref spatial @ ..] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    if groups == 0 || channels % groups != 0 {
        return Err(KernelError::Attribute("num_groups"));
    }
    let (plane, epsilon) = (
        element_count(spatial)?,
        call.float_attribute("epsilon", 1e-5),
    );
    let (scale, bias) = (call.input_floats(1)?, call.input_floats(2)?);
    let run = channels / groups * plane;
    let mut values = to_floats(input)?;
    for lane in 0..samples * groups {
        let group = &mut values[lane * run..(lane + 1) * run];
        let (mean, variance) = compute_moments(group);
        for (place, value) in group.iter_mut().enumerate() {
            let channel = lane % groups * (channels / groups) + place / plane.max(1);
            let at = if scaled_by_group {
                lane % groups
            } else {
                channel
            };
            *value = scale[at] * (*value - mean) / (variance + epsilon).sqrt() + bias[at];
        }
    }
    Ok(vec![from_floats(input.dtype(), input.dims(), values)?])
}

pub(super) fn instance_norm(call: &Call<'_>) -> Results {
    let channels = *call.input(0)?.dims().get(1).ok_or(KernelError::Range(0))?;
    by_group(call, channels, false)
}

pub(super) fn group_norm(call: &Call<'_>) -> Results {
    let groups = usize::try_from(call.int_attribute("num_groups", 0));
    by_group(
        call,
        groups.map_err(|_| KernelError::Attribute("num_groups"))?,
        call.opset < 21,
    )
}

/// Returns the first normalised axis, and the number of elements before and from it.
fn axis_extents(call: &Call<'_>, input: &Tensor) -> Result<(usize, usize, usize), KernelError> {
    let axis = resolve_axis(call.int_attribute("axis", -1), input.dims().len())?;
    Ok((
        axis,
        input.dims()[..axis].iter().product(),
        input.dims()[axis..].iter().product(),
    ))
}

/// Broadcasts a scale or bias along a line; its shape must broadcast to `dims`.
fn broadcast_line(tensor: &Tensor, dims: &[usize]) -> Result<Vec<f64>, KernelError> {
    if super::shape::broadcast_shape(tensor.dims(), dims)? != dims {
        return Err(KernelError::Shapes(tensor.dims().to_vec(), dims.to_vec()));
    }
    let values = to_floats(tensor)?;
    Ok(broadcast_places(tensor.dims(), dims)
        .into_iter()
        .map(|place| values[place])
        .collect())
}

pub(super) fn layer_norm(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let (axis, rows, length) = axis_extents(call, input)?;
    let epsilon = call.float_attribute("epsilon", 1e-5);
    let scale = broadcast_line(call.input(1)?, &input.dims()[axis..])?;
    let bias = call
        .optional_input(2)
        .map(|bias| broadcast_line(bias, &input.dims()[axis..]))
        .transpose()?;
    let mut values = to_floats(input)?;
    let (mut means, mut deviations) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    for line in values.chunks_exact_mut(length.max(1)) {
        let (mean, variance) = compute_moments(line);
        let inverse = 1.0 / (variance + epsilon).sqrt();
        for (place, value) in line.iter_mut().enumerate() {
            let shift = bias.as_ref().map_or(0.0, |bias| bias[place]);
            *value = (*value - mean) * inverse * scale[place] + shift;
        }
        means.push(mean);
        deviations.push(inverse);
    }
    let dims = [
        &input.dims()[..axis],
        &vec![1; input.dims().len() - axis][..],
    ]
    .concat();
    Ok(vec![
        from_floats(input.dtype(), input.dims(), values)?,
        from_floats(DType::F32, &dims, means)?,
        from_floats(DType::F32, &dims, deviations)?,
    ])
}

pub(super) fn root_mean_square(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let (axis, _, length) = axis_extents(call, input)?;
    let epsilon = call.float_attribute("epsilon", 1e-5);
    let scale = broadcast_line(call.input(1)?, &input.dims()[axis..])?;
    let mut values = to_floats(input)?;
    for line in values.chunks_exact_mut(length.max(1)) {
        let square = line.iter().map(|value| value * value).sum::<f64>() / length as f64;
        let inverse = 1.0 / (square + epsilon).sqrt();
        for (value, scale) in line.iter_mut().zip(&scale) {
            *value *= inverse * scale;
        }
    }
    Ok(vec![from_floats(input.dtype(), input.dims(), values)?])
}

/// Rewrites every lane along an axis with `rewrite`.
fn rewrite_lanes(
    values: &mut [f64],
    (outer, size, inner): (usize, usize, usize),
    rewrite: impl Fn(&mut [f64]),
) {
    let mut lane = vec![0.0; size];
    for index in 0..outer * inner {
        let start = (index / inner) * size * inner + index % inner;
        for (at, value) in lane.iter_mut().enumerate() {
            *value = values[start + at * inner];
        }
        rewrite(&mut lane);
        for (at, value) in lane.iter().enumerate() {
            values[start + at * inner] = *value;
        }
    }
}

pub(super) fn lp_norm(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let axis = resolve_axis(call.int_attribute("axis", -1), input.dims().len())?;
    let one = call.int_attribute("p", 2) == 1;
    let mut values = to_floats(input)?;
    rewrite_lanes(&mut values, split_at_axis(input.dims(), axis), |lane| {
        let size = if one {
            lane.iter().map(|value| value.abs()).sum::<f64>()
        } else {
            lane.iter().map(|value| value * value).sum::<f64>().sqrt()
        };
        let size = if size == 0.0 { 1.0 } else { size };
        lane.iter_mut().for_each(|value| *value /= size);
    });
    Ok(vec![from_floats(input.dtype(), input.dims(), values)?])
}

/// Computes softmax or its logarithm; before version 13 over all dimensions from the axis on.
pub(super) fn softmax(call: &Call<'_>, logarithm: bool) -> Results {
    let input = call.input(0)?;
    let old = call.opset < 13;
    let axis = resolve_axis(
        call.int_attribute("axis", if old { 1 } else { -1 }),
        input.dims().len().max(1),
    )?;
    let dims: &[usize] = if input.dims().is_empty() {
        &[1]
    } else {
        input.dims()
    };
    let around = if old {
        (
            dims[..axis].iter().product(),
            dims[axis..].iter().product(),
            1,
        )
    } else {
        split_at_axis(dims, axis)
    };
    let mut values = to_floats(input)?;
    rewrite_lanes(&mut values, around, |lane| softmax_lane(lane, logarithm));
    Ok(vec![from_floats(input.dtype(), input.dims(), values)?])
}

fn softmax_lane(lane: &mut [f64], logarithm: bool) {
    let largest = lane.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = lane.iter().map(|value| (value - largest).exp()).sum();
    for value in lane {
        *value = if logarithm {
            *value - largest - sum.ln()
        } else {
            (*value - largest).exp() / sum
        };
    }
}

/// Normalises to mean 0 and variance 1 over the given axes.
pub(super) fn mean_variance(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let list = call
        .node
        .ints("axes")
        .filter(|it| !it.is_empty())
        .unwrap_or(&[0, 2, 3]);
    let over = resolve_axes(list, input.dims().len())?;
    let key = |place: usize| {
        let at = super::shape::index_of(place, input.dims());
        let kept = at
            .iter()
            .enumerate()
            .filter(|(axis, _)| !over.contains(axis));
        kept.fold(0, |sum, (axis, index)| sum * input.dims()[axis] + index)
    };
    let values = to_floats(input)?;
    let mut groups: std::collections::BTreeMap<usize, Vec<f64>> = Default::default();
    for (place, value) in values.iter().enumerate() {
        groups.entry(key(place)).or_default().push(*value);
    }
    let moments: std::collections::BTreeMap<usize, (f64, f64)> = groups
        .iter()
        .map(|(key, values)| (*key, compute_moments(values)))
        .collect();
    let normal = |(place, value): (usize, &f64)| {
        let (mean, variance) = moments[&key(place)];
        (value - mean) / (variance.sqrt() + 1e-9)
    };
    let results = values.iter().enumerate().map(normal).collect();
    Ok(vec![from_floats(input.dtype(), input.dims(), results)?])
}
