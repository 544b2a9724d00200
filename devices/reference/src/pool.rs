//! Computes poolings, the inverse of one (`MaxUnpool`), and `LRN`, the normalisation across
//! neighbouring channels.

use souk_memory::Tensor;

use super::call::{Call, KernelError, Results};
use super::conv::Window;
use super::layout::to_sizes;
use super::shape::{element_count, index_of, strides};
use super::sort::select_places;
use super::value::{from_floats, from_indices, to_floats};

/// Returns the window of a pooling node, and the number of elements in one plane of its input.
fn pooling_window(call: &Call<'_>, input: &Tensor) -> Result<(Window, usize), KernelError> {
    let spatial = input.dims().get(2..).ok_or(KernelError::Range(0))?;
    let kernel = call
        .node
        .ints("kernel_shape")
        .ok_or(KernelError::Attribute("kernel_shape"))?;
    let kernel = to_sizes(kernel, 0).map_err(|_| KernelError::Attribute("kernel_shape"))?;
    Ok((
        Window::read(call, kernel, spatial)?,
        element_count(spatial)?,
    ))
}

fn result_dims(input: &Tensor, window: &Window) -> Vec<usize> {
    [&input.dims()[..2], &window.output[..]].concat()
}

pub(super) fn max_pool(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let (window, plane) = pooling_window(call, input)?;
    let taps = window.input_taps(&input.dims()[2..])?;
    let values = to_floats(input)?;
    let planes = input.dims()[0] * input.dims()[1];
    let mut places = Vec::with_capacity(planes * taps.len());
    for lane in 0..planes {
        for taps in &taps {
            let mut candidates = taps.iter().map(|(place, _)| lane * plane + place);
            let first = candidates.next().ok_or(KernelError::Attribute("pads"))?;
            let best = candidates.fold(first, |best, at| {
                let larger = values[at] > values[best] || values[at].is_nan();
                if larger { at } else { best }
            });
            places.push(best);
        }
    }
    let dims = result_dims(input, &window);
    let largest = select_places(input, &places, &dims)?;
    let found = if call.is_flag_set("storage_order") {
        let columns = |place: usize| {
            let at = index_of(place % plane, &input.dims()[2..]);
            let spatial = &input.dims()[2..];
            let by_column = at
                .iter()
                .zip(spatial)
                .rev()
                .fold(0, |sum, (at, size)| sum * size + at);
            (place / plane * plane + by_column) as i64
        };
        places.iter().map(|&place| columns(place)).collect()
    } else {
        places.iter().map(|&place| place as i64).collect()
    };
    Ok(vec![largest, from_indices(&dims, found)?])
}

/// Puts elements back at the indices where a pooling found them.
pub(super) fn max_unpool(call: &Call<'_>) -> Results {
    let (input, found) = (call.input(0)?, call.input_ints(1)?);
    let spatial = &input.dims()[2..];
    let kernel = call
        .node
        .ints("kernel_shape")
        .ok_or(KernelError::Attribute("kernel_shape"))?;
    let ones = vec![1; spatial.len()];
    let steps = call
        .node
        .ints("strides")
        .filter(|it| !it.is_empty())
        .unwrap_or(&ones);
    let zeros = vec![0; 2 * spatial.len()];
    let pads = call
        .node
        .ints("pads")
        .filter(|it| !it.is_empty())
        .unwrap_or(&zeros);
    let size = |axis: usize| {
        let pads = pads[axis] + pads[axis + spatial.len()];
        (spatial[axis] as i64 - 1) * steps[axis] + kernel[axis] - pads
    };
    let own: Vec<i64> = (0..spatial.len()).map(size).collect();
    let natural = [&input.dims()[..2], &to_sizes(&own, 0)?[..]].concat();
    let dims = match call.optional_input_ints(2)? {
        Some(list) => to_sizes(&list, 2)?,
        None => natural.clone(),
    };
    // Indices refer to the natural result; a wider result has it in its first corner.
    let wider = strides(&dims);
    let mut results = vec![0.0; element_count(&dims)?];
    for (value, &place) in to_floats(input)?.into_iter().zip(&found) {
        let place = usize::try_from(place).map_err(|_| KernelError::Range(1))?;
        let at = index_of(place, &natural);
        let target: usize = at.iter().zip(&wider).map(|(at, step)| at * step).sum();
        *results.get_mut(target).ok_or(KernelError::Range(1))? = value;
    }
    Ok(vec![from_floats(input.dtype(), &dims, results)?])
}

pub(super) fn average_pool(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let with_padding = call.is_flag_set("count_include_pad");
    let (window, _) = pooling_window(call, input)?;
    let spatial = input.dims()[2..].to_vec();
    // Taps on padding count, but not those beyond it because of rounding up.
    let inside = |place: usize| -> usize {
        let at = index_of(place, &window.output);
        let along = |axis: usize| {
            let end = spatial[axis] + window.before[axis] + window.after[axis];
            let tap = |tap: &usize| at[axis] * window.strides[axis] + tap * window.dilations[axis];
            (0..window.kernel[axis]).filter(|it| tap(it) < end).count()
        };
        (0..spatial.len()).map(along).product()
    };
    pool_windows(call, |values, place| {
        let (sum, found) = values.fold((0.0, 0usize), |(sum, n), value| (sum + value, n + 1));
        sum / if with_padding { inside(place) } else { found } as f64
    })
}

pub(super) fn lp_pool(call: &Call<'_>) -> Results {
    let power = call.float_attribute("p", call.int_attribute("p", 2) as f64);
    pool_windows(call, |values, _| {
        values
            .map(|it| it.abs().powf(power))
            .sum::<f64>()
            .powf(1.0 / power)
    })
}

/// Combines each window into one element; `combine` also gets the position in the result's plane.
fn pool_windows(
    call: &Call<'_>,
    combine: impl Fn(&mut dyn Iterator<Item = f64>, usize) -> f64,
) -> Results {
    let input = call.input(0)?;
    let (window, plane) = pooling_window(call, input)?;
    let taps = window.input_taps(&input.dims()[2..])?;
    let values = to_floats(input)?;
    let planes = input.dims()[0] * input.dims()[1];
    let mut results = Vec::with_capacity(planes * taps.len());
    for lane in 0..planes {
        for (place, taps) in taps.iter().enumerate() {
            let mut inside = taps.iter().map(|(at, _)| values[lane * plane + at]);
            results.push(combine(&mut inside, place));
        }
    }
    Ok(vec![from_floats(
        input.dtype(),
        &result_dims(input, &window),
        results,
    )?])
}

/// Combines every plane into one element.
pub(super) fn global_pool(
    call: &Call<'_>,
    combine: impl Fn(&mut dyn Iterator<Item = f64>) -> f64,
) -> Results {
    let input = call.input(0)?;
    let &[samples, channels, ref spatial @ ..] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    let plane = element_count(spatial)?;
    let values = to_floats(input)?;
    let lanes = 0..samples * channels;
    let one = |lane: usize| combine(&mut values[lane * plane..(lane + 1) * plane].iter().copied());
    let dims = [&[samples, channels], &vec![1; spatial.len()][..]].concat();
    Ok(vec![from_floats(
        input.dtype(),
        &dims,
        lanes.map(one).collect(),
    )?])
}

/// Divides each element by a power of the squares in neighbouring channels.
pub(super) fn local_response(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let &[samples, channels, ref spatial @ ..] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    let size = call.int_attribute("size", 1).max(1) as usize;
    let (alpha, beta) = (
        call.float_attribute("alpha", 1e-4),
        call.float_attribute("beta", 0.75),
    );
    let bias = call.float_attribute("bias", 1.0);
    let plane = element_count(spatial)?;
    let values = to_floats(input)?;
    let mut results = Vec::with_capacity(values.len());
    for sample in 0..samples {
        for channel in 0..channels {
            let first = channel.saturating_sub((size - 1) / 2);
            let last = (channel + (size - 1).div_ceil(2)).min(channels - 1);
            for place in 0..plane {
                let at = |channel: usize| values[(sample * channels + channel) * plane + place];
                let squares: f64 = (first..=last).map(|channel| at(channel).powi(2)).sum();
                results.push(at(channel) / (bias + alpha / size as f64 * squares).powf(beta));
            }
        }
    }
    Ok(vec![from_floats(input.dtype(), input.dims(), results)?])
}
