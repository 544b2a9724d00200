//! A tensor: element type, shape, and its bytes in little-endian C order.
//!
//! The bytes are shared, so a clone of a tensor copies nothing. A tensor's *blob* is a small header
//! and those bytes, and the blob's hash is the tensor's content id: two tensors with equal bytes
//! but different shapes are different content. The header's length is a multiple of 64, so
//! [`Tensor::elements`] can borrow the elements of a blob in aligned memory.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::{Bf16, ContentId, DType, Element, F16, RANK_MAX, Shape, ShapeError};

#[cfg(target_endian = "big")]
compile_error!("tensors are viewed in place: souk needs a little-endian machine");

/// The first bytes of every blob: a name and the version of the layout.
const MAGIC: [u8; 8] = *b"souktns\x01";
/// The bytes of the magic, element type, rank and six reserved bytes, before the sizes.
const HEADER_FIXED: usize = 16;
/// The alignment of blob headers in bytes: a cache line.
const HEADER_ALIGN: usize = 64;

/// An n-dimensional array with shared, immutable bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    bytes: Bytes,
}

/// Why something is not a tensor, or not the expected one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TensorError {
    /// The shape is not valid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The bytes do not fill the shape.
    #[error("a tensor of {dtype} {shape} takes {expected} bytes, but there are {found}")]
    Length {
        /// The element type of the tensor.
        dtype: DType,
        /// The stated shape.
        shape: Shape,
        /// The bytes that they need.
        expected: usize,
        /// The bytes found.
        found: usize,
    },
    /// The tensor has another element type than expected.
    #[error("expected a tensor of {expected}, found {found}")]
    DType {
        /// The expected type.
        expected: DType,
        /// The type found.
        found: DType,
    },
    /// A boolean tensor holds a byte other than 0 and 1.
    #[error("element {index} of a boolean tensor is {value}, neither 0 nor 1")]
    Bool {
        /// The element's index.
        index: usize,
        /// The element's byte.
        value: u8,
    },
    /// The bytes are not a tensor's blob.
    #[error("the content is not a tensor: {reason}")]
    Blob {
        /// The fault in the bytes.
        reason: &'static str,
    },
}

impl Tensor {
    /// Creates a tensor over `bytes`, which must be little-endian in C order.
    ///
    /// # Errors
    /// [`TensorError::Length`] if they do not fill the shape, [`TensorError::Bool`] if they are not
    /// valid booleans.
    pub fn new(dtype: DType, shape: Shape, bytes: Bytes) -> Result<Self, TensorError> {
        let expected = shape.byte_length(dtype);
        if bytes.len() != expected {
            let found = bytes.len();
            return Err(TensorError::Length {
                dtype,
                shape,
                expected,
                found,
            });
        }
        if dtype == DType::Bool
            && let Some(index) = bytes.iter().position(|&byte| byte > 1)
        {
            return Err(TensorError::Bool {
                index,
                value: bytes[index],
            });
        }
        Ok(Self {
            dtype,
            shape,
            bytes,
        })
    }

    /// Creates a tensor that takes over `values` without a copy, so its elements are aligned.
    ///
    /// # Errors
    /// [`TensorError::Shape`] or [`TensorError::Length`].
    pub fn from_vec<T: Element>(
        dims: impl Into<Vec<usize>>,
        values: Vec<T>,
    ) -> Result<Self, TensorError> {
        Self::new(
            T::DTYPE,
            Shape::new(dims)?,
            Bytes::from_owner(Owner(values)),
        )
    }

    /// Creates a boolean tensor.
    ///
    /// # Errors
    /// [`TensorError::Shape`] or [`TensorError::Length`].
    pub fn from_bools(dims: impl Into<Vec<usize>>, values: &[bool]) -> Result<Self, TensorError> {
        let bytes: Vec<u8> = values.iter().map(|&value| u8::from(value)).collect();
        Self::new(DType::Bool, Shape::new(dims)?, bytes.into())
    }

    /// Creates a tensor of one element and no dimensions.
    #[must_use]
    pub fn scalar<T: Element>(value: T) -> Self {
        let bytes = Bytes::from_owner(Owner(vec![value]));
        Self {
            dtype: T::DTYPE,
            shape: Shape::scalar(),
            bytes,
        }
    }

    /// Returns the element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the sizes, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Returns the elements' bytes, little-endian in C order.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the same elements in another shape, which must have the same count.
    ///
    /// # Errors
    /// [`TensorError::Shape`] or [`TensorError::Length`].
    pub fn to_shape(&self, dims: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        Self::new(self.dtype, Shape::new(dims)?, self.bytes.clone())
    }

    /// Returns the elements: borrowed if they are aligned, otherwise copied.
    ///
    /// # Errors
    /// [`TensorError::DType`] if they have another type.
    pub fn elements<T: Element>(&self) -> Result<Cow<'_, [T]>, TensorError> {
        self.expect_dtype(T::DTYPE)?;
        match bytemuck::try_cast_slice(&self.bytes) {
            Ok(slice) => Ok(Cow::Borrowed(slice)),
            Err(_) => Ok(Cow::Owned(bytemuck::allocation::pod_collect_to_vec(
                &self.bytes,
            ))),
        }
    }

    /// Returns a copy of the elements.
    ///
    /// # Errors
    /// [`TensorError::DType`] if they have another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        self.elements().map(Cow::into_owned)
    }

    /// Returns the elements of a boolean tensor.
    ///
    /// # Errors
    /// [`TensorError::DType`] if the tensor has another type.
    pub fn to_bools(&self) -> Result<Vec<bool>, TensorError> {
        self.expect_dtype(DType::Bool)?;
        Ok(self.bytes.iter().map(|&byte| byte != 0).collect())
    }

    /// Returns the elements of a 16-, 32- or 64-bit float tensor as exact 64-bit floats.
    ///
    /// # Errors
    /// [`TensorError::DType`], expecting [`DType::F64`], for any other type.
    pub fn to_f64s(&self) -> Result<Vec<f64>, TensorError> {
        match self.dtype {
            DType::F16 => self.widen_elements(|value: F16| f64::from(value.to_f32())),
            DType::Bf16 => self.widen_elements(|value: Bf16| f64::from(value.to_f32())),
            DType::F32 => self.widen_elements(|value: f32| f64::from(value)),
            _ => self.to_vec(),
        }
    }

    /// Computes the id of this tensor, the hash of its blob, without building the blob.
    #[must_use]
    pub fn id(&self) -> ContentId {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.blob_header()).update(&self.bytes);
        ContentId::from_bytes(*hasher.finalize().as_bytes())
    }

    /// Builds the blob, header and bytes in one run, as the store and the network carry it. This
    /// copies once.
    #[must_use]
    pub fn to_blob(&self) -> Bytes {
        let header = self.blob_header();
        let mut blob = BytesMut::with_capacity(header.len() + self.bytes.len());
        blob.extend_from_slice(&header);
        blob.extend_from_slice(&self.bytes);
        blob.freeze()
    }

    /// Builds the header of this tensor's blob; the blob is the header followed by
    /// [`Tensor::bytes`].
    #[must_use]
    pub fn blob_header(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER_ALIGN);
        header.extend_from_slice(&MAGIC);
        let code = u8::try_from(self.dtype.onnx_code()).expect("ONNX codes are below 256");
        let rank = u8::try_from(self.shape.rank()).expect("a rank is at most RANK_MAX");
        header.extend_from_slice(&[code, rank, 0, 0, 0, 0, 0, 0]);
        for &size in self.shape.dims() {
            header.extend_from_slice(&(size as u64).to_le_bytes());
        }
        header.resize(header.len().next_multiple_of(HEADER_ALIGN), 0);
        header
    }

    /// Returns the length of this tensor's blob in bytes.
    #[must_use]
    pub fn blob_length(&self) -> usize {
        Tensor::blob_length_of(self.dtype, &self.shape)
    }

    /// Returns the length of the blob of a tensor of this type and shape, in bytes.
    #[must_use]
    pub fn blob_length_of(dtype: DType, shape: &Shape) -> usize {
        header_length(shape.rank()) + shape.byte_length(dtype)
    }

    /// Returns the tensor of a blob, sharing its bytes.
    ///
    /// # Errors
    /// [`TensorError::Blob`] if the bytes are not a blob, or those of [`Tensor::new`].
    pub fn from_blob(blob: &Bytes) -> Result<Self, TensorError> {
        let refuse = |reason| Err(TensorError::Blob { reason });
        let Some(fixed) = blob.first_chunk::<HEADER_FIXED>() else {
            return refuse("it is shorter than a header");
        };
        if fixed[..8] != MAGIC {
            return refuse("it does not begin as one of this version");
        }
        let rank = usize::from(fixed[9]);
        let length = header_length(rank);
        if rank > RANK_MAX || blob.len() < length {
            return refuse("its header is cut short");
        }
        let Ok(dtype) = DType::from_onnx_code(i32::from(fixed[8])) else {
            return refuse("its element type is unknown");
        };
        let sizes = blob[HEADER_FIXED..HEADER_FIXED + rank * 8].chunks_exact(8);
        let padding = &blob[HEADER_FIXED + rank * 8..length];
        if fixed[10..].iter().chain(padding).any(|&byte| byte != 0) {
            return refuse("its padding is not zero");
        }
        let dims: Vec<usize> = sizes
            .map(|size| u64::from_le_bytes(size.try_into().expect("chunks of 8")) as usize)
            .collect();
        Self::new(dtype, Shape::new(dims)?, blob.slice(length..))
    }

    fn expect_dtype(&self, expected: DType) -> Result<(), TensorError> {
        if self.dtype == expected {
            return Ok(());
        }
        Err(TensorError::DType {
            expected,
            found: self.dtype,
        })
    }

    fn widen_elements<T: Element>(
        &self,
        widen: impl Fn(T) -> f64,
    ) -> Result<Vec<f64>, TensorError> {
        Ok(self
            .elements::<T>()?
            .iter()
            .map(|&value| widen(value))
            .collect())
    }
}

/// Returns the length of a blob's header for `rank` dimensions, in bytes.
fn header_length(rank: usize) -> usize {
    (HEADER_FIXED + rank * 8).next_multiple_of(HEADER_ALIGN)
}

/// Presents elements as bytes.
struct Owner<T>(Vec<T>);

impl<T: Element> AsRef<[u8]> for Owner<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tensor_refuses_bytes_that_do_not_fill_it() {
        let shape = Shape::new([2, 2]).unwrap();
        let error = Tensor::new(DType::F32, shape, Bytes::from_static(&[0; 15])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a tensor of f32 [2, 2] takes 16 bytes, but there are 15"
        );
    }

    #[test]
    fn elements_of_a_vector_are_borrowed_and_unaligned_ones_copied() {
        let tensor = Tensor::from_vec([3], vec![1i64, 2, 3]).unwrap();
        assert!(matches!(
            tensor.elements::<i64>().unwrap(),
            Cow::Borrowed([1, 2, 3])
        ));
        let mut shifted = BytesMut::from(&[0u8][..]);
        shifted.extend_from_slice(tensor.bytes());
        let odd = Tensor::new(
            DType::I64,
            Shape::new([3]).unwrap(),
            shifted.freeze().slice(1..),
        );
        assert_eq!(odd.unwrap().to_vec::<i64>().unwrap(), [1, 2, 3]);
    }

    #[test]
    fn another_type_is_refused_by_name() {
        let tensor = Tensor::scalar(1f32);
        let error = tensor.to_vec::<i64>().unwrap_err();
        assert_eq!(error.to_string(), "expected a tensor of i64, found f32");
    }

    #[test]
    fn booleans_are_zero_or_one() {
        let tensor = Tensor::from_bools([2], &[true, false]).unwrap();
        assert_eq!(tensor.to_bools().unwrap(), [true, false]);
        let wrong = Tensor::new(
            DType::Bool,
            Shape::new([1]).unwrap(),
            Bytes::from_static(&[2]),
        );
        assert_eq!(wrong, Err(TensorError::Bool { index: 0, value: 2 }));
    }

    #[test]
    fn a_blob_that_claims_too_much_is_refused_without_allocation() {
        let mut blob = Tensor::scalar(1f32).to_blob().to_vec();
        blob[9] = 2;
        blob[16..32].fill(0x3f);
        let error = Tensor::from_blob(&blob.into()).unwrap_err();
        assert!(matches!(
            error,
            TensorError::Shape(ShapeError::Count { .. })
        ));
    }

    proptest! {
        #[test]
        fn a_blob_gives_back_its_tensor(dims in prop::collection::vec(0usize..4, 0..9)) {
            let count: usize = dims.iter().product();
            let values: Vec<f32> = (0..count).map(|value| value as f32).collect();
            let tensor = Tensor::from_vec(dims, values).unwrap();
            let blob = tensor.to_blob();
            prop_assert_eq!(blob.len(), tensor.blob_length());
            prop_assert_eq!(ContentId::for_content(&blob), tensor.id());
            prop_assert_eq!(Tensor::from_blob(&blob).unwrap(), tensor);
        }

        #[test]
        fn no_bytes_make_a_blob_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut blob = MAGIC.to_vec();
            blob.extend_from_slice(&bytes);
            let _ = Tensor::from_blob(&blob.into());
            let _ = Tensor::from_blob(&bytes.into());
        }
    }
}
