//! Computes the operators that make tensors from attributes and sizes, such as `Constant`, `Range`
//! and the windows of audio models, and a few others: `Dropout`, `SwiGLU` and `TfIdfVectorizer`.

use souk_memory::{DType, Tensor};
use souk_onnx::expansion::NodeFault;
use souk_onnx::expansion::ngrams::{from_numbers, output_width};
use souk_onnx::tensor_from_proto;

use super::call::{Call, KernelError, Results};
use super::functions::sigmoid;
use super::layout::sizes_of;
use super::random;
use super::shape::element_count;
use super::value::{from_bytes, from_floats, from_ints, to_floats, to_ints};

/// Returns the value that a node states.
pub(super) fn constant(call: &Call<'_>) -> Results {
    let value = souk_onnx::constant_value(call.node);
    Ok(vec![value.ok_or(KernelError::Attribute("value"))?])
}

pub(super) fn constant_of_shape(call: &Call<'_>) -> Results {
    let dims = sizes_of(call.input(0)?, 0)?;
    let value = match call.node.tensor("value") {
        Some(value) => tensor_from_proto(value).map_err(|_| KernelError::Attribute("value"))?,
        None => Tensor::scalar(0f32),
    };
    let bytes = value.bytes().repeat(element_count(&dims)?);
    Ok(vec![from_bytes(value.dtype(), &dims, bytes)?])
}

/// Runs `TfIdfVectorizer` on numbers; the buyer's machine runs it on texts.
pub(super) fn count_ngrams(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    element_count(&[
        input.dims().first().copied().unwrap_or(1),
        output_width(call.node),
    ])?;
    let counted = from_numbers(call.node, &call.input_ints(0)?, input.dims());
    counted.map(|it| vec![it]).map_err(|fault| match fault {
        NodeFault::Attribute { name, .. } => KernelError::Attribute(name),
        NodeFault::Tensor(fault) => fault.into(),
        _ => KernelError::Shapes(input.dims().to_vec(), vec![1, 1]),
    })
}

pub(super) fn range(call: &Call<'_>) -> Results {
    let start = call.input(0)?;
    if start.dtype().is_float() {
        let bounds = (
            call.optional_scalar_float(0)?,
            call.optional_scalar_float(1)?,
            call.optional_scalar_float(2)?,
        );
        let (Some(start_at), Some(end), Some(step)) = bounds else {
            return Err(KernelError::Missing(2));
        };
        let steps = ((end - start_at) / step).ceil().max(0.0);
        if !steps.is_finite() {
            return Err(KernelError::Range(2));
        }
        let steps = element_count(&[steps as usize])?;
        let values = (0..steps)
            .map(|index| start_at + index as f64 * step)
            .collect();
        return Ok(vec![from_floats(start.dtype(), &[steps], values)?]);
    }
    let bounds = [0, 1, 2].map(|index| {
        to_ints(call.input(index)?)?
            .first()
            .copied()
            .ok_or(KernelError::Range(index))
    });
    let [first, end, step] = bounds;
    let (first, end, step) = (first?, end?, step?);
    if step == 0 {
        return Err(KernelError::Range(2));
    }
    let whole = (end - first) / step + i128::from((end - first) % step != 0);
    let steps =
        element_count(&[usize::try_from(whole.max(0)).map_err(|_| KernelError::Range(1))?])?;
    let values = (0..steps as i128)
        .map(|index| first + index * step)
        .collect();
    Ok(vec![from_ints(start.dtype(), &[steps], values)?])
}

/// Returns the type that an attribute states by ONNX's number.
pub(super) fn stated_type(
    call: &Call<'_>,
    name: &'static str,
) -> Result<Option<DType>, KernelError> {
    let Some(code) = call.node.int(name) else {
        return Ok(None);
    };
    let code = i32::try_from(code).map_err(|_| KernelError::Attribute(name))?;
    DType::from_onnx_code(code)
        .map(Some)
        .map_err(|_| KernelError::Attribute(name))
}

pub(super) fn eye_like(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let dtype = stated_type(call, "dtype")?.unwrap_or(input.dtype());
    let &[rows, columns] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    let shift = call.int_attribute("k", 0);
    let mark = |place: usize| {
        let (row, column) = ((place / columns) as i64, (place % columns) as i64);
        i128::from(column - row == shift)
    };
    Ok(vec![from_ints(
        dtype,
        &[rows, columns],
        (0..rows * columns).map(mark).collect(),
    )?])
}

/// Runs `Dropout`: inference returns the input, training drops elements by the seed.
pub(super) fn dropout(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let count = input.shape().element_count();
    let Some(kept) = random::dropout_mask(call, count)? else {
        let all = super::value::from_truths(input.dims(), vec![true; count])?;
        return Ok(vec![input.clone(), all]);
    };
    let each = to_floats(input)?.into_iter().zip(&kept.mask);
    let values = each.map(|(value, &is_kept)| value * f64::from(is_kept) * kept.scale);
    Ok(vec![
        from_floats(input.dtype(), input.dims(), values.collect())?,
        super::value::from_truths(input.dims(), kept.mask)?,
    ])
}

/// Computes the gated linear unit of language models: the first input, weighted by its sigmoid,
/// times the second.
pub(super) fn swiglu(call: &Call<'_>) -> Results {
    let (gate, value) = (call.input(0)?, call.input(1)?);
    let alpha = call.float_attribute("alpha", 1.0);
    let pairs = to_floats(gate)?.into_iter().zip(to_floats(value)?);
    let values = pairs
        .map(|(gate, value)| gate * sigmoid(alpha * gate) * value)
        .collect();
    Ok(vec![from_floats(gate.dtype(), gate.dims(), values)?])
}

/// Computes a window of the family `a - b cos(x) + c cos(2x)`.
pub(super) fn window(call: &Call<'_>, [a, b, c]: [f64; 3]) -> Results {
    let size = call
        .optional_scalar_int(0)?
        .ok_or(KernelError::Missing(0))?;
    let size = element_count(&[usize::try_from(size).map_err(|_| KernelError::Range(0))?])?;
    let dtype = stated_type(call, "output_datatype")?.unwrap_or(DType::F32);
    let periodic = call.int_attribute("periodic", 1) != 0;
    let period = if periodic {
        size
    } else {
        size.saturating_sub(1)
    } as f64;
    let value = |index: usize| {
        let angle = 2.0 * std::f64::consts::PI * index as f64 / period;
        a - b * angle.cos() + c * (2.0 * angle).cos()
    };
    Ok(vec![from_floats(
        dtype,
        &[size],
        (0..size).map(value).collect(),
    )?])
}
