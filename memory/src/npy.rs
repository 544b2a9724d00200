//! Reads and writes NumPy's `.npy` files, in which users provide and receive tensors.
//!
//! The module reads versions 1 to 3, either byte order, and C or Fortran order. It writes version
//! 1.0 in little-endian C order with the header padded to 64 bytes, exactly as NumPy does. It
//! cannot write types that NumPy lacks (`bf16`, 8-bit floats and packed types); `.safetensors` has
//! some of them.

mod header;
mod texts;

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::{DType, Shape, Tensor, TensorError};
use header::Header;
pub use texts::{Texts, read_texts};

/// Why a file is not a tensor, or a tensor has no file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NpyError {
    /// The file does not begin as `.npy` files do.
    #[error("not a .npy file: it does not begin with \\x93NUMPY")]
    Magic,
    /// The version is not supported.
    #[error(".npy version {major}.{minor} is not known: 1.0, 2.0 and 3.0 are")]
    Version {
        /// The major version.
        major: u8,
        /// The minor version.
        minor: u8,
    },
    /// The file ends inside its header.
    #[error("the .npy header is cut short: expected {expected} bytes, found {found}")]
    HeaderCut {
        /// The length of the header in bytes.
        expected: usize,
        /// The length of the file in bytes.
        found: usize,
    },
    /// The header is not a dictionary as NumPy writes it.
    #[error("the .npy header cannot be read: {reason}")]
    Header {
        /// The fault in the header.
        reason: &'static str,
    },
    /// An element is not valid text.
    #[error("element {element} of the .npy file is not a text")]
    Text {
        /// The element's index in the order of the file.
        element: usize,
    },
    /// The element type is not supported.
    #[error("the .npy element type {descr:?} is not supported")]
    Descr {
        /// NumPy's name of the type.
        descr: String,
    },
    /// The elements do not fill the shape.
    #[error(
        "the .npy file is truncated or too long: {dtype} {shape} takes {expected} bytes of \
         elements, found {found}"
    )]
    Length {
        /// The element type in the header.
        dtype: DType,
        /// The shape in the header.
        shape: Shape,
        /// The bytes of elements that they need.
        expected: usize,
        /// The bytes of elements in the file.
        found: usize,
    },
    /// The shape or the elements are not valid.
    #[error("the .npy file holds no tensor: {0}")]
    Tensor(#[from] TensorError),
    /// NumPy has no such element type.
    #[error("NumPy has no element type {dtype}: write .safetensors instead")]
    Unwritable {
        /// The tensor's type.
        dtype: DType,
    },
}

/// Reads a file's bytes. The tensor will share the memory of `file` if its elements are
/// little-endian in C order.
///
/// # Errors
/// [`NpyError`], with the expected and actual sizes if they differ.
pub fn read(file: &Bytes) -> Result<Tensor, NpyError> {
    let (header, start) = Header::read(file)?;
    let shape = Shape::new(header.dims.clone()).map_err(TensorError::from)?;
    let elements = file.slice(start..);
    let expected = shape.byte_length(header.dtype);
    if elements.len() != expected {
        let (dtype, found) = (header.dtype, elements.len());
        return Err(NpyError::Length {
            dtype,
            shape,
            expected,
            found,
        });
    }
    let elements = if header.big_endian {
        swap_byte_order(&elements, header.swap_bytes)
    } else {
        elements
    };
    let elements = if header.fortran && shape.rank() > 1 {
        c_order(&elements, &shape, header.element_bytes())
    } else {
        elements
    };
    Ok(Tensor::new(header.dtype, shape, elements)?)
}

/// Builds the file of a tensor.
///
/// # Errors
/// [`NpyError::Unwritable`] for types that NumPy lacks; you can write some of them as
/// `.safetensors`.
pub fn write(tensor: &Tensor) -> Result<Bytes, NpyError> {
    let header = header_bytes(tensor.dtype(), tensor.shape())?;
    let mut file = BytesMut::with_capacity(header.len() + tensor.bytes().len());
    file.extend_from_slice(&header);
    file.extend_from_slice(tensor.bytes());
    Ok(file.freeze())
}

/// Builds the header that precedes the elements of a tensor in its file.
///
/// # Errors
/// [`NpyError::Unwritable`] for types that NumPy lacks.
pub fn header_bytes(dtype: DType, shape: &Shape) -> Result<Bytes, NpyError> {
    Ok(Header::build_prefix(dtype, shape)?.into())
}

/// Reverses the bytes of each number; `size` is the number's length in bytes and must not be zero.
fn swap_byte_order(elements: &Bytes, size: usize) -> Bytes {
    let mut turned = elements.to_vec();
    turned.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    turned.into()
}

/// Reorders elements from Fortran order to C order.
fn c_order(elements: &Bytes, shape: &Shape, size: usize) -> Bytes {
    let mut strides = vec![0; shape.rank()];
    let mut stride = size;
    for (axis, &length) in shape.dims().iter().enumerate() {
        strides[axis] = stride;
        stride *= length;
    }
    let mut ordered = Vec::with_capacity(elements.len());
    let mut index = vec![0usize; shape.rank()];
    for _ in 0..shape.element_count() {
        let offset: usize = index
            .iter()
            .zip(&strides)
            .map(|(place, stride)| place * stride)
            .sum();
        ordered.extend_from_slice(&elements[offset..offset + size]);
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape.dims()[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    ordered.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(descr: &str, fortran: &str, shape: &str, elements: &[u8]) -> Bytes {
        let dictionary =
            format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend_from_slice(&(dictionary.len() as u16).to_le_bytes());
        file.extend_from_slice(dictionary.as_bytes());
        file.extend_from_slice(elements);
        file.into()
    }

    #[test]
    fn a_written_file_is_what_numpy_writes() {
        let file = write(&Tensor::from_vec([3], vec![1f32, 2.0, 3.0]).unwrap()).unwrap();
        let header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, \
            'shape': (3,), }";
        assert_eq!(&file[..header.len()], header);
        assert_eq!(file.len(), 128 + 12);
        assert_eq!(file[127], b'\n');
    }

    #[test]
    fn big_endian_and_fortran_order_are_read() {
        let elements = [0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6];
        let tensor = read(&file(">i2", "True", "(2, 3)", &elements)).unwrap();
        assert_eq!(tensor.to_vec::<i16>().unwrap(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn versions_two_and_three_have_a_longer_length() {
        let one = file("<u1", "False", "(1,)", &[7]);
        for version in [2u8, 3] {
            let mut two = b"\x93NUMPY".to_vec();
            two.extend_from_slice(&[version, 0]);
            two.extend_from_slice(&[one[8], one[9], 0, 0]);
            two.extend_from_slice(&one[10..]);
            assert_eq!(read(&two.into()).unwrap().to_vec::<u8>().unwrap(), [7]);
        }
    }

    #[test]
    fn a_truncated_file_says_what_was_expected_and_found() {
        let error = read(&file("<f8", "False", "(2, 2)", &[0; 31])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the .npy file is truncated or too long: f64 [2, 2] takes 32 bytes of elements, \
             found 31"
        );
        let whole = file("<f8", "False", "(2, 2)", &[0; 32]);
        assert_eq!(
            read(&whole.slice(..40)),
            Err(NpyError::HeaderCut {
                expected: whole.len() - 32,
                found: 40
            })
        );
        assert_eq!(
            read(&Bytes::from_static(b"PK\x03\x04")),
            Err(NpyError::Magic)
        );
    }

    #[test]
    fn objects_and_absurd_shapes_are_refused() {
        assert!(matches!(
            read(&file("|O", "False", "(2,)", &[])),
            Err(NpyError::Descr { descr }) if descr == "|O"
        ));
        let bomb = file("<f4", "False", "(1099511627776, 1099511627776)", &[]);
        assert!(matches!(
            read(&bomb),
            Err(NpyError::Tensor(TensorError::Shape(_)))
        ));
    }

    #[test]
    fn scalars_and_empty_tensors_survive() {
        for tensor in [
            Tensor::scalar(5i64),
            Tensor::from_vec([0, 3], Vec::<f32>::new()).unwrap(),
        ] {
            assert_eq!(read(&write(&tensor).unwrap()).unwrap(), tensor);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            dims in prop::collection::vec(0usize..5, 0..5),
            code in 0..25usize,
        ) {
            let dtype = DType::all_types().nth(code).unwrap();
            let shape = Shape::new(dims).unwrap();
            let bytes = vec![1u8; shape.byte_length(dtype)];
            let tensor = Tensor::new(dtype, shape, bytes.into()).unwrap();
            match write(&tensor) {
                Ok(file) => prop_assert_eq!(read(&file).unwrap(), tensor),
                Err(error) => prop_assert_eq!(error, NpyError::Unwritable { dtype }),
            }
        }

        #[test]
        fn no_header_makes_the_reader_panic(
            text in ".{0,80}",
            tail in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
            bytes.extend_from_slice(&tail);
            let _ = read(&bytes.into());
        }
    }
}
