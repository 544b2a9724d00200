//! Maps souk's element types to ONNX Runtime's and back. No tensor of a type that only one of them
//! has can go to the library or come from it.

use ort::value::TensorElementType;
use souk_memory::DType;

/// The common element types, with the library's names. No tensor of another type can cross.
const TYPES: &[(DType, TensorElementType)] = &[
    (DType::F32, TensorElementType::Float32),
    (DType::F64, TensorElementType::Float64),
    (DType::F16, TensorElementType::Float16),
    (DType::Bf16, TensorElementType::Bfloat16),
    (DType::I8, TensorElementType::Int8),
    (DType::I16, TensorElementType::Int16),
    (DType::I32, TensorElementType::Int32),
    (DType::I64, TensorElementType::Int64),
    (DType::U8, TensorElementType::Uint8),
    (DType::U16, TensorElementType::Uint16),
    (DType::U32, TensorElementType::Uint32),
    (DType::U64, TensorElementType::Uint64),
    (DType::Bool, TensorElementType::Bool),
];

/// Returns whether the library has this type.
pub(super) fn has_element_type(dtype: DType) -> bool {
    to_element(dtype).is_some()
}

/// Returns the library's name of an element type, if it has the type.
pub(super) fn to_element(dtype: DType) -> Option<TensorElementType> {
    let mut known = TYPES.iter();
    known.find_map(|(own, element)| (*own == dtype).then_some(*element))
}

/// Returns souk's name of one of the library's element types.
pub(super) fn to_dtype(element: TensorElementType) -> Option<DType> {
    let mut known = TYPES.iter();
    known.find_map(|(own, theirs)| (*theirs == element).then_some(*own))
}
