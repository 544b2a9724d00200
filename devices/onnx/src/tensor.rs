//! Converts ONNX tensor messages to souk's tensors and back. A message can hold its values in one
//! of several fields, or state that they are in another file.

use std::borrow::Cow;

use bytes::Bytes;
use souk_memory::{DType, DTypeError, Shape, Tensor, TensorError};
use thiserror::Error;

use super::{DataLocation, TensorProto};

/// Reasons why the values of an ONNX tensor cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TensorDataError {
    /// The values are outside the model.
    #[error("tensor {name:?} has its values outside the model, at {location:?}")]
    External {
        /// Name of the tensor.
        name: String,
        /// Location of the values.
        location: String,
    },
    /// souk does not support the element type.
    #[error("tensor {name:?}: {source}")]
    DType {
        /// Name of the tensor.
        name: String,
        /// Error of the element type.
        source: DTypeError,
    },
    /// Extents and values contradict each other, or the extents are impossible.
    #[error("tensor {name:?}: {source}")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// Error of the tensor.
        source: TensorError,
    },
    /// The tensor is stored in segments, which no current tool writes.
    #[error("tensor {name:?} is stored in segments, which is not supported")]
    Segmented {
        /// Name of the tensor.
        name: String,
    },
}

/// Returns the location of values outside the model: the `location` entry. The caller must load
/// such values itself.
#[must_use]
pub fn external_location(proto: &TensorProto) -> Option<&str> {
    let external = proto.data_location() == DataLocation::External;
    external.then(|| proto.external_entry("location").unwrap_or(""))
}

/// Converts the message into a tensor. Shares raw values instead of a copy, so the tensor can keep
/// a whole file in memory.
///
/// # Errors
/// [`TensorDataError`] if the values are external, of an unknown type, or do not fit the shape.
pub fn tensor_from_proto(proto: &TensorProto) -> Result<Tensor, TensorDataError> {
    let name = || proto.name().to_owned();
    let dtype = DType::from_onnx_code(proto.data_type()).map_err(|source| {
        let name = name();
        TensorDataError::DType { name, source }
    })?;
    let bytes = raw_bytes(proto)?;
    let shape = Shape::from_i64(&proto.dims).map_err(TensorError::from);
    let tensor = shape.and_then(|shape| Tensor::new(dtype, shape, bytes));
    tensor.map_err(|source| {
        let name = name();
        TensorDataError::Tensor { name, source }
    })
}

/// Returns the values as little-endian bytes in row-major order, shared with `raw_data` if present.
///
/// # Errors
/// [`TensorDataError`] if the values are external, segmented or of an unknown type.
pub fn raw_bytes(proto: &TensorProto) -> Result<Bytes, TensorDataError> {
    let name = || proto.name().to_owned();
    if let Some(location) = external_location(proto) {
        let location = location.to_owned();
        return Err(TensorDataError::External {
            name: name(),
            location,
        });
    }
    if proto.segment.is_some() {
        return Err(TensorDataError::Segmented { name: name() });
    }
    if let Some(raw) = &proto.raw_data {
        return Ok(raw.clone());
    }
    let dtype = DType::from_onnx_code(proto.data_type()).map_err(|source| {
        let name = name();
        TensorDataError::DType { name, source }
    })?;
    Ok(Bytes::from(typed_bytes(proto, dtype)))
}

/// Returns the values of the typed fields, narrowed to the width of the element type.
fn typed_bytes(proto: &TensorProto, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 | DType::Complex64 => proto
            .float_data
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        DType::F64 | DType::Complex128 => proto
            .double_data
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        DType::I64 => proto
            .int64_data
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        DType::U64 => proto
            .uint64_data
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        DType::U32 => low_bytes(proto.uint64_data.iter().map(|value| value.to_le_bytes()), 4),
        _ => {
            // In this field, packed types have one byte per entry, and wider types use its low
            // bytes.
            let width = dtype.byte_width().unwrap_or(1);
            low_bytes(
                proto.int32_data.iter().map(|value| value.to_le_bytes()),
                width,
            )
        }
    }
}

fn low_bytes<const N: usize>(values: impl Iterator<Item = [u8; N]>, width: usize) -> Vec<u8> {
    values
        .flat_map(|bytes| bytes.into_iter().take(width))
        .collect()
}

/// Returns the message of a tensor, with its values in `raw_data`, shared.
#[must_use]
pub fn tensor_to_proto<'a>(name: impl Into<Cow<'a, str>>, tensor: &Tensor) -> TensorProto {
    let dims = tensor.shape().dims().iter();
    TensorProto {
        dims: dims
            .map(|&dim| i64::try_from(dim).expect("an extent fits 63 bits"))
            .collect(),
        data_type: Some(tensor.dtype().onnx_code()),
        name: Some(name.into().into_owned()),
        raw_data: Some(tensor.bytes().clone()),
        ..TensorProto::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataType;

    fn typed(data_type: DataType, dims: Vec<i64>) -> TensorProto {
        TensorProto {
            dims,
            data_type: Some(data_type as i32),
            ..TensorProto::default()
        }
    }

    #[test]
    fn typed_fields_become_little_endian_bytes() {
        let mut half = typed(DataType::Float16, vec![2]);
        half.int32_data = vec![0x3c00, 0x4000];
        assert_eq!(raw_bytes(&half).unwrap().as_ref(), [0, 0x3c, 0, 0x40]);
        let mut negative = typed(DataType::Int8, vec![1]);
        negative.int32_data = vec![-2];
        assert_eq!(raw_bytes(&negative).unwrap().as_ref(), [0xfe]);
        let mut wide = typed(DataType::Uint32, vec![1]);
        wide.uint64_data = vec![0x0102_0304];
        assert_eq!(raw_bytes(&wide).unwrap().as_ref(), [4, 3, 2, 1]);
    }

    #[test]
    fn a_tensor_survives_the_message() {
        let shape = Shape::new([2, 1]).unwrap();
        let tensor = Tensor::new(DType::I16, shape, Bytes::from_static(&[1, 2, 3, 4])).unwrap();
        assert_eq!(
            tensor_from_proto(&tensor_to_proto("t", &tensor)),
            Ok(tensor)
        );
    }

    #[test]
    fn too_few_values_are_an_error() {
        let mut short = typed(DataType::Float, vec![3]);
        short.float_data = vec![1.0];
        let error = tensor_from_proto(&short).unwrap_err();
        assert!(matches!(error, TensorDataError::Tensor { .. }), "{error}");
    }

    #[test]
    fn external_values_are_named_with_their_place() {
        let mut outside = typed(DataType::Float, vec![1]);
        outside.data_location = Some(DataLocation::External as i32);
        outside.external_data = vec![crate::StringStringEntryProto::new(
            "location",
            "weights.bin",
        )];
        let error = tensor_from_proto(&outside).unwrap_err();
        assert!(
            matches!(error, TensorDataError::External { location, .. } if location == "weights.bin")
        );
    }
}
