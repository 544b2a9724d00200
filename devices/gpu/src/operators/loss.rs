//! Records the kernels of ONNX's loss operators on the GPU, composed of the recording functions of
//! other operators. The host reads the labels, so it must have them.

use souk_memory::DType;
use souk_reference::call::KernelError;
use souk_reference::shape::split_at_axis;

use crate::error::GpuError;
use crate::operators::elementwise::map;
use crate::operators::gather::take_runs;
use crate::operators::reduce::{softmax_middle, sum_all};
use crate::recording::{Array, Step};
use crate::shaders::Softmax;

/// `NegativeLogLikelihoodLoss`.
pub(crate) fn negative_log_likelihood(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let logs = step.wide_array(0)?;
    Ok(vec![weighted_loss(step, &logs)?])
}

/// `SoftmaxCrossEntropyLoss`, and the logarithms it takes.
pub(crate) fn cross_entropy(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.wide_array(0)?;
    if input.dims.len() < 2 {
        return Err(KernelError::Range(0).into());
    }
    let sides = split_at_axis(&input.dims, 1);
    let logs = softmax_middle(
        step,
        &input,
        DType::F32,
        sides.0,
        sides.1,
        sides.2,
        Softmax::Log,
    )?;
    Ok(vec![weighted_loss(step, &logs)?, logs])
}

/// Records the weighted losses of the labels' classes, and reduces them as the node's `reduction`
/// says.
fn weighted_loss(step: &mut Step<'_, '_>, logs: &Array) -> Result<Array, GpuError> {
    let &[_, classes, ref spatial @ ..] = &logs.dims[..] else {
        return Err(KernelError::Range(0).into());
    };
    let plane = spatial.iter().product::<usize>();
    let labels = step.call.input_ints(1)?;
    let dims = step.call.input(1)?.dims().to_vec();
    if labels.len() * classes != logs.count() {
        return Err(KernelError::Shapes(logs.dims.clone(), dims).into());
    }
    let ignored = step.call.node.int("ignore_index");
    let class = |label: &i64| match usize::try_from(*label) {
        _ if Some(*label) == ignored => Ok(-1),
        Ok(class) if class < classes => Ok(class as i32),
        _ => Err(KernelError::Range(1)),
    };
    let label_classes: Vec<i32> = labels.iter().map(class).collect::<Result<_, _>>()?;
    let offset = |(index, &class): (usize, &i32)| {
        let (sample, inner) = (index / plane.max(1), index % plane.max(1));
        let class = usize::try_from(class).ok()?;
        i32::try_from((sample * classes + class) * plane + inner).ok()
    };
    // An ignored element has no source, so it becomes 0.
    let offsets: Vec<i32> = label_classes
        .iter()
        .enumerate()
        .map(|label| offset(label).unwrap_or(-1))
        .collect();
    let picked = take_runs(step, logs, &offsets, 1, &dims)?;
    let weights = match step.optional_wide(2)? {
        Some(weights) => take_runs(step, &weights, &label_classes, 1, &dims)?,
        None => {
            let one = |&class: &i32| if class < 0 { 0.0f32 } else { 1.0 }.to_le_bytes();
            let words: Vec<u8> = label_classes.iter().flat_map(one).collect();
            step.stream.upload_words(DType::F32, &dims, &words)?
        }
    };
    let inputs = [(&picked, DType::F32), (&weights, DType::F32)];
    let losses = map(step, "-a * b", &inputs, DType::F32, [0.0; 3])?;
    let reduction = step.call.text_attribute("reduction", "mean").to_owned();
    if reduction == "none" {
        return Ok(losses);
    }
    let sum = sum_all(step, &losses)?;
    if reduction == "sum" {
        return Ok(sum);
    }
    let weight = sum_all(step, &weights)?;
    let inputs = [(&sum, DType::F32), (&weight, DType::F32)];
    map(step, "a / b", &inputs, DType::F32, [0.0; 3])
}
