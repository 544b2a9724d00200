//! One node that is being recorded: the operators read from it the node's attributes and inputs, on
//! the host or the device, and record their kernels with it.

use std::borrow::Cow;
use std::sync::OnceLock;

use bytes::Bytes;
use souk_memory::{DType, Shape, Tensor};
use souk_reference::call::{Call, KernelError};

use super::conversions::widen_array;
use super::epilogue::Epilogue;
use super::matrix::Matrix;
use super::stream::{Array, Groups, Stream};
use crate::context::Context;
use crate::error::GpuError;
use crate::numbers::packed::per_word;

/// A value of a run: on the host, on the device, or both.
#[derive(Clone)]
pub(crate) struct Value {
    pub host: Option<Tensor>,
    device: OnceLock<Array>,
}

/// A node about to be recorded.
pub(crate) struct Step<'a, 'c> {
    pub stream: &'a mut Stream<'c>,
    /// Its attributes, and those inputs that are on the host.
    pub call: Call<'a>,
    /// Its inputs in order.
    pub values: Vec<Option<&'a Value>>,
    /// The operations fused into it.
    pub epilogue: &'a Epilogue,
    /// The type of its first output, if known.
    pub wanted: Option<DType>,
    /// Whether its first input is a state that no later node reads, so that it can be overwritten.
    pub overwrites: bool,
    /// The matrix that it reads in its stored form, in the place of one of its inputs.
    pub matrix: Option<&'a Matrix>,
}

impl Value {
    /// A value the host has.
    pub fn of_host(tensor: Tensor) -> Self {
        Self {
            host: Some(tensor),
            device: OnceLock::new(),
        }
    }

    /// A value the device has.
    pub fn of_device(array: Array) -> Self {
        Self {
            host: None,
            device: OnceLock::from(array),
        }
    }

    /// A value both have.
    pub fn of_both(tensor: Tensor, array: Array) -> Self {
        Self {
            host: Some(tensor),
            device: OnceLock::from(array),
        }
    }

    /// Returns the array on the device, if there is one.
    pub fn on_device(&self) -> Option<&Array> {
        self.device.get()
    }

    /// Returns the sizes.
    pub fn dims(&self) -> &[usize] {
        match (&self.host, self.device.get()) {
            (Some(tensor), _) => tensor.dims(),
            (None, Some(array)) => &array.dims,
            (None, None) => &[],
        }
    }

    /// Returns the array on the device, and first sends the tensor there if necessary.
    pub fn device_array(&self, stream: &Stream<'_>) -> Result<&Array, GpuError> {
        if let Some(array) = self.device.get() {
            return Ok(array);
        }
        let tensor = self
            .host
            .as_ref()
            .expect("a value is on the host or on the device");
        let array = upload_tensor(stream, tensor)?;
        Ok(self.device.get_or_init(|| array))
    }
}

/// Copies a tensor to the device, as the words that kernels read.
pub(crate) fn upload_tensor(stream: &Stream<'_>, tensor: &Tensor) -> Result<Array, GpuError> {
    let words = words_of(stream.context, tensor)?;
    stream.upload_words(tensor.dtype(), tensor.dims(), &words)
}

/// Sends several tensors to the device in one copy.
pub(crate) fn upload_all(stream: &Stream<'_>, tensors: &[&Tensor]) -> Result<Vec<Array>, GpuError> {
    let words = tensors.iter().map(|it| words_of(stream.context, it));
    let words: Vec<Cow<'_, [u8]>> = words.collect::<Result<_, _>>()?;
    stream.words_of_all(tensors, &words)
}

/// A tensor as the words that kernels read.
fn words_of<'t>(context: &Context, tensor: &'t Tensor) -> Result<Cow<'t, [u8]>, GpuError> {
    let dtype = tensor.dtype();
    let narrow = |value: &i64| i32::try_from(*value).map_err(|_| KernelError::Range(0));
    Ok(match dtype {
        _ if context.double_support().has_dtype(dtype) => Cow::Borrowed(tensor.bytes()),
        DType::F32 | DType::I32 | DType::U32 => Cow::Borrowed(tensor.bytes()),
        DType::Bool => {
            let words = tensor
                .bytes()
                .iter()
                .flat_map(|&byte| u32::from(byte != 0).to_le_bytes());
            Cow::Owned(words.collect())
        }
        DType::I64 => {
            let values = tensor.elements::<i64>().map_err(KernelError::from)?;
            let narrowed: Vec<i32> = values.iter().map(narrow).collect::<Result<_, _>>()?;
            Cow::Owned(bytes_of(&narrowed))
        }
        dtype if per_word(dtype) > 1 => {
            let mut words = tensor.bytes().to_vec();
            words.resize(words.len().next_multiple_of(4), 0);
            Cow::Owned(words)
        }
        _ => return Err(KernelError::DType(dtype).into()),
    })
}

/// Converts words from the device to a tensor of the array's type.
pub(crate) fn tensor_from_words(array: &Array, words: Bytes) -> Result<Tensor, GpuError> {
    let word = |bytes: &[u8]| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let bytes: Bytes = match array.dtype {
        _ if array.is_double => words,
        DType::Bool => words
            .chunks_exact(4)
            .map(|bytes| u8::from(word(bytes) != 0))
            .collect::<Vec<u8>>()
            .into(),
        DType::I64 => words
            .chunks_exact(4)
            .flat_map(|bytes| i64::from(word(bytes)).to_le_bytes())
            .collect::<Vec<u8>>()
            .into(),
        DType::F64 => words
            .chunks_exact(4)
            .flat_map(|bytes| f64::from(f32::from_bits(word(bytes).cast_unsigned())).to_le_bytes())
            .collect::<Vec<u8>>()
            .into(),
        dtype if per_word(dtype) > 1 => {
            words.slice(..(dtype.bit_width() * array.count()).div_ceil(8))
        }
        _ => words,
    };
    let shape = Shape::new(array.dims.clone()).map_err(KernelError::from)?;
    Ok(Tensor::new(array.dtype, shape, bytes).map_err(KernelError::from)?)
}

/// Returns integers as the bytes that the device reads.
pub(crate) fn bytes_of(values: &[i32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Encodes a number that can be negative as a word of a kernel's sizes.
pub(crate) fn to_word(value: i64) -> usize {
    value as i32 as u32 as usize
}

impl<'c> Step<'_, 'c> {
    /// Returns an input on the device, and widens it if it is packed.
    pub fn wide_array(&mut self, index: usize) -> Result<Array, GpuError> {
        self.optional_wide(index)?
            .ok_or(GpuError::Operator(KernelError::Missing(index)))
    }

    /// Returns an input on the device, if the node has it, and widens it if it is packed.
    pub fn optional_wide(&mut self, index: usize) -> Result<Option<Array>, GpuError> {
        match self.optional_stored(index)? {
            Some(array) => Ok(Some(widen_array(self.stream, array)?)),
            None => Ok(None),
        }
    }

    /// Returns an input on the device, for kernels that read halves directly where the device has
    /// them; otherwise returns the same as [`Self::array`].
    pub fn native_array(&mut self, index: usize) -> Result<Array, GpuError> {
        let array = self.stored_array(index)?;
        match self.stream.context.half_support().has_dtype(array.dtype) {
            true => Ok(array),
            false => widen_array(self.stream, array),
        }
    }

    /// Returns the type in which a kernel must write the node's first output of floats: halves
    /// where the device has them, otherwise 32-bit floats, which are rounded and packed afterwards.
    pub fn output_dtype(&self) -> DType {
        match self.wanted {
            Some(dtype) if self.stream.context.half_support().has_dtype(dtype) => dtype,
            _ => DType::F32,
        }
    }

    /// Returns an input on the device in its stored form, if the node has it.
    pub fn optional_stored(&self, index: usize) -> Result<Option<Array>, GpuError> {
        match self.values.get(index).copied().flatten() {
            Some(value) => Ok(Some(value.device_array(self.stream)?.clone())),
            None => Ok(None),
        }
    }

    /// Returns an input on the device in its stored form.
    pub fn stored_array(&self, index: usize) -> Result<Array, GpuError> {
        self.optional_stored(index)?
            .ok_or(GpuError::Operator(KernelError::Missing(index)))
    }

    /// Sizes of an input, wherever it is.
    pub fn input_dims(&self, index: usize) -> Result<Vec<usize>, GpuError> {
        if let Some(tensor) = self.call.optional_input(index) {
            return Ok(tensor.dims().to_vec());
        }
        Ok(self.stored_array(index)?.dims)
    }

    /// Uploads indices as an array of 32-bit integers.
    pub fn upload_indices(&self, values: &[i32]) -> Result<Array, GpuError> {
        self.stream
            .upload_words(DType::I32, &[values.len()], &bytes_of(values))
    }

    /// Records a kernel; its sizes must fit 32 bits.
    pub fn record_kernel(
        &mut self,
        source: &str,
        sizes: &[usize],
        arrays: &[&Array],
        groups: Groups,
    ) -> Result<(), GpuError> {
        let narrow =
            |&size: &usize| u32::try_from(size).map_err(|_| KernelError::TooLarge(size as u128));
        let words: Vec<u32> = sizes.iter().map(narrow).collect::<Result<_, _>>()?;
        self.stream.record_dispatch(source, &words, arrays, groups)
    }

    /// The stream this step is recorded in.
    pub fn stream(&self) -> &Stream<'c> {
        self.stream
    }
}
