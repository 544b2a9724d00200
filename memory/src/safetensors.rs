//! `.safetensors` files: several named tensors in one file, shared rather than copied.
//!
//! A file is the length of a JSON header (8 bytes, little-endian), the header, and the elements,
//! which the tensors must cover without gap or overlap, as the format demands.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{DType, Shape, ShapeError, Tensor, TensorError};

/// The format's own bound on the header.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Length of the header's length.
const PREFIX: usize = 8;

/// The format's names for element types.
const TYPES: [(&str, DType); 17] = [
    ("F64", DType::F64),
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::Bf16),
    ("I64", DType::I64),
    ("I32", DType::I32),
    ("I16", DType::I16),
    ("I8", DType::I8),
    ("U64", DType::U64),
    ("U32", DType::U32),
    ("U16", DType::U16),
    ("U8", DType::U8),
    ("BOOL", DType::Bool),
    ("F8_E4M3", DType::F8E4M3Fn),
    ("F8_E5M2", DType::F8E5M2),
    ("F8_E8M0", DType::F8E8M0),
    ("C64", DType::Complex64),
];

/// Why a file holds no tensors, or tensors make no file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SafetensorsError {
    /// The file ends inside its header.
    #[error("the .safetensors header is cut short: expected {expected} bytes, found {found}")]
    HeaderCut {
        /// Bytes the header takes.
        expected: u64,
        /// Bytes in the file.
        found: usize,
    },
    /// The header is longer than the format allows.
    #[error("the .safetensors header claims {claimed} bytes, over the limit of {HEADER_BYTES_MAX}")]
    HeaderTooLong {
        /// Bytes claimed.
        claimed: u64,
    },
    /// The header is not the JSON it should be.
    #[error("the .safetensors header cannot be read at line {line}, column {column}")]
    Header {
        /// Line of the fault, from 1.
        line: usize,
        /// Column of the fault, from 1.
        column: usize,
    },
    /// An element type that is not supported.
    #[error("tensor {name:?} has the unsupported element type {dtype:?}")]
    DType {
        /// The tensor's name.
        name: String,
        /// The format's name of the type.
        dtype: String,
    },
    /// A shape is refused.
    #[error("tensor {name:?}: {cause}")]
    Shape {
        /// The tensor's name.
        name: String,
        /// Why.
        cause: ShapeError,
    },
    /// A tensor's elements lie elsewhere than the format demands.
    #[error("tensor {name:?} should begin at byte {expected} of the elements, not {found}")]
    Gap {
        /// The tensor's name.
        name: String,
        /// Where the one before it ends.
        expected: usize,
        /// Where it begins.
        found: usize,
    },
    /// The elements do not fill what the header states.
    #[error("the .safetensors file should have {expected} bytes of elements, found {found}")]
    Length {
        /// Bytes stated.
        expected: usize,
        /// Bytes in the file.
        found: usize,
    },
    /// A tensor's bytes are refused.
    #[error("tensor {name:?}: {cause}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// Why.
        cause: TensorError,
    },
    /// The format has no such element type.
    #[error("tensor {name:?}: .safetensors has no element type {dtype}")]
    Unwritable {
        /// The tensor's name.
        name: String,
        /// Its type.
        dtype: DType,
    },
}

/// One tensor in the header.
#[derive(Serialize, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// The header: the tensors, and beside them the file's own notes, which are left aside.
#[derive(Deserialize)]
struct Header {
    #[serde(default, rename = "__metadata__")]
    _notes: BTreeMap<String, String>,
    #[serde(flatten)]
    entries: BTreeMap<String, Entry>,
}

/// Reads a file's bytes. The tensors share them.
///
/// # Errors
/// [`SafetensorsError`], naming the tensor at fault.
pub fn read(file: &Bytes) -> Result<BTreeMap<String, Tensor>, SafetensorsError> {
    let (header, elements) = split(file)?;
    let header: Header =
        serde_json::from_slice(&header).map_err(|cause| SafetensorsError::Header {
            line: cause.line(),
            column: cause.column(),
        })?;
    let mut entries: Vec<(String, Entry)> = header.entries.into_iter().collect();
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut end = 0;
    let mut tensors = BTreeMap::new();
    for (name, entry) in entries {
        let (tensor, tensor_end) = tensor_of(&name, &entry, end, &elements)?;
        end = tensor_end;
        tensors.insert(name, tensor);
    }
    if end != elements.len() {
        return Err(SafetensorsError::Length {
            expected: end,
            found: elements.len(),
        });
    }
    Ok(tensors)
}

/// The file of some named tensors, in the order of their names.
///
/// # Errors
/// [`SafetensorsError::Unwritable`] for types the format lacks.
pub fn write(tensors: &BTreeMap<String, Tensor>) -> Result<Bytes, SafetensorsError> {
    let mut header = BTreeMap::new();
    let mut end = 0;
    for (name, tensor) in tensors {
        let dtype = tensor.dtype();
        let row = TYPES.iter().find(|row| row.1 == dtype);
        let unwritable = || SafetensorsError::Unwritable {
            name: name.clone(),
            dtype,
        };
        let (written, _) = row.ok_or_else(unwritable)?;
        let start = end;
        end += tensor.bytes().len();
        let shape = tensor.dims().to_vec();
        let entry = Entry {
            dtype: (*written).to_owned(),
            shape,
            data_offsets: (start, end),
        };
        header.insert(name, entry);
    }
    let mut text = serde_json::to_vec(&header).expect("names, sizes and offsets are plain JSON");
    text.resize(text.len().next_multiple_of(PREFIX), b' ');
    let mut file = BytesMut::with_capacity(PREFIX + text.len() + end);
    file.extend_from_slice(&(text.len() as u64).to_le_bytes());
    file.extend_from_slice(&text);
    tensors
        .values()
        .for_each(|tensor| file.extend_from_slice(tensor.bytes()));
    Ok(file.freeze())
}

/// The header's text and the elements.
fn split(file: &Bytes) -> Result<(Bytes, Bytes), SafetensorsError> {
    let found = file.len();
    let Some(prefix) = file.first_chunk::<PREFIX>() else {
        return Err(SafetensorsError::HeaderCut {
            expected: PREFIX as u64,
            found,
        });
    };
    let claimed = u64::from_le_bytes(*prefix);
    if claimed > HEADER_BYTES_MAX {
        return Err(SafetensorsError::HeaderTooLong { claimed });
    }
    let end = PREFIX + claimed as usize;
    if end > found {
        return Err(SafetensorsError::HeaderCut {
            expected: end as u64,
            found,
        });
    }
    Ok((file.slice(PREFIX..end), file.slice(end..)))
}

/// The tensor of an entry that should begin at `expected`, and where it ends.
fn tensor_of(
    name: &str,
    entry: &Entry,
    expected: usize,
    elements: &Bytes,
) -> Result<(Tensor, usize), SafetensorsError> {
    let name = || name.to_owned();
    let (start, end) = entry.data_offsets;
    if start != expected || end < start {
        return Err(SafetensorsError::Gap {
            name: name(),
            expected,
            found: start,
        });
    }
    if end > elements.len() {
        return Err(SafetensorsError::Length {
            expected: end,
            found: elements.len(),
        });
    }
    let row = TYPES.iter().find(|row| row.0 == entry.dtype);
    let unknown = || SafetensorsError::DType {
        name: name(),
        dtype: entry.dtype.clone(),
    };
    let (_, dtype) = row.ok_or_else(unknown)?;
    let shape = Shape::new(entry.shape.clone()).map_err(|cause| SafetensorsError::Shape {
        name: name(),
        cause,
    })?;
    let tensor = Tensor::new(*dtype, shape, elements.slice(start..end)).map_err(|cause| {
        SafetensorsError::Tensor {
            name: name(),
            cause,
        }
    })?;
    Ok((tensor, end))
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
    fn notes_of_the_file_are_no_tensor() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        assert_eq!(read(&file(header, &[9])).unwrap().len(), 1);
    }

    #[test]
    fn faults_name_the_tensor_and_the_sizes() {
        let header = r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        assert_eq!(
            read(&file(header, &[0; 7])),
            Err(SafetensorsError::Length {
                expected: 8,
                found: 7
            })
        );
        assert_eq!(
            read(&file(header, &[0; 9])),
            Err(SafetensorsError::Length {
                expected: 8,
                found: 9
            })
        );
        let gap = r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
        assert_eq!(
            read(&file(gap, &[0; 2])).unwrap_err().to_string(),
            "tensor \"x\" should begin at byte 0 of the elements, not 1"
        );
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
