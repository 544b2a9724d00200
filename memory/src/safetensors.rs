//! Reads and writes `.safetensors` files, which hold several named tensors. Tensors share the bytes
//! of the file that they were read from.
//!
//! The format's own crate reads and writes the header and enforces the format's rules; this module
//! turns its views into tensors that share the file's bytes. The whole file stays in memory until
//! its last tensor is dropped, so you should copy a small tensor that outlives the others.

mod places;

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors, View};
use thiserror::Error;

use crate::dtype::DType;
use crate::shape::{Shape, ShapeError};
use crate::tensor::{Tensor, TensorError};

pub use places::{TensorPlace, read_places, single_header};

/// Some readers refuse a file that does not name its framework.
const FRAMEWORK: [&str; 2] = ["format", "pt"];

/// The format's element types, and the matching types of tensors.
const TYPES: [(Dtype, DType); 17] = [
    (Dtype::F64, DType::F64),
    (Dtype::F32, DType::F32),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::Bf16),
    (Dtype::I64, DType::I64),
    (Dtype::I32, DType::I32),
    (Dtype::I16, DType::I16),
    (Dtype::I8, DType::I8),
    (Dtype::U64, DType::U64),
    (Dtype::U32, DType::U32),
    (Dtype::U16, DType::U16),
    (Dtype::U8, DType::U8),
    (Dtype::BOOL, DType::Bool),
    (Dtype::F8_E4M3, DType::F8E4M3Fn),
    (Dtype::F8_E5M2, DType::F8E5M2),
    (Dtype::F8_E8M0, DType::F8E8M0),
    (Dtype::C64, DType::Complex64),
];

/// Why a file holds no valid tensors, or tensors have no file.
#[derive(Debug, Error)]
pub enum SafetensorsError {
    /// The file violates the format.
    #[error("the .safetensors file of {bytes} bytes is refused: {cause}")]
    Format {
        /// The length of the file in bytes.
        bytes: usize,
        /// The format crate's reason.
        cause: SafeTensorError,
    },
    /// The header of the file cannot be read.
    #[error("the .safetensors file cannot be read: {0}")]
    Read(std::io::Error),
    /// The format crate cannot write the tensors.
    #[error("the .safetensors file cannot be made: {0}")]
    Write(SafeTensorError),
    /// An element type is not supported.
    #[error("tensor {name:?} has the unsupported element type {dtype}")]
    DType {
        /// The tensor's name.
        name: String,
        /// The type's name in the format.
        dtype: Dtype,
    },
    /// A shape is not valid.
    #[error("tensor {name:?}: {cause}")]
    Shape {
        /// The tensor's name.
        name: String,
        /// The fault in the shape.
        cause: ShapeError,
    },
    /// A tensor's bytes are not valid.
    #[error("tensor {name:?}: {cause}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// The fault in the bytes.
        cause: TensorError,
    },
    /// The format has no such element type.
    #[error("tensor {name:?}: .safetensors has no element type {dtype}")]
    Unwritable {
        /// The tensor's name.
        name: String,
        /// The tensor's element type.
        dtype: DType,
    },
}

/// A tensor in the form that the format's crate needs.
struct WritableTensor<'a> {
    dtype: Dtype,
    tensor: &'a Tensor,
}

impl View for WritableTensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.tensor.dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.tensor.bytes())
    }

    fn data_len(&self) -> usize {
        self.tensor.bytes().len()
    }
}

/// Reads a file's bytes, which the tensors share.
///
/// # Errors
/// [`SafetensorsError`], with the name of the tensor if one has the fault.
pub fn read(file: &Bytes) -> Result<BTreeMap<String, Tensor>, SafetensorsError> {
    let views = SafeTensors::deserialize(file).map_err(|cause| SafetensorsError::Format {
        bytes: file.len(),
        cause,
    })?;
    let tensors = views.iter().map(|(name, view)| {
        let tensor = tensor_of(name, &view, file)?;
        Ok((name.to_owned(), tensor))
    });
    tensors.collect()
}

/// Builds the file of named tensors in the format's order: the widest elements first, then by name.
///
/// # Errors
/// [`SafetensorsError::Unwritable`] for types that the format lacks, [`SafetensorsError::Write`]
/// for more names than a header can hold.
pub fn write(tensors: &BTreeMap<String, Tensor>) -> Result<Bytes, SafetensorsError> {
    let mut views = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        views.push((name.as_str(), to_writable(name, tensor)?));
    }
    let format = [FRAMEWORK.map(str::to_owned)].map(|[key, name]| (key, name));
    let file = safetensors::serialize(views, Some(format.into()));
    let file = file.map_err(SafetensorsError::Write)?;
    Ok(file.into())
}

fn to_writable<'a>(name: &str, tensor: &'a Tensor) -> Result<WritableTensor<'a>, SafetensorsError> {
    let dtype = file_dtype(name, tensor.dtype())?;
    Ok(WritableTensor { dtype, tensor })
}

/// Returns the format's type for a tensor's type.
fn file_dtype(name: &str, dtype: DType) -> Result<Dtype, SafetensorsError> {
    let row = TYPES.iter().find(|row| row.1 == dtype);
    let unwritable = || SafetensorsError::Unwritable {
        name: name.to_owned(),
        dtype,
    };
    row.map(|row| row.0).ok_or_else(unwritable)
}

/// Returns the tensor's type for a type of the format.
fn own_dtype(name: &str, dtype: Dtype) -> Result<DType, SafetensorsError> {
    let row = TYPES.iter().find(|row| row.0 == dtype);
    let unsupported = || SafetensorsError::DType {
        name: name.to_owned(),
        dtype,
    };
    row.map(|row| row.1).ok_or_else(unsupported)
}

/// Returns the tensor of a view into `file`.
fn tensor_of(name: &str, view: &TensorView<'_>, file: &Bytes) -> Result<Tensor, SafetensorsError> {
    let dtype = own_dtype(name, view.dtype())?;
    let shape = Shape::new(view.shape()).map_err(|cause| SafetensorsError::Shape {
        name: name.to_owned(),
        cause,
    })?;
    let elements = file.slice_ref(view.data());
    Tensor::new(dtype, shape, elements).map_err(|cause| SafetensorsError::Tensor {
        name: name.to_owned(),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(header: &str, elements: &[u8]) -> Bytes {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.extend_from_slice(elements);
        file.into()
    }

    fn refusal(header: &str, elements: &[u8]) -> String {
        read(&file(header, elements)).unwrap_err().to_string()
    }

    #[test]
    fn named_tensors_survive_a_file() {
        let tensors = BTreeMap::from([
            (
                "ids".to_owned(),
                Tensor::from_vec([2], vec![7i64, 8]).unwrap(),
            ),
            (
                "mask".to_owned(),
                Tensor::from_bools([1, 3], &[true, false, true]).unwrap(),
            ),
            (
                "empty".to_owned(),
                Tensor::from_vec([0, 4], Vec::<f32>::new()).unwrap(),
            ),
        ]);
        assert_eq!(read(&write(&tensors).unwrap()).unwrap(), tensors);
    }

    #[test]
    fn every_type_that_the_format_has_survives_and_the_others_are_refused() {
        for dtype in DType::all_types() {
            let shape = Shape::new([2, 3]).unwrap();
            let bytes = vec![1; shape.byte_length(dtype)];
            let tensor = Tensor::new(dtype, shape, bytes.into()).unwrap();
            let tensors = BTreeMap::from([("x".to_owned(), tensor)]);
            match write(&tensors) {
                Ok(file) => assert_eq!(read(&file).unwrap(), tensors),
                Err(error) => assert_eq!(
                    error.to_string(),
                    format!("tensor \"x\": .safetensors has no element type {dtype}")
                ),
            }
        }
    }

    #[test]
    fn elements_are_those_of_the_file_itself() {
        let header = r#"{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
        let file = file(header, &[7, 8, 9]);
        let tensors = read(&file).unwrap();
        let place = file[file.len() - 3..].as_ptr();
        assert_eq!(tensors["x"].bytes().as_ptr(), place);
    }

    #[test]
    fn notes_of_the_file_are_no_tensor() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        assert_eq!(read(&file(header, &[9])).unwrap().len(), 1);
    }

    #[test]
    fn a_refused_file_says_why() {
        let header = r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        assert_eq!(
            refusal(header, &[0; 7]),
            "the .safetensors file of 69 bytes is refused: incomplete metadata, file not fully \
             covered"
        );
        let gap = r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
        assert!(refusal(gap, &[0; 2]).ends_with("invalid offset for tensor `x`"));
        let unknown = r#"{"x":{"dtype":"F31","shape":[1],"data_offsets":[0,1]}}"#;
        assert!(refusal(unknown, &[0]).contains("`F31`"));
        let narrow = r#"{"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}"#;
        assert_eq!(
            refusal(narrow, &[0]),
            "tensor \"x\" has the unsupported element type F4"
        );
        let mask = r#"{"x":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}"#;
        assert!(refusal(mask, &[2]).starts_with("tensor \"x\": "));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            header in ".{0,120}",
            tail in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let _ = read(&file(&header, &tail));
            let _ = read(&tail.into());
        }
    }
}
