//! Differentiates reductions over axes, such as sums and means, and the normalisations that use
//! them: softmax, layer norm, RMS norm and batch norm.

use super::Gradients;
use crate::gradient::GradientError;
use crate::gradient::node_view::NodeView;
use crate::gradient::writer::Writer;

/// The operator set from which `Softmax` works along one axis.
const ONE_AXIS_OPSET: i64 = 13;

/// The normalisations' `epsilon`, if the node states none.
const EPSILON: f32 = 1e-5;

/// `Softmax`: `y·(G − Σ G·y)`. `LogSoftmax`: `G − exp(y)·Σ G`.
pub(super) fn differentiate_softmax(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let rank = view.input_dims(0)?.len();
    let is_last = view.axis(
        if writer.opset() < ONE_AXIS_OPSET {
            1
        } else {
            -1
        },
        rank,
    )?;
    if writer.opset() < ONE_AXIS_OPSET && is_last + 1 != rank {
        return Err(view.unsupported("it normalises over several axes"));
    }
    let y = view.output()?;
    let gradient = if view.node.proto.op_type() == "Softmax" {
        let product = writer.add("Mul", &[gradient, y]);
        let sum = writer.reduce_sum(&product, &[is_last]);
        let rest = writer.add("Sub", &[gradient, &sum]);
        writer.add("Mul", &[y, &rest])
    } else {
        let sum = writer.reduce_sum(gradient, &[is_last]);
        let shares = writer.add("Exp", &[y]);
        let share = writer.add("Mul", &[&shares, &sum]);
        writer.add("Sub", &[gradient, &share])
    };
    Ok(vec![Some(gradient)])
}

/// Returns the axes of a reduction: an attribute or an input, or all.
fn reduced_axes(view: &NodeView<'_>, rank: usize) -> Result<Vec<usize>, GradientError> {
    let has_input = view.node.inputs.get(1).copied().flatten().is_some();
    let axes = match (view.node.proto.ints("axes"), has_input) {
        (Some(axes), _) => axes.to_vec(),
        (None, true) => {
            let axes = view.input_ints(1);
            let axes = axes.ok_or_else(|| view.unsupported("its axes are computed in the run"))?;
            axes.to_vec()
        }
        (None, false) => Vec::new(),
    };
    if axes.is_empty() {
        let is_noop = view.int("noop_with_empty_axes", 0) != 0;
        return Ok(if is_noop {
            Vec::new()
        } else {
            (0..rank).collect()
        });
    }
    axes.into_iter()
        .map(|axis| view.find_axis(axis, rank))
        .collect()
}

/// `ReduceSum` and `ReduceMean`: the gradient goes to each summed element.
pub(super) fn differentiate_reduction(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let dims = view.input_dims(0)?;
    let axes = reduced_axes(view, dims.len())?;
    let mut kept = dims.clone();
    axes.iter().for_each(|axis| kept[*axis] = 1);
    let gradient = writer.reshape(gradient, &kept);
    let count: usize = axes.iter().map(|axis| dims[*axis]).product();
    let scaled = match view.node.proto.op_type() {
        "ReduceMean" => writer.scale(&gradient, 1.0 / count as f64),
        _ => gradient,
    };
    let dims: Vec<i64> = dims.iter().map(|dim| *dim as i64).collect();
    let dims = writer.add_ints(&dims);
    Ok(vec![Some(writer.add("Expand", &[&scaled, &dims]))])
}

/// Writes the mean over axes, which keep the extent 1.
fn write_mean(writer: &mut Writer, value: &str, axes: &[usize], dims: &[usize]) -> String {
    let count: usize = axes.iter().map(|axis| dims[*axis]).product();
    let sum = writer.reduce_sum(value, axes);
    writer.scale(&sum, 1.0 / count as f64)
}

/// `LayerNormalization`: with `n` the normalised value and `h = G·scale`, the gradient of the input
/// is `(h − mean h − n·mean(h·n)) / deviation`.
pub(super) fn differentiate_layer_norm(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let (x, dims) = (view.input(0)?, view.input_dims(0)?);
    let first = view.axis(-1, dims.len())?;
    let axes: Vec<usize> = (first..dims.len()).collect();
    let epsilon = view.node.proto.float("epsilon").unwrap_or(EPSILON);
    let mean = write_mean(writer, x, &axes, &dims);
    let centred = writer.add("Sub", &[x, &mean]);
    let squares = writer.add("Mul", &[&centred, &centred]);
    let variance = write_mean(writer, &squares, &axes, &dims);
    let epsilon = writer.add_float(f64::from(epsilon));
    let variance = writer.add("Add", &[&variance, &epsilon]);
    let deviation = writer.add("Sqrt", &[&variance]);
    let normal = writer.add("Div", &[&centred, &deviation]);
    let mut gradients = vec![None, None, None];
    if view.is_wanted(0) {
        let scaled = writer.add("Mul", &[gradient, view.input(1)?]);
        let level = write_mean(writer, &scaled, &axes, &dims);
        let product = writer.add("Mul", &[&scaled, &normal]);
        let slope = write_mean(writer, &product, &axes, &dims);
        let along = writer.add("Mul", &[&normal, &slope]);
        let rest = writer.add("Sub", &[&scaled, &level]);
        let rest = writer.add("Sub", &[&rest, &along]);
        gradients[0] = Some(writer.add("Div", &[&rest, &deviation]));
    }
    if view.is_wanted(1) {
        let product = writer.add("Mul", &[gradient, &normal]);
        gradients[1] = Some(writer.unbroadcast(&product, &dims, &view.input_dims(1)?));
    }
    if view.is_wanted(2) {
        gradients[2] = Some(writer.unbroadcast(gradient, &dims, &view.input_dims(2)?));
    }
    Ok(gradients)
}

/// `RMSNormalization`: as `LayerNormalization` without the means. With `n = x / root` and
/// `h = G·scale`, the gradient of the input is `(h − n·mean(h·n)) / root`.
pub(super) fn differentiate_rms_norm(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let (x, dims) = (view.input(0)?, view.input_dims(0)?);
    let first = view.axis(-1, dims.len())?;
    let axes: Vec<usize> = (first..dims.len()).collect();
    let epsilon = view.node.proto.float("epsilon").unwrap_or(EPSILON);
    let squares = writer.add("Mul", &[x, x]);
    let mean = write_mean(writer, &squares, &axes, &dims);
    let epsilon = writer.add_float(f64::from(epsilon));
    let mean = writer.add("Add", &[&mean, &epsilon]);
    let root = writer.add("Sqrt", &[&mean]);
    let normal = writer.add("Div", &[x, &root]);
    let mut gradients = vec![None, None];
    if view.is_wanted(0) {
        let scaled = writer.add("Mul", &[gradient, view.input(1)?]);
        let product = writer.add("Mul", &[&scaled, &normal]);
        let slope = write_mean(writer, &product, &axes, &dims);
        let along = writer.add("Mul", &[&normal, &slope]);
        let rest = writer.add("Sub", &[&scaled, &along]);
        gradients[0] = Some(writer.add("Div", &[&rest, &root]));
    }
    if view.is_wanted(1) {
        let product = writer.add("Mul", &[gradient, &normal]);
        gradients[1] = Some(writer.unbroadcast(&product, &dims, &view.input_dims(1)?));
    }
    Ok(gradients)
}

/// `BatchNormalization` with the stored statistics, which stay as they are.
pub(super) fn differentiate_batch_norm(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    if view.int("training_mode", 0) != 0 {
        return Err(view.unsupported("it computes statistics of the batch"));
    }
    if view.is_wanted(3) || view.is_wanted(4) {
        return Err(view.unsupported("its statistics are trained; name them with --freeze"));
    }
    let (x, dims) = (view.input(0)?, view.input_dims(0)?);
    if dims.len() < 2 {
        return Err(view.unsupported("its input has no axis of channels"));
    }
    let epsilon = view.node.proto.float("epsilon").unwrap_or(EPSILON);
    let mut along = vec![1; dims.len()];
    along[1] = dims[1];
    let axes: Vec<usize> = (0..dims.len()).filter(|axis| *axis != 1).collect();
    let epsilon = writer.add_float(f64::from(epsilon));
    let variance = writer.add("Add", &[view.input(4)?, &epsilon]);
    let deviation = writer.add("Sqrt", &[&variance]);
    let deviation = writer.reshape(&deviation, &along);
    let per_deviation = writer.add("Div", &[gradient, &deviation]);
    let mut gradients = vec![None, None, None];
    if view.is_wanted(0) {
        let scale = writer.reshape(view.input(1)?, &along);
        gradients[0] = Some(writer.add("Mul", &[&per_deviation, &scale]));
    }
    if view.is_wanted(1) {
        let mean = writer.reshape(view.input(3)?, &along);
        let centred = writer.add("Sub", &[x, &mean]);
        let product = writer.add("Mul", &[&per_deviation, &centred]);
        let sum = writer.reduce_sum(&product, &axes);
        gradients[1] = Some(writer.reshape(&sum, &dims[1..2]));
    }
    if view.is_wanted(2) {
        let sum = writer.reduce_sum(gradient, &axes);
        gradients[2] = Some(writer.reshape(&sum, &dims[1..2]));
    }
    Ok(gradients)
}
