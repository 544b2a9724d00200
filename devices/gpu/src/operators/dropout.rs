//! `Dropout`: the host draws the elements to keep from the node's seed.

use souk_memory::{DType, Tensor};
use souk_reference::call::KernelError;
use souk_reference::random;

use crate::error::GpuError;
use crate::numbers::packed::wide;
use crate::operators::elementwise::{made, map, map_into};
use crate::recording::{Array, Step, upload};

/// Returns the input unchanged where the node drops nothing, otherwise the elements that remain,
/// scaled; and the mask, if the node has that output.
pub(crate) fn dropout(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.operand(0)?;
    let wants_mask = step
        .call
        .node
        .output
        .get(1)
        .is_some_and(|it| !it.is_empty());
    let Some(kept) = random::kept(&step.call, input.count())? else {
        return match wants_mask {
            true => Ok(vec![input.clone(), all(step, &input.dims)?]),
            false => Ok(vec![input]),
        };
    };
    let mask = Tensor::from_bools(input.dims.clone(), &kept.mask).map_err(KernelError::from)?;
    let mask = upload(step.stream, &mask)?;
    let input = step.light(0)?;
    let dtype = wide(input.dtype);
    let output = made(step, dtype);
    // Not a choice: as in a product, NaN stays NaN.
    let (expression, numbers) = match dtype {
        DType::F64 => ("a * f64(b) * s", [kept.scale, 0.0, 0.0]),
        _ => ("a * f32(b) * s", [kept.scale, 0.0, 0.0]),
    };
    let inputs = [(&input, dtype), (&mask, DType::Bool)];
    let scaled = map(step, expression, &inputs, output, numbers)?;
    Ok(vec![scaled, mask])
}

/// A mask that keeps all.
fn all(step: &mut Step<'_, '_>, dims: &[usize]) -> Result<Array, GpuError> {
    let kept = step.stream.words(DType::Bool, &[], &1u32.to_le_bytes())?;
    let mask = step.stream.array(DType::Bool, dims)?;
    map_into(step, "a", &[(&kept, DType::Bool)], &mask, [0.0; 3])?;
    Ok(mask)
}
