//! Values of 64 bits, which the device has in 32 where those say all of them: places that it
//! counted itself, and floats that it widened. What the host has in 64 it casts on its way there.

use souk_memory::{DType, Tensor};

use super::elementwise::cast_wide;
use super::error::GpuError;
use super::steps::{Step, upload};
use super::stream::Array;
use crate::cpu::reference::call::KernelError;
use crate::cpu::reference::{self, Scope};
use crate::onnx::{AttributeProto, NodeProto};

/// Whether a type has 64 bits.
pub(super) fn is_double(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::I64 | DType::U64)
}

/// Whether each value of a type is one of a 32-bit float as well.
pub(super) fn fits_floats(dtype: DType) -> bool {
    dtype == DType::Bool || (dtype.is_float() && dtype.bits() <= 32) || dtype.bits() <= 16
}

/// Floats of 32 bits that stand for those of 64: they are widened when they are read.
pub(super) fn as_f64(floats: Array) -> Array {
    Array {
        dtype: DType::F64,
        ..floats
    }
}

/// The words that lie there, by what they are.
pub(super) fn known_in_words(array: Array) -> Array {
    match array.dtype {
        DType::F64 => Array {
            dtype: DType::F32,
            ..array
        },
        _ => array,
    }
}

/// An input of 64 bits that the host has, cast there as the CPU casts it.
pub(super) fn cast_by_host(
    step: &Step<'_, '_>,
    index: usize,
    to: DType,
) -> Result<Option<Array>, GpuError> {
    let given = step.call.optional(index);
    let Some(tensor) = given.filter(|tensor| is_double(tensor.dtype())) else {
        return Ok(None);
    };
    let saturate = step.call.int("saturate", 1);
    let cast = casted(tensor, to, saturate, step.call.opset)?;
    Ok(Some(upload(step.stream, &cast)?))
}

/// An input as 32-bit floats.
pub(super) fn floats(step: &mut Step<'_, '_>, index: usize) -> Result<Array, GpuError> {
    if let Some(made) = cast_by_host(step, index, DType::F32)? {
        return Ok(made);
    }
    let input = known_in_words(step.array(index)?);
    cast_wide(step, input, DType::F32)
}

fn casted(tensor: &Tensor, to: DType, saturate: i64, opset: i64) -> Result<Tensor, GpuError> {
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
