//! Records the kernels of `BatchNormalization`, either with the statistics that the model was
//! trained to or, in training, with those of its input.

use souk_memory::DType;
use souk_reference::call::KernelError;

use crate::error::GpuError;
use crate::operators::elementwise::map;
use crate::operators::layout::permute_axes;
use crate::operators::reduce::{find_reduction, reduce_middle};
use crate::recording::{Array, Step};

/// `BatchNormalization`; in training, also computes the running mean and variance. Each statistic
/// must have one element for each channel.
pub(crate) fn batch_norm(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let training = step.call.is_flag_set("training_mode");
    let input = if training {
        step.wide_array(0)?
    } else {
        step.native_array(0)?
    };
    let channels = *input.dims.get(1).ok_or(KernelError::Range(0))?;
    let mut each = |index| {
        let array: Array = step.wide_array(index)?;
        if array.count() != channels {
            return Err(GpuError::Operator(KernelError::Range(index)));
        }
        Ok(array.with_dims([channels]))
    };
    let (scale, shift, mean, variance) = (each(1)?, each(2)?, each(3)?, each(4)?);
    if !training {
        return Ok(vec![normal(
            step,
            &input,
            [&scale, &shift, &mean, &variance],
        )?]);
    }
    let (own_mean, own_variance) = channel_moments(step, &input, channels)?;
    let made = normal(step, &input, [&scale, &shift, &own_mean, &own_variance])?;
    let momentum = step.call.float_attribute("momentum", 0.9);
    let mut results = vec![made];
    for (old, new) in [(&mean, &own_mean), (&variance, &own_variance)] {
        let inputs = [(old, DType::F32), (new, DType::F32)];
        let numbers = [momentum, 0.0, 0.0];
        let blended = map(step, "a * s + b * (1.0 - s)", &inputs, DType::F32, numbers)?;
        results.push(blended);
    }
    Ok(results)
}

/// The input brought to these statistics: of its scale, shift, mean and variance one each channel.
fn normal(step: &mut Step<'_, '_>, input: &Array, each: [&Array; 4]) -> Result<Array, GpuError> {
    let epsilon = step.call.float_attribute("epsilon", 1e-5);
    let mut shape = vec![1; input.dims.len() - 1];
    shape[0] = input.dims[1];
    let [scale, shift, mean, variance] = each.map(|array| array.with_dims(shape.clone()));
    let inputs = [input, &scale, &shift, &mean, &variance].map(|array| (array, DType::F32));
    let expression = "(a - d) / sqrt(e + s) * b + c";
    let output = step.output_dtype();
    map(step, expression, &inputs, output, [epsilon, 0.0, 0.0])
}

/// The mean and the variance of each channel.
fn channel_moments(
    step: &mut Step<'_, '_>,
    input: &Array,
    channels: usize,
) -> Result<(Array, Array), GpuError> {
    let mut order: Vec<usize> = (0..input.dims.len()).collect();
    order.swap(0, 1);
    let by_channel = permute_axes(step, input, &order)?;
    let each = by_channel.count() / channels.max(1);
    let by_channel = by_channel.with_dims([channels, each]);
    let average = find_reduction("ReduceMean").expect("it is in the table");
    let sides = (channels, each, 1);
    let mean = reduce_middle(step, &by_channel, sides, average, DType::F32, &[channels])?;
    let rows = mean.with_dims([channels, 1]);
    let inputs = [(&by_channel, DType::F32), (&rows, DType::F32)];
    let squares = map(step, "(a - b) * (a - b)", &inputs, DType::F32, [0.0; 3])?;
    let variance = reduce_middle(step, &squares, sides, average, DType::F32, &[channels])?;
    Ok((mean, variance))
}
