//! A tensor that a run holds: it can be in the memory of the host or of a device, or on disk.

use std::sync::Arc;

use souk_memory::holdings::Handle;
use souk_memory::{DType, Shape};
use souk_vocabulary::residency::TensorHandle;

/// A tensor that a run holds, in any place.
#[derive(Clone, Debug)]
pub(super) struct HeldTensor {
    pub name: Arc<str>,
    pub handle: Handle,
    pub dtype: DType,
    pub shape: Shape,
}

impl HeldTensor {
    /// Returns the bytes of its elements.
    pub fn byte_size(&self) -> u64 {
        self.shape.byte_length(self.dtype) as u64
    }
}

/// Returns the bytes of a tensor's elements, in any place.
pub(super) fn bytes_of(held: &TensorHandle) -> u64 {
    match held {
        TensorHandle::Host(tensor) => tensor.bytes().len() as u64,
        TensorHandle::Device(resident) => resident.shape().byte_length(resident.dtype()) as u64,
    }
}
