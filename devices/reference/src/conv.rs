//! Computes convolutions over any number of spatial dimensions: `Conv`, its integer, quantised,
//! transposed and causal variants, and `Col2Im`.

use souk_memory::{DType, Tensor};

use super::call::{Call, KernelError, Results};
use super::functions::{round_half_even, sigmoid};
use super::layout::{concat_along, slice_along, to_sizes};
use super::products::Number;
use super::shape::{element_count, index_of, strides};
use super::value::{from_floats, from_ints, to_floats, to_ints};

/// The movement of a window over the spatial dimensions.
pub struct Window {
    /// Sizes of the window.
    pub kernel: Vec<usize>,
    /// Steps between neighbouring positions of the window.
    pub strides: Vec<usize>,
    /// Steps between neighbouring elements within the window.
    pub dilations: Vec<usize>,
    /// Padding before each dimension; may exceed it only as far as the output requires.
    pub before: Vec<usize>,
    /// Sizes of the result.
    pub output: Vec<usize>,
    /// Padding after each dimension.
    pub after: Vec<usize>,
}

impl Window {
    /// Reads the window from a node's attributes, for spatial sizes `input`; `kernel` must have as
    /// many sizes.
    pub fn read(call: &Call<'_>, kernel: Vec<usize>, input: &[usize]) -> Result<Self, KernelError> {
        let rank = input.len();
        if kernel.len() != rank {
            return Err(KernelError::Shapes(kernel, input.to_vec()));
        }
        let list = |name: &'static str, default: usize| match call.node.ints(name) {
            Some(list) if !list.is_empty() => {
                to_sizes(list, 0).map_err(|_| KernelError::Attribute(name))
            }
            _ => Ok(vec![default; rank]),
        };
        let (strides, dilations) = (list("strides", 1)?, list("dilations", 1)?);
        if strides.len() != rank || dilations.len() != rank || strides.contains(&0) {
            return Err(KernelError::Attribute("strides"));
        }
        let pads = match call.node.ints("pads") {
            Some(pads) if pads.len() == 2 * rank => {
                to_sizes(pads, 0).map_err(|_| KernelError::Attribute("pads"))?
            }
            _ => vec![0; 2 * rank],
        };
        let (before, after) = pads.split_at(rank);
        let mut window = Self {
            kernel,
            strides,
            dilations,
            before: before.to_vec(),
            after: after.to_vec(),
            output: vec![0; rank],
        };
        let ceil = call.is_flag_set("ceil_mode");
        let auto = call.text_attribute("auto_pad", "NOTSET").to_owned();
        for (axis, &size) in input.iter().enumerate() {
            window.resolve_padding(axis, size, &auto, ceil)?;
        }
        Ok(window)
    }

    /// Sets padding and result size of one dimension.
    fn resolve_padding(
        &mut self,
        axis: usize,
        size: usize,
        auto: &str,
        ceil: bool,
    ) -> Result<(), KernelError> {
        let stride = self.strides[axis];
        let span = (self.kernel[axis].max(1) - 1) * self.dilations[axis] + 1;
        if auto.starts_with("SAME") {
            let output = size.div_ceil(stride);
            let needed = (output.max(1) - 1) * stride + span;
            let padding = needed.saturating_sub(size);
            let small = padding / 2;
            let lower = auto == "SAME_LOWER";
            self.before[axis] = if lower { padding - small } else { small };
            self.after[axis] = padding - self.before[axis];
            self.output[axis] = output;
            return Ok(());
        }
        if auto == "VALID" {
            (self.before[axis], self.after[axis]) = (0, 0);
        }
        let padded = size + self.before[axis] + self.after[axis];
        let room = padded
            .checked_sub(span)
            .ok_or(KernelError::Shapes(vec![padded], vec![span]))?;
        let steps = if ceil {
            room.div_ceil(stride)
        } else {
            room / stride
        };
        self.output[axis] = steps + 1;
        // The last window must begin in the input or in the padding before it.
        if ceil && steps * stride >= size + self.before[axis] {
            self.output[axis] -= 1;
        }
        Ok(())
    }

    /// Returns the input index of one axis for an output index and a kernel index, unless it is
    /// padding.
    pub fn source(&self, axis: usize, output: usize, tap: usize, size: usize) -> Option<usize> {
        let at = output * self.strides[axis] + tap * self.dilations[axis];
        at.checked_sub(self.before[axis]).filter(|&at| at < size)
    }

    /// Returns for each result position the input and kernel positions of every tap inside the
    /// input.
    pub fn input_taps(&self, input: &[usize]) -> Result<Vec<Vec<(usize, usize)>>, KernelError> {
        let steps = strides(input);
        let kernel_places = element_count(&self.kernel)?;
        let one = |place: usize| {
            let at = index_of(place, &self.output);
            let tap = |kernel: usize| {
                let offsets = index_of(kernel, &self.kernel);
                let mut from = 0;
                for axis in 0..input.len() {
                    from += self.source(axis, at[axis], offsets[axis], input[axis])? * steps[axis];
                }
                Some((from, kernel))
            };
            (0..kernel_places).filter_map(tap).collect()
        };
        Ok((0..element_count(&self.output)?).map(one).collect())
    }
}

/// The sizes of a convolution's operands: samples, input channels and spatial sizes; output
/// channels.
struct Extents {
    samples: usize,
    channels: usize,
    spatial: Vec<usize>,
    filters: usize,
    groups: usize,
}

impl Extents {
    fn read(call: &Call<'_>, input: &[usize], weights: &[usize]) -> Result<Self, KernelError> {
        let mismatch = || KernelError::Shapes(input.to_vec(), weights.to_vec());
        let (&[samples, channels, ref spatial @ ..], &[filters, each, ..]) = (input, weights)
        else {
            return Err(mismatch());
        };
        let groups = call.int_attribute("group", 1).max(1) as usize;
        let fits = channels == each * groups && filters % groups == 0;
        if !fits || weights.len() != input.len() {
            return Err(mismatch());
        }
        Ok(Self {
            samples,
            channels,
            spatial: spatial.to_vec(),
            filters,
            groups,
        })
    }
}

/// Returns the result's shape, and the sums of products at each position.
fn convolve_values<T: Number>(
    call: &Call<'_>,
    input: &[T],
    input_dims: &[usize],
    weights: &[T],
    weight_dims: &[usize],
) -> Result<(Vec<usize>, Vec<T>), KernelError> {
    let extents = Extents::read(call, input_dims, weight_dims)?;
    let window = Window::read(call, weight_dims[2..].to_vec(), &extents.spatial)?;
    let dims = [&[extents.samples, extents.filters], &window.output[..]].concat();
    let taps = window.input_taps(&extents.spatial)?;
    let (plane, kernel) = (
        element_count(&extents.spatial)?,
        element_count(&window.kernel)?,
    );
    let each = extents.channels / extents.groups;
    let mut results = Vec::with_capacity(element_count(&dims)?);
    for sample in 0..extents.samples {
        for filter in 0..extents.filters {
            let group = filter / (extents.filters / extents.groups);
            for taps in &taps {
                let mut sum = T::default();
                for channel in 0..each {
                    let from = (sample * extents.channels + group * each + channel) * plane;
                    let with = (filter * each + channel) * kernel;
                    for &(place, tap) in taps {
                        sum += input[from + place] * weights[with + tap];
                    }
                }
                results.push(sum);
            }
        }
    }
    Ok((dims, results))
}

/// Adds one number to every element of a channel.
fn add_bias(values: &mut [f64], dims: &[usize], bias: &[f64]) -> Result<(), KernelError> {
    let filters = dims[1];
    if bias.len() != filters {
        return Err(KernelError::Shapes(vec![bias.len()], vec![filters]));
    }
    let plane = dims[2..].iter().product::<usize>().max(1);
    for (place, value) in values.iter_mut().enumerate() {
        *value += bias[place / plane % filters];
    }
    Ok(())
}

pub(super) fn conv(call: &Call<'_>) -> Results {
    let (input, weights) = (call.input(0)?, call.input(1)?);
    let (values, filters) = (to_floats(input)?, to_floats(weights)?);
    let (dims, mut results) =
        convolve_values(call, &values, input.dims(), &filters, weights.dims())?;
    if let Some(bias) = call.optional_input(2) {
        add_bias(&mut results, &dims, &to_floats(bias)?)?;
    }
    Ok(vec![from_floats(input.dtype(), &dims, results)?])
}

/// Computes a depthwise convolution that looks only back, and returns its last inputs for the next
/// call.
pub(super) fn causal_conv(call: &Call<'_>) -> Results {
    let (input, weights) = (call.input(0)?, call.input(1)?);
    let (&[samples, channels, _], &[_, _, kernel]) = (input.dims(), weights.dims()) else {
        return Err(KernelError::Shapes(
            input.dims().to_vec(),
            weights.dims().to_vec(),
        ));
    };
    let back = kernel.max(1) - 1;
    let nothing = from_floats(
        input.dtype(),
        &[samples, channels, back],
        vec![0.0; samples * channels * back],
    )?;
    let padded = concat_along(&[call.optional_input(3).unwrap_or(&nothing), input], 2)?;
    let length = padded.dims()[2] - back;
    let (values, filters) = (to_floats(&padded)?, to_floats(weights)?);
    let bias = call.optional_input(2).map(to_floats).transpose()?;
    let mut results = Vec::with_capacity(samples * channels * length);
    for lane in 0..samples * channels {
        let line = &values[lane * padded.dims()[2]..(lane + 1) * padded.dims()[2]];
        let channel = lane % channels;
        let filter = &filters[channel * kernel..(channel + 1) * kernel];
        let start = bias.as_ref().map_or(0.0, |bias| bias[channel]);
        for at in 0..length {
            let products = line[at..at + kernel].iter().zip(filter).map(|(a, b)| a * b);
            results.push(start + products.sum::<f64>());
        }
    }
    let activated = matches!(call.text_attribute("activation", "none"), "silu" | "swish");
    if activated {
        results
            .iter_mut()
            .for_each(|value| *value *= sigmoid(*value));
    }
    let kept = slice_along(&padded, 2, length, back)?;
    Ok(vec![
        from_floats(input.dtype(), &[samples, channels, length], results)?,
        kept,
    ])
}

/// Subtracts a zero point from integers: one for all, or one for each slice of the first dimension.
fn less_zero(tensor: &Tensor, zero: Option<&Tensor>) -> Result<Vec<i128>, KernelError> {
    let values = to_ints(tensor)?;
    let Some(zero) = zero else { return Ok(values) };
    let zeros = to_ints(zero)?;
    let slice = tensor.dims()[1..].iter().product::<usize>().max(1);
    let zero_of = |place: usize| match zeros.len() {
        1 => zeros[0],
        many => zeros[(place / slice) % many],
    };
    Ok(values
        .into_iter()
        .enumerate()
        .map(|(place, value)| value - zero_of(place))
        .collect())
}

pub(super) fn conv_integer(call: &Call<'_>) -> Results {
    let (input, weights) = (call.input(0)?, call.input(1)?);
    let values = less_zero(input, call.optional_input(2))?;
    let filters = less_zero(weights, call.optional_input(3))?;
    let (dims, results) = convolve_values(call, &values, input.dims(), &filters, weights.dims())?;
    Ok(vec![from_ints(DType::I32, &dims, results)?])
}

/// Computes a convolution of quantised values and quantises the result; weights can have one scale
/// per filter.
pub(super) fn qlinear_conv(call: &Call<'_>) -> Results {
    let (input, weights, zero) = (call.input(0)?, call.input(3)?, call.input(7)?);
    let values = less_zero(input, call.optional_input(2))?;
    let filters = less_zero(weights, call.optional_input(5))?;
    let (dims, mut results) =
        convolve_values(call, &values, input.dims(), &filters, weights.dims())?;
    let plane = dims[2..].iter().product::<usize>().max(1);
    if let Some(bias) = call.optional_input(8) {
        let bias = to_ints(bias)?;
        for (place, value) in results.iter_mut().enumerate() {
            *value += bias[place / plane % bias.len().max(1)];
        }
    }
    let scale = |index| {
        call.optional_scalar_float(index)?
            .ok_or(KernelError::Missing(index))
    };
    let (scale_in, scale_out) = (scale(1)?, scale(6)?);
    let scales = call.input_floats(4)?;
    let offset = to_floats(zero)?
        .first()
        .copied()
        .ok_or(KernelError::Range(7))?;
    let quantised = results.into_iter().enumerate().map(|(place, value)| {
        let filter = place / plane % dims[1];
        let scale = scales[filter % scales.len().max(1)] * scale_in / scale_out;
        super::quantize::clamp_to_type(zero.dtype(), round_half_even(value as f64 * scale) + offset)
    });
    Ok(vec![from_ints(zero.dtype(), &dims, quantised.collect())?])
}

/// Computes a transposed convolution: each input element adds its product with the kernel to the
/// result.
pub(super) fn conv_transpose(call: &Call<'_>) -> Results {
    let (input, weights) = (call.input(0)?, call.input(1)?);
    let mismatch = || KernelError::Shapes(input.dims().to_vec(), weights.dims().to_vec());
    let &[samples, channels, ref spatial @ ..] = input.dims() else {
        return Err(mismatch());
    };
    let &[channels_too, each, ref kernel @ ..] = weights.dims() else {
        return Err(mismatch());
    };
    let groups = call.int_attribute("group", 1).max(1) as usize;
    if channels != channels_too || kernel.len() != spatial.len() || channels % groups != 0 {
        return Err(mismatch());
    }
    let spread = TransposedWindow::read(call, kernel, spatial)?;
    let dims = [&[samples, each * groups], &spread.output[..]].concat();
    let (values, filters) = (to_floats(input)?, to_floats(weights)?);
    let (plane, target) = (element_count(spatial)?, element_count(&spread.output)?);
    let taps = element_count(kernel)?;
    let moves = spread.product_positions(kernel, spatial)?;
    let mut results = vec![0.0; element_count(&dims)?];
    for sample in 0..samples {
        for channel in 0..channels {
            let group = channel / (channels / groups);
            for filter in 0..each {
                let to = (sample * each * groups + group * each + filter) * target;
                let with = (channel * each + filter) * taps;
                let from = (sample * channels + channel) * plane;
                for &(place, tap, at) in &moves {
                    results[to + at] += values[from + place] * filters[with + tap];
                }
            }
        }
    }
    if let Some(bias) = call.optional_input(2) {
        add_bias(&mut results, &dims, &to_floats(bias)?)?;
    }
    Ok(vec![from_floats(input.dtype(), &dims, results)?])
}

/// The way that a transposed convolution spreads its input.
pub struct TransposedWindow {
    /// Steps in the result between neighbouring elements of the input.
    pub strides: Vec<usize>,
    /// Steps between neighbouring elements of the kernel.
    pub dilations: Vec<usize>,
    /// Elements to cut from the start of each dimension; negative if the result is wider.
    pub before: Vec<i64>,
    /// Sizes of the result.
    pub output: Vec<usize>,
}

impl TransposedWindow {
    /// Reads it from a node's attributes, for a kernel and an input of these sizes.
    ///
    /// # Errors
    /// [`KernelError`], with the malformed attribute.
    pub fn read(call: &Call<'_>, kernel: &[usize], spatial: &[usize]) -> Result<Self, KernelError> {
        let rank = spatial.len();
        let list = |name: &str, default: i64| match call.node.ints(name) {
            Some(list) if list.len() == rank => list.to_vec(),
            _ => vec![default; rank],
        };
        let strides = to_sizes(&list("strides", 1), 0)?;
        let dilations = to_sizes(&list("dilations", 1), 0)?;
        let extra = list("output_padding", 0);
        let wanted = call.node.ints("output_shape").filter(|it| !it.is_empty());
        let auto = call.text_attribute("auto_pad", "NOTSET");
        let pads = match call.node.ints("pads") {
            Some(pads) if pads.len() == 2 * rank => pads.to_vec(),
            _ => vec![0; 2 * rank],
        };
        let mut before = Vec::with_capacity(rank);
        let mut output = Vec::with_capacity(rank);
        for axis in 0..rank {
            let span = (kernel[axis].max(1) - 1) * dilations[axis] + 1;
            let whole = (spatial[axis].max(1) - 1) * strides[axis] + span;
            let whole = whole as i64 + extra[axis];
            let same = auto.starts_with("SAME");
            let target = match wanted {
                Some(wanted) => Some(wanted[wanted.len() - rank + axis]),
                None if same => Some((spatial[axis] * strides[axis]) as i64),
                None => None,
            };
            let (start, size) = match target {
                Some(target) => {
                    let cut = (whole - target).max(0);
                    let small = cut / 2;
                    let start = if auto == "SAME_LOWER" {
                        cut - small
                    } else {
                        small
                    };
                    (if auto == "NOTSET" { cut - small } else { start }, target)
                }
                None => (pads[axis], whole - pads[axis] - pads[axis + rank]),
            };
            before.push(start);
            output.push(usize::try_from(size).map_err(|_| KernelError::Attribute("pads"))?);
        }
        Ok(Self {
            strides,
            dilations,
            before,
            output,
        })
    }

    /// Returns the input, kernel and result positions of every product that falls into the result.
    fn product_positions(
        &self,
        kernel: &[usize],
        spatial: &[usize],
    ) -> Result<Vec<(usize, usize, usize)>, KernelError> {
        let steps = strides(&self.output);
        let mut moves = Vec::new();
        for place in 0..element_count(spatial)? {
            let from = index_of(place, spatial);
            for tap in 0..element_count(kernel)? {
                let offset = index_of(tap, kernel);
                let target = (0..spatial.len()).try_fold(0, |sum, axis| {
                    let at = from[axis] * self.strides[axis] + offset[axis] * self.dilations[axis];
                    let at = usize::try_from(at as i64 - self.before[axis]).ok()?;
                    (at < self.output[axis]).then(|| sum + at * steps[axis])
                });
                moves.extend(target.map(|target| (place, tap, target)));
            }
        }
        Ok(moves)
    }
}

/// Adds the columns of a convolution back into their image.
pub(super) fn col2im(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let image = to_sizes(&call.input_ints(1)?, 1)?;
    let kernel = to_sizes(&call.input_ints(2)?, 2)?;
    let &[samples, planes, blocks] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    let window = Window::read(call, kernel, &image)?;
    let taps = window.input_taps(&image)?;
    let kernel_places = element_count(&window.kernel)?;
    let channels = planes / kernel_places.max(1);
    if taps.len() != blocks {
        return Err(KernelError::Shapes(vec![blocks], window.output));
    }
    let values = to_floats(input)?;
    let plane = element_count(&image)?;
    let dims = [&[samples, channels], &image[..]].concat();
    let mut results = vec![0.0; element_count(&dims)?];
    for lane in 0..samples * channels {
        for (block, taps) in taps.iter().enumerate() {
            for &(place, tap) in taps {
                let from = (lane * kernel_places + tap) * blocks + block;
                results[lane * plane + place] += values[from];
            }
        }
    }
    Ok(vec![from_floats(input.dtype(), &dims, results)?])
}
