//! Infers the outputs of `Resize` and `Upsample`: extents from sizes or scales.

use super::operation::{Inference, axes_or_all};
use super::{Dims, Operation};

/// Infers `Upsample`: scales as an attribute or as the second input.
pub(super) fn infer_upsample(operation: &Operation<'_>) -> Inference {
    let attribute = operation.node.floats("scales");
    let scales = attribute.or_else(|| operation.input_floats(1));
    let dims = operation
        .input_dims(0)
        .map(|dims| scale_dims(dims, scales, &(0..dims.len()).collect::<Vec<_>>()));
    Operation::single_output(operation.input_elem(0), dims)
}

/// Infers `Resize`: scales are the second input of operator set 10 and the third of later ones;
/// sizes are the fourth.
pub(super) fn infer_resize(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    let Some(dims) = operation.input_dims(0) else {
        return Operation::single_output(elem, None);
    };
    let axes = axes_or_all(operation.node.ints("axes"), dims.len())?;
    if operation.has_input(3) {
        let sizes = operation.input_ints(3);
        let policy = operation
            .node
            .string("keep_aspect_ratio_policy")
            .unwrap_or("stretch");
        return Operation::single_output(elem, Some(resize_dims(dims, sizes, &axes, policy)));
    }
    let place = if operation.opset < 11 { 1 } else { 2 };
    Operation::single_output(
        elem,
        Some(scale_dims(dims, operation.input_floats(place), &axes)),
    )
}

fn scale_dims(dims: &Dims, scales: Option<&[f32]>, axes: &[usize]) -> Dims {
    let mut resized = dims.clone();
    for (index, &axis) in axes.iter().enumerate() {
        let scale = scales.and_then(|scales| scales.get(index));
        resized[axis] = match (dims[axis], scale) {
            (Some(extent), Some(&scale)) if scale >= 0.0 => {
                Some((extent as f64 * f64::from(scale)).floor() as u64)
            }
            _ => None,
        };
    }
    resized
}

fn resize_dims(dims: &Dims, sizes: Option<&[i64]>, axes: &[usize], policy: &str) -> Dims {
    let mut resized = dims.clone();
    let size = |index: usize| {
        sizes
            .and_then(|sizes| sizes.get(index))
            .map(|&size| size as f64)
    };
    let ratios = axes
        .iter()
        .enumerate()
        .map(|(index, &axis)| Some(size(index)? / dims[axis].filter(|&extent| extent > 0)? as f64));
    let ratios: Option<Vec<f64>> = ratios.collect();
    let common = ratios.and_then(|ratios| match policy {
        "not_larger" => ratios.into_iter().reduce(f64::min),
        "not_smaller" => ratios.into_iter().reduce(f64::max),
        _ => None,
    });
    for (index, &axis) in axes.iter().enumerate() {
        resized[axis] = match (policy, common) {
            ("stretch", _) => size(index).map(|size| size as u64),
            (_, Some(ratio)) => {
                dims[axis].map(|extent| (extent as f64 * ratio + 0.5).floor() as u64)
            }
            _ => None,
        };
    }
    resized
}
