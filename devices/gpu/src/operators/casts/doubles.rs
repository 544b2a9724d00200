//! Prepares 64-bit inputs for casts and powers. An adapter that has such numbers computes with them
//! directly. Any other adapter has them in 32 bits where those suffice: places that it counted
//! itself, and floats that it widened. The host casts its own 64-bit values on their way there.

use souk_memory::{DType, Tensor};
use souk_onnx::{AttributeProto, NodeProto};
use souk_reference as reference;
use souk_reference::Scope;
use souk_reference::call::KernelError;

use crate::error::GpuError;
use crate::numbers::doubles::is_double;
use crate::operators::casts::cast_wide;
use crate::recording::{Array, Step, upload_tensor, widen_array};

/// Marks 32-bit floats as 64-bit values; readers widen them.
pub(crate) fn as_f64(floats: Array) -> Array {
    Array {
        dtype: DType::F64,
        ..floats
    }
}

/// Returns an input as the device computes with it: a 64-bit value stored in 32 bits has their
/// type.
fn computable_input(step: &mut Step<'_, '_>, index: usize) -> Result<Array, GpuError> {
    let array = step.stored_array(index)?;
    let dtype = match array.dtype {
        _ if array.is_double => return Ok(array),
        DType::F64 => DType::F32,
        DType::I64 => DType::I32,
        _ => return widen_array(step.stream, array),
    };
    Ok(Array { dtype, ..array })
}

/// An input of 64 bits that the host has, cast there as the CPU casts it.
fn cast_by_host(step: &Step<'_, '_>, index: usize, to: DType) -> Result<Option<Array>, GpuError> {
    let given = step.call.optional_input(index);
    let Some(tensor) = given.filter(|tensor| is_double(tensor.dtype())) else {
        return Ok(None);
    };
    let saturate = step.call.int_attribute("saturate", 1);
    let cast = cast_tensor(tensor, to, saturate, step.call.opset)?;
    Ok(Some(upload_tensor(step.stream, &cast)?))
}

/// Returns an input cast to a type that is not packed.
pub(crate) fn numeric_input(
    step: &mut Step<'_, '_>,
    index: usize,
    to: DType,
) -> Result<Array, GpuError> {
    match cast_input(step, index, to)? {
        CastInput::Cast(made) => Ok(made),
        CastInput::Array(array) => cast_wide(step, array, to),
    }
}

/// An input of a cast: already cast by the host, or on the device.
pub(crate) enum CastInput {
    Cast(Array),
    Array(Array),
}

/// Prepares an input to be cast to a type. The host casts it if it has 64 bits and the device has
/// no such numbers.
pub(crate) fn cast_input(
    step: &mut Step<'_, '_>,
    index: usize,
    to: DType,
) -> Result<CastInput, GpuError> {
    let dtype = step.call.optional_input(index).map(Tensor::dtype);
    if dtype.is_some_and(|dtype| !step.stream.context.double_support().has_dtype(dtype))
        && let Some(made) = cast_by_host(step, index, to)?
    {
        return Ok(CastInput::Cast(made));
    }
    Ok(CastInput::Array(computable_input(step, index)?))
}

fn cast_tensor(tensor: &Tensor, to: DType, saturate: i64, opset: i64) -> Result<Tensor, GpuError> {
    let attribute = |name: &str, value| AttributeProto {
        name: Some(name.to_owned()),
        i: Some(value),
        ..AttributeProto::default()
    };
    let code = i64::from(to.onnx_code());
    let node = NodeProto {
        op_type: Some("Cast".to_owned()),
        input: vec!["x".to_owned()],
        output: vec!["y".to_owned()],
        attribute: vec![attribute("to", code), attribute("saturate", saturate)],
        ..NodeProto::default()
    };
    let mut scope = Scope::from([("x".to_owned(), tensor.clone())]);
    let run = reference::run_nodes(std::slice::from_ref(&node), &mut scope, opset);
    run.map_err(|error| KernelError::Inner(Box::new(error)))?;
    Ok(scope.remove("y").ok_or(KernelError::Missing(0))?)
}
