//! Finds where a `.safetensors` file holds its tensors by reading only its header, and builds the
//! header of a file with one tensor. With it, the gateway can serve a tensor of a large file
//! without loading the file.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;

use bytes::Bytes;
use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata, TensorInfo};

use super::{FRAMEWORK, SafetensorsError, file_dtype, own_dtype};
use crate::dtype::DType;
use crate::shape::Shape;

/// The bytes of the length before the header, which the format also pads the header to.
const LENGTH_BYTES: usize = 8;

/// The most bytes of a header, as the format's crate has it.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// The position of a tensor in a file, with its type and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlace {
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// The bytes of the file that are its elements.
    pub bytes: Range<u64>,
}

/// Reads the header at the beginning of a file of this length.
///
/// # Errors
/// [`SafetensorsError`], if the file violates the format or cannot be read.
pub fn read_places(
    mut file: impl Read,
    length: u64,
) -> Result<BTreeMap<String, TensorPlace>, SafetensorsError> {
    let refused = |cause| SafetensorsError::Format {
        bytes: usize::try_from(length).unwrap_or(usize::MAX),
        cause,
    };
    let mut stated = [0; LENGTH_BYTES];
    let read = file.read_exact(&mut stated);
    read.map_err(SafetensorsError::Read)?;
    let stated = u64::from_le_bytes(stated);
    let begin = stated.saturating_add(LENGTH_BYTES as u64);
    if stated > HEADER_BYTES_MAX {
        return Err(refused(SafeTensorError::HeaderTooLarge));
    }
    if begin > length {
        return Err(refused(SafeTensorError::InvalidHeaderLength));
    }
    let mut header = Vec::new();
    let read = file.take(stated).read_to_end(&mut header);
    read.map_err(SafetensorsError::Read)?;
    let metadata: Metadata = serde_json::from_slice(&header)
        .map_err(|error| refused(SafeTensorError::InvalidHeaderDeserialization(error)))?;
    if begin + metadata.data_len() as u64 != length {
        return Err(refused(SafeTensorError::MetadataIncompleteBuffer));
    }
    let places = metadata.tensors().into_iter().map(|(name, info)| {
        let shape = Shape::new(info.shape.clone()).map_err(|cause| SafetensorsError::Shape {
            name: name.clone(),
            cause,
        })?;
        let (from, to) = info.data_offsets;
        let place = TensorPlace {
            dtype: own_dtype(&name, info.dtype)?,
            shape,
            bytes: begin + from as u64..begin + to as u64,
        };
        Ok((name, place))
    });
    places.collect()
}

/// Builds the header of a file of one tensor, which the tensor's elements must follow.
///
/// # Errors
/// [`SafetensorsError::Unwritable`] for types that the format lacks.
pub fn single_header(name: &str, dtype: DType, shape: &Shape) -> Result<Bytes, SafetensorsError> {
    let info = TensorInfo {
        dtype: file_dtype(name, dtype)?,
        shape: shape.dims().to_vec(),
        data_offsets: (0, shape.byte_length(dtype)),
    };
    let framework = [FRAMEWORK.map(str::to_owned)].map(|[key, name]| (key, name));
    let metadata = Metadata::new(Some(framework.into()), vec![(name.to_owned(), info)]);
    let metadata = metadata.map_err(SafetensorsError::Write)?;
    let text = serde_json::to_vec(&metadata);
    let mut text = text.map_err(|error| SafetensorsError::Write(error.into()))?;
    text.resize(text.len().next_multiple_of(LENGTH_BYTES), b' ');
    let length = (text.len() as u64).to_le_bytes();
    Ok([&length[..], &text].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::{TYPES, read, write};
    use crate::tensor::Tensor;

    fn tensors() -> BTreeMap<String, Tensor> {
        BTreeMap::from([
            (
                "ids".to_owned(),
                Tensor::from_vec([3], vec![7_i64, 8, 9]).unwrap(),
            ),
            (
                "a \"name\"".to_owned(),
                Tensor::from_vec([2, 1], vec![0.5_f32, 1.5]).unwrap(),
            ),
            (
                "empty".to_owned(),
                Tensor::from_vec([0], Vec::<f32>::new()).unwrap(),
            ),
        ])
    }

    #[test]
    fn a_place_is_where_the_elements_are() {
        let tensors = tensors();
        let file = write(&tensors).unwrap();
        let places = read_places(&file[..], file.len() as u64).unwrap();
        assert_eq!(places.len(), tensors.len());
        for (name, place) in places {
            let (tensor, range) = (&tensors[&name], place.bytes);
            assert_eq!(
                (place.dtype, &place.shape),
                (tensor.dtype(), tensor.shape())
            );
            let range = range.start as usize..range.end as usize;
            assert_eq!(&file[range], &tensor.bytes()[..], "{name}");
        }
    }

    #[test]
    fn a_header_and_the_elements_are_the_file_of_a_tensor() {
        for (name, tensor) in tensors() {
            let header = single_header(&name, tensor.dtype(), tensor.shape()).unwrap();
            let whole = Bytes::from([&header[..], tensor.bytes()].concat());
            assert_eq!(whole, write(&[(name, tensor)].into()).unwrap());
        }
        assert!(TYPES.iter().all(|(_, dtype)| *dtype != DType::U4));
        single_header("packed", DType::U4, &Shape::new([2]).unwrap()).unwrap_err();
    }

    #[test]
    fn a_header_that_lies_is_refused_without_its_tensors() {
        let file = write(&tensors()).unwrap();
        for length in [0, 7, 8, 20, file.len() - 1] {
            let cut = file.slice(..length);
            assert!(read(&cut).is_err());
            read_places(&cut[..], length as u64).unwrap_err();
        }
        let long = [u64::MAX.to_le_bytes().as_slice(), &[0; 8]].concat();
        read_places(&long[..], 16).unwrap_err();
    }
}
