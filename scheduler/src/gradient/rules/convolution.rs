//! Differentiates convolutions over images. The gradient of the input is a transposed convolution
//! of the output's gradient with the weights; that of the weights is a convolution of the input
//! with the output's gradient; that of the bias is the sum of the output's gradient per channel.
//! The rules of pooling also use [`ImageWindow`].

use souk_onnx::NodeProto;

use super::Gradients;
use crate::gradient::GradientError;
use crate::gradient::node_view::NodeView;
use crate::gradient::writer::{AxisRange, Writer};

/// The window of a convolution or a pooling over images. Its pairs are height, then width.
pub(super) struct ImageWindow {
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    /// The padding: rows above, columns to the left, rows below, columns to the right.
    pub pads: [usize; 4],
}

impl ImageWindow {
    /// Reads the window of a convolution or pooling node from its attributes; `kernel` is the
    /// height and the width of its kernel. Fails if the node is not over images of two dimensions.
    pub fn of_node(view: &NodeView<'_>, kernel: [usize; 2]) -> Result<Self, GradientError> {
        let sizes = |name: &str, default: usize| -> Result<Vec<usize>, GradientError> {
            let Some(found) = view.node.proto.ints(name) else {
                // Enough for pads, which have four sizes.
                return Ok(vec![default; 4]);
            };
            let found = found.iter().map(|it| usize::try_from(*it).ok());
            let found: Option<Vec<usize>> = found.collect();
            found.ok_or_else(|| view.unsupported("its window has negative sizes"))
        };
        let (strides, dilations) = (sizes("strides", 1)?, sizes("dilations", 1)?);
        let dims = (view.input_dims(0)?, view.output_dims()?);
        let rank = "it is not over images of two dimensions";
        if dims.0.len() != 4 || strides.len() < 2 || dilations.len() < 2 {
            return Err(view.unsupported(rank));
        }
        let pads = match view.node.proto.string("auto_pad").unwrap_or("NOTSET") {
            "NOTSET" => sizes("pads", 0)?,
            "VALID" => vec![0; 4],
            kind @ ("SAME_UPPER" | "SAME_LOWER") => {
                let total = |axis: usize| {
                    let span = (kernel[axis] - 1) * dilations[axis] + 1;
                    let covered = (dims.1[axis + 2] - 1) * strides[axis] + span;
                    covered.saturating_sub(dims.0[axis + 2])
                };
                let less = |axis: usize| total(axis) / 2;
                let more = |axis: usize| total(axis) - total(axis) / 2;
                match kind {
                    "SAME_UPPER" => vec![less(0), less(1), more(0), more(1)],
                    _ => vec![more(0), more(1), less(0), less(1)],
                }
            }
            _ => return Err(view.unsupported("its auto_pad is unknown")),
        };
        let pads = pads.try_into().map_err(|_| view.unsupported(rank))?;
        Ok(Self {
            kernel,
            strides: [strides[0], strides[1]],
            dilations: [dilations[0], dilations[1]],
            pads,
        })
    }

    fn to_ints(sizes: &[usize]) -> Vec<i64> {
        sizes.iter().map(|size| *size as i64).collect()
    }
}

/// Writes the gradients of a `Conv` over images with one group: those of its input, weights and
/// bias, as far as they are needed. `gradient` names the gradient of its output.
pub(super) fn differentiate_conv(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    if view.int("group", 1) != 1 {
        return Err(view.unsupported("it has several groups of channels"));
    }
    let weights = view.input_dims(1)?;
    let [_, _, height, width] = weights[..] else {
        return Err(view.unsupported("it is not over images of two dimensions"));
    };
    let window = ImageWindow::of_node(view, [height, width])?;
    let (input, output) = (view.input_dims(0)?, view.output_dims()?);
    let mut gradients = vec![None, None];
    if view.is_wanted(0) {
        gradients[0] = Some(write_input_gradient(view, gradient, &window, writer)?);
    }
    if view.is_wanted(1) {
        // The weights' gradient sums over the batch. So in this convolution the channels are the
        // batch, the batch is the channels, and the output's gradient is the kernel; strides and
        // dilations change places.
        let swapped = writer.transpose(view.input(0)?, &[1, 0, 2, 3]);
        let pads = [0, 0, window.pads[0], window.pads[1]];
        let pads = [pads, [0, 0, window.pads[2], window.pads[3]]].concat();
        let padded = writer.pad(&swapped, &pads, 0.0);
        let kernels = writer.transpose(gradient, &[1, 0, 2, 3]);
        let node = NodeProto::for_operator("Conv", &[&padded, &kernels], "")
            .with("strides", ImageWindow::to_ints(&window.dilations))
            .with("dilations", ImageWindow::to_ints(&window.strides));
        let mut product = writer.add_node(node);
        // If no window covers the last rows of the padded input, the result has more rows than the
        // kernel: cut them off.
        for axis in 0..2 {
            let padded = input[axis + 2] + window.pads[axis] + window.pads[axis + 2];
            let span = (output[axis + 2] - 1) * window.strides[axis] + 1;
            let found = (padded - span) / window.dilations[axis] + 1;
            if found != window.kernel[axis] {
                let part = AxisRange {
                    start: 0,
                    count: window.kernel[axis],
                    step: 1,
                };
                product = writer.slice(&product, axis + 2, part);
            }
        }
        gradients[1] = Some(writer.transpose(&product, &[1, 0, 2, 3]));
    }
    if view.is_wanted(2) {
        let sum = writer.reduce_sum(gradient, &[0, 2, 3]);
        gradients.push(Some(writer.reshape(&sum, &[output[1]])));
    }
    Ok(gradients)
}

/// Writes the gradient of a convolution's input, and returns its name.
fn write_input_gradient(
    view: &NodeView<'_>,
    gradient: &str,
    window: &ImageWindow,
    writer: &mut Writer,
) -> Result<String, GradientError> {
    let (input, output) = (view.input_dims(0)?, view.output_dims()?);
    let mut missing = [0; 2];
    for axis in 0..2 {
        let span = (window.kernel[axis] - 1) * window.dilations[axis] + 1;
        let covered = (output[axis + 2] - 1) * window.strides[axis] + span;
        let padded = input[axis + 2] + window.pads[axis] + window.pads[axis + 2];
        // No window covers these last rows or columns of the padded input, so their gradient is
        // zero.
        missing[axis] = padded - covered;
    }
    let node = NodeProto::for_operator("ConvTranspose", &[gradient, view.input(1)?], "")
        .with("strides", ImageWindow::to_ints(&window.strides))
        .with("dilations", ImageWindow::to_ints(&window.dilations));
    // All that the windows cover, with the padding, which is cut off afterwards: not every device
    // can leave it out at each side by itself.
    let whole = writer.add_node(node);
    let mut whole = writer.pad(&whole, &[0, 0, 0, 0, 0, 0, missing[0], missing[1]], 0.0);
    for axis in 0..2 {
        if window.pads[axis] + window.pads[axis + 2] > 0 {
            let part = AxisRange {
                start: window.pads[axis],
                count: input[axis + 2],
                step: 1,
            };
            whole = writer.slice(&whole, axis + 2, part);
        }
    }
    Ok(whole)
}
