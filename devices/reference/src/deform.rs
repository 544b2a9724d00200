//! Computes `DeformConv`, a convolution that samples its input at positions moved by offsets, which
//! are another input.

use souk_memory::Tensor;

use super::call::{Call, KernelError, Results};
use super::conv::Window;
use super::value::{from_floats, to_floats};

/// The samples of a convolution, and its division into groups.
struct Samples<'a> {
    values: &'a [f64],
    /// Height and width.
    size: [usize; 2],
    window: Window,
    /// Two offsets per tap and position, by offset group.
    offsets: &'a [f64],
    /// One factor per tap and position, by offset group.
    mask: Option<Vec<f64>>,
    offset_groups: usize,
}

impl Samples<'_> {
    /// Returns the value of one plane at a position of the result, moved by a tap's offset.
    fn at(&self, plane: usize, group: usize, tap: usize, [row, column]: [usize; 2]) -> f64 {
        let [height, width] = [self.window.output[0], self.window.output[1]];
        let taps = self.window.kernel[0] * self.window.kernel[1];
        let place = |of: usize| (of * height + row) * width + column;
        let slot = group * taps + tap;
        let inside = [tap / self.window.kernel[1], tap % self.window.kernel[1]];
        let position = |axis: usize, at: usize| {
            let plain = at * self.window.strides[axis] + inside[axis] * self.window.dilations[axis];
            let moved = self.offsets[place(slot * 2 + axis)];
            plain as f64 - self.window.before[axis] as f64 + moved
        };
        let value = self.interpolate_bilinear(plane, [position(0, row), position(1, column)]);
        match &self.mask {
            Some(mask) => value * mask[place(slot)],
            None => value,
        }
    }

    /// Interpolates the four elements around a position; those outside are zero.
    fn interpolate_bilinear(&self, plane: usize, [y, x]: [f64; 2]) -> f64 {
        let (top, left) = (y.floor(), x.floor());
        let [height, width] = self.size;
        let element = |row: f64, column: f64| {
            let is_inside =
                row >= 0.0 && column >= 0.0 && row < height as f64 && column < width as f64;
            if !is_inside {
                return 0.0;
            }
            self.values[(plane * height + row as usize) * width + column as usize]
        };
        let (down, right) = (y - top, x - left);
        let upper = element(top, left) * (1.0 - right) + element(top, left + 1.0) * right;
        let lower =
            element(top + 1.0, left) * (1.0 - right) + element(top + 1.0, left + 1.0) * right;
        upper * (1.0 - down) + lower * down
    }
}

/// Runs `DeformConv` over two spatial dimensions.
pub(super) fn deform_conv(call: &Call<'_>) -> Results {
    let (input, weights, offsets) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let misfit = || KernelError::Shapes(input.dims().to_vec(), weights.dims().to_vec());
    let (&[samples, channels, height, width], &[filters, each, kernel_height, kernel_width]) =
        (input.dims(), weights.dims())
    else {
        return Err(misfit());
    };
    let positive = |name: &'static str| {
        let given = usize::try_from(call.int_attribute(name, 1)).ok();
        given
            .filter(|&it| it > 0)
            .ok_or(KernelError::Attribute(name))
    };
    let (groups, offset_groups) = (positive("group")?, positive("offset_group")?);
    let fits = channels == each * groups && filters % groups == 0 && channels % offset_groups == 0;
    if !fits {
        return Err(misfit());
    }
    let window = Window::read(call, vec![kernel_height, kernel_width], &[height, width])?;
    let places = [window.output[0], window.output[1]];
    let taps = kernel_height * kernel_width;
    let wanted = [samples, offset_groups * taps * 2, places[0], places[1]];
    has_dims(offsets, &wanted)?;
    let mask = call.optional_input(4);
    if let Some(mask) = mask {
        has_dims(mask, &[samples, offset_groups * taps, places[0], places[1]])?;
    }
    let (values, kernel, offsets) = (to_floats(input)?, to_floats(weights)?, to_floats(offsets)?);
    let mask = mask.map(to_floats).transpose()?;
    let bias = call.optional_input(3).map(to_floats).transpose()?;
    if bias.as_ref().is_some_and(|bias| bias.len() != filters) {
        return Err(KernelError::Range(3));
    }
    let dims = [samples, filters, places[0], places[1]];
    let mut results = Vec::with_capacity(super::shape::element_count(&dims)?);
    let read = Samples {
        values: &values,
        size: [height, width],
        window,
        offsets: &offsets,
        mask,
        offset_groups,
    };
    for sample in 0..samples {
        for filter in 0..filters {
            let group = filter / (filters / groups);
            for place in 0..places[0] * places[1] {
                let at = [place / places[1], place % places[1]];
                let mut sum = bias.as_ref().map_or(0.0, |bias| bias[filter]);
                for channel in 0..each {
                    let from = group * each + channel;
                    let offset_group =
                        sample * read.offset_groups + from / (channels / read.offset_groups);
                    let row = (filter * each + channel) * taps;
                    for tap in 0..taps {
                        let plane = sample * channels + from;
                        sum += kernel[row + tap] * read.at(plane, offset_group, tap, at);
                    }
                }
                results.push(sum);
            }
        }
    }
    Ok(vec![from_floats(input.dtype(), &dims, results)?])
}

fn has_dims(tensor: &Tensor, wanted: &[usize]) -> Result<(), KernelError> {
    if tensor.dims() == wanted {
        return Ok(());
    }
    Err(KernelError::Shapes(tensor.dims().to_vec(), wanted.to_vec()))
}
