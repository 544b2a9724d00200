//! Describes a tensor that a run holds while no operator uses it: an input, a weight, or an
//! intermediate result.
//!
//! The group's memory decides whether it is in the memory of the host or of a device, or on disk.
//! Its name, type and shape stay here, so that the run can plan with it wherever it is.

use std::sync::Arc;

use souk_memory::holdings::Handle;
use souk_memory::{DType, Shape};
use souk_vocabulary::residency::TensorHandle;

/// A tensor that a run holds. `handle` finds its elements in the pool.
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

/// Returns the number of bytes of a tensor's elements, whether it is on the host or on a device.
pub(super) fn tensor_bytes(held: &TensorHandle) -> u64 {
    match held {
        TensorHandle::Host(tensor) => tensor.bytes().len() as u64,
        TensorHandle::Device(resident) => resident.shape().byte_length(resident.dtype()) as u64,
    }
}
