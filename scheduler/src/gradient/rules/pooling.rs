//! Differentiates max and average poolings over images. Each offset within the window is a strided
//! part of the input, and the gradient goes back to those parts, one offset after the other.

use super::Gradients;
use super::convolution::ImageWindow;
use crate::gradient::GradientError;
use crate::gradient::node_view::NodeView;
use crate::gradient::writer::{AxisRange, Writer};

/// The most offsets of a window: each adds some ten nodes to the graph.
const OFFSETS_MAX: usize = 49;

/// Extents around a pooling, and its window.
struct Pooling {
    window: ImageWindow,
    /// Extents of the padded input over which the windows move.
    padded: [usize; 2],
    input: Vec<usize>,
    output: Vec<usize>,
}

impl Pooling {
    fn of_node(view: &NodeView<'_>) -> Result<Self, GradientError> {
        let sizes = view.node.proto.ints("kernel_shape").unwrap_or_default();
        let sizes = sizes.iter().map(|size| usize::try_from(*size).ok());
        let sizes: Option<Vec<usize>> = sizes.collect();
        let Some([height, width]) = sizes.as_deref() else {
            return Err(view.unsupported("it is not over images of two dimensions"));
        };
        let window = ImageWindow::of_node(view, [*height, *width])?;
        if height * width > OFFSETS_MAX {
            return Err(view.unsupported("its window has more than 49 elements"));
        }
        let (input, output) = (view.input_dims(0)?, view.output_dims()?);
        let padded = |axis: usize| {
            let span = (window.kernel[axis] - 1) * window.dilations[axis] + 1;
            let covered = (output[axis + 2] - 1) * window.strides[axis] + span;
            covered.max(input[axis + 2] + window.pads[axis] + window.pads[axis + 2])
        };
        Ok(Self {
            padded: [padded(0), padded(1)],
            window,
            input,
            output,
        })
    }

    /// Returns the offsets within the window, row by row.
    fn offsets(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let [height, width] = self.window.kernel;
        (0..height).flat_map(move |row| (0..width).map(move |column| [row, column]))
    }

    /// Writes the padded input.
    fn write_padded(&self, x: &str, with: f64, writer: &mut Writer) -> String {
        let [top, left] = [self.window.pads[0], self.window.pads[1]];
        let bottom = self.padded[0] - self.input[2] - top;
        let right = self.padded[1] - self.input[3] - left;
        writer.pad(x, &[0, 0, top, left, 0, 0, bottom, right], with)
    }

    /// Writes the part of the padded input that lies at an offset within each window.
    fn write_part(&self, padded: &str, offset: [usize; 2], writer: &mut Writer) -> String {
        (0..2).fold(padded.to_owned(), |value, axis| {
            let part = AxisRange {
                start: offset[axis] * self.window.dilations[axis],
                count: self.output[axis + 2],
                step: self.window.strides[axis],
            };
            writer.slice(&value, axis + 2, part)
        })
    }

    /// Writes a gradient of such a part as one of the padded input.
    fn write_back(&self, part: &str, offset: [usize; 2], writer: &mut Writer) -> String {
        let [count, channels, rows, columns] = self.output[..] else {
            unreachable!("a pooling over images has four dimensions");
        };
        let [down, across] = self.window.strides;
        let mut value = part.to_owned();
        if down > 1 || across > 1 {
            // Zeros come between the elements.
            value = writer.reshape(&value, &[count, channels, rows, 1, columns, 1]);
            let mut pads = [0; 12];
            (pads[9], pads[11]) = (down - 1, across - 1);
            value = writer.pad(&value, &pads, 0.0);
            value = writer.reshape(&value, &[count, channels, rows * down, columns * across]);
            for (axis, (extent, stride)) in
                [(rows, down), (columns, across)].into_iter().enumerate()
            {
                let part = AxisRange {
                    start: 0,
                    count: (extent - 1) * stride + 1,
                    step: 1,
                };
                value = writer.slice(&value, axis + 2, part);
            }
        }
        let mut pads = [0; 8];
        for axis in 0..2 {
            let start = offset[axis] * self.window.dilations[axis];
            let span = (self.output[axis + 2] - 1) * self.window.strides[axis] + 1;
            (pads[axis + 2], pads[axis + 6]) = (start, self.padded[axis] - span - start);
        }
        writer.pad(&value, &pads, 0.0)
    }

    /// Writes the gradient of the input from that of the padded input.
    fn cut_padding(&self, gradient: &str, writer: &mut Writer) -> String {
        (0..2).fold(gradient.to_owned(), |value, axis| {
            if self.padded[axis] == self.input[axis + 2] {
                return value;
            }
            let part = AxisRange {
                start: self.window.pads[axis],
                count: self.input[axis + 2],
                step: 1,
            };
            writer.slice(&value, axis + 2, part)
        })
    }
}

/// `MaxPool`: the gradient goes to the first largest element of each window, row by row.
pub(super) fn differentiate_max_pool(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let pooling = Pooling::of_node(view)?;
    let padded = pooling.write_padded(view.input(0)?, f64::from(f32::MIN), writer);
    let one = writer.add_float(1.0);
    // What is left of the gradient of each window for later offsets.
    let mut left = gradient.to_owned();
    let mut sum: Option<String> = None;
    for offset in pooling.offsets() {
        let part = pooling.write_part(&padded, offset, writer);
        let is_largest = writer.add("Equal", &[&part, view.output()?]);
        let is_largest = writer.cast_to_float(&is_largest);
        let taken = writer.add("Mul", &[&left, &is_largest]);
        let rest = writer.add("Sub", &[&one, &is_largest]);
        left = writer.add("Mul", &[&left, &rest]);
        let back = pooling.write_back(&taken, offset, writer);
        sum = Some(match sum {
            Some(sum) => writer.add("Add", &[&sum, &back]),
            None => back,
        });
    }
    let sum = sum.ok_or_else(|| view.unsupported("its window is empty"))?;
    Ok(vec![Some(pooling.cut_padding(&sum, writer))])
}

/// `AveragePool` and `GlobalAveragePool`.
pub(super) fn differentiate_average_pool(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    if view.node.proto.op_type() == "GlobalAveragePool" {
        let dims = view.input_dims(0)?;
        let count: usize = dims[2..].iter().product();
        let scaled = writer.scale(gradient, 1.0 / count as f64);
        let dims: Vec<i64> = dims.iter().map(|dim| *dim as i64).collect();
        let dims = writer.add_ints(&dims);
        return Ok(vec![Some(writer.add("Expand", &[&scaled, &dims]))]);
    }
    let pooling = Pooling::of_node(view)?;
    let is_padded = pooling.window.pads.iter().any(|pad| *pad > 0);
    let counts_padding = view.int("count_include_pad", 0) != 0;
    // With `ceil_mode`, the last windows may reach over the padding too.
    if view.int("ceil_mode", 0) != 0 || (is_padded && !counts_padding) {
        return Err(view.unsupported("its windows at the edges have fewer elements"));
    }
    let count = pooling.offsets().count();
    let scaled = writer.scale(gradient, 1.0 / count as f64);
    let mut offsets = pooling.offsets();
    let first = offsets
        .next()
        .ok_or_else(|| view.unsupported("its window is empty"))?;
    let first = pooling.write_back(&scaled, first, writer);
    let sum = offsets.fold(first, |sum, offset| {
        let back = pooling.write_back(&scaled, offset, writer);
        writer.add("Add", &[&sum, &back])
    });
    Ok(vec![Some(pooling.cut_padding(&sum, writer))])
}
