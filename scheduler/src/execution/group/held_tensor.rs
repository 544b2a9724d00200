//! A tensor that a run holds, wherever it lies.

use std::sync::Arc;

use souk_memory::holdings::Handle;
use souk_memory::{DType, Shape};
use souk_vocabulary::held::Held;

/// A tensor that is held, wherever it lies.
#[derive(Clone, Debug)]
pub(super) struct HeldTensor {
    pub name: Arc<str>,
    pub handle: Handle,
    pub dtype: DType,
    pub shape: Shape,
}

impl HeldTensor {
    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.shape.byte_length(self.dtype) as u64
    }
}

/// Bytes of a tensor's elements, wherever it lies.
pub(super) fn bytes_of(held: &Held) -> u64 {
    match held {
        Held::Host(tensor) => tensor.bytes().len() as u64,
        Held::Device(resident) => resident.shape().byte_length(resident.dtype()) as u64,
    }
}
