//! Records the kernels of `Dropout`. The host draws the elements to keep from the node's seed, so
//! that every device keeps the same ones.

use souk_memory::{DType, Tensor};
use souk_reference::call::KernelError;
use souk_reference::random;

use crate::error::GpuError;
use crate::numbers::packed::compute_dtype;
use crate::operators::elementwise::{map, map_into, output_dtype};
use crate::recording::{Array, Step, upload_tensor};

/// Returns the input unchanged where the node drops nothing, otherwise the elements that remain,
/// scaled; and the mask, if the node has that output.
pub(crate) fn dropout(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.stored_array(0)?;
    let wants_mask = step
        .call
        .node
        .output
        .get(1)
        .is_some_and(|it| !it.is_empty());
    let Some(kept) = random::dropout_mask(&step.call, input.count())? else {
        return match wants_mask {
            true => Ok(vec![input.clone(), full_mask(step, &input.dims)?]),
            false => Ok(vec![input]),
        };
    };
    let mask = Tensor::from_bools(input.dims.clone(), &kept.mask).map_err(KernelError::from)?;
    let mask = upload_tensor(step.stream, &mask)?;
    let input = step.native_array(0)?;
    let dtype = compute_dtype(input.dtype);
    let output = output_dtype(step, dtype);
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
fn full_mask(step: &mut Step<'_, '_>, dims: &[usize]) -> Result<Array, GpuError> {
    let kept = step
        .stream
        .upload_words(DType::Bool, &[], &1u32.to_le_bytes())?;
    let mask = step.stream.allocate_array(DType::Bool, dims)?;
    map_into(step, "a", &[(&kept, DType::Bool)], &mask, [0.0; 3])?;
    Ok(mask)
}
