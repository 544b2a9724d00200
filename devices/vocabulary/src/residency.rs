//! Defines the interface to a device's own memory, in which tensors can stay between runs.
//!
//! A device with such memory reports its links to the host's memory and to other devices' memories.
//! The scheduler, which runs several devices, uses the links to decide where each tensor should go.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use souk_memory::paths::Path;
use souk_memory::{DType, Shape, Tensor};

use crate::run_error::RunError;

/// A device's own memory and the links into it.
pub trait DeviceMemory: Any + Send + Sync {
    /// Returns the link to the host's memory, as far as the device knows it.
    fn host_link(&self) -> Path;

    /// Returns the link from another device's memory, if tensors can come from there without
    /// passing through the host's; otherwise `None`.
    fn peer_link(&self, other: &dyn DeviceMemory) -> Option<Path>;

    /// Copies a tensor here from the host's memory.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], or the device's failure.
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Arc<dyn Resident>, RunError>;

    /// Copies tensors here from the host's memory, all or none. A device that can do so uses one
    /// operation, so that small tensors share its fixed cost.
    ///
    /// # Errors
    /// See [`Self::copy_from_host`].
    fn put_all(&self, tensors: &[Tensor]) -> Result<Vec<Arc<dyn Resident>>, RunError> {
        tensors
            .iter()
            .map(|tensor| self.copy_from_host(tensor))
            .collect()
    }

    /// Copies resident tensors to the host's memory, in one operation as [`Self::put_all`] does.
    ///
    /// # Errors
    /// The device's failure.
    fn read_all(&self, residents: &[Arc<dyn Resident>]) -> Result<Vec<Tensor>, RunError> {
        let each = residents.iter().map(|resident| resident.to_host());
        each.collect()
    }

    /// Copies a tensor here from the memory of another device, with which this one must have a
    /// [`Self::peer_link`].
    ///
    /// # Errors
    /// See [`Self::copy_from_host`].
    fn copy_from_peer(&self, from: &dyn Resident) -> Result<Arc<dyn Resident>, RunError>;

    /// Copies tensors here from one such device, in one operation as [`Self::put_all`] does.
    ///
    /// # Errors
    /// See [`Self::copy_from_host`].
    fn take_all(&self, from: &[Arc<dyn Resident>]) -> Result<Vec<Arc<dyn Resident>>, RunError> {
        from.iter()
            .map(|resident| self.copy_from_peer(&**resident))
            .collect()
    }
}

/// A tensor in a device's own memory, which is freed when the tensor is dropped.
pub trait Resident: Any + fmt::Debug + Send + Sync {
    /// Returns the element type.
    fn dtype(&self) -> DType;

    /// Returns the shape.
    fn shape(&self) -> &Shape;

    /// Returns the bytes that it occupies in the device's memory, which may exceed those of its
    /// elements.
    fn bytes(&self) -> u64;

    /// Copies the tensor to the host's memory.
    ///
    /// # Errors
    /// The device's failure.
    fn to_host(&self) -> Result<Tensor, RunError>;
}

/// A tensor in any memory.
#[derive(Clone, Debug)]
pub enum TensorHandle {
    /// In the host's memory.
    Host(Tensor),
    /// In a device's own memory.
    Device(Arc<dyn Resident>),
}

impl TensorHandle {
    /// Returns the element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::Host(tensor) => tensor.dtype(),
            Self::Device(resident) => resident.dtype(),
        }
    }

    /// Returns the shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        match self {
            Self::Host(tensor) => tensor.shape(),
            Self::Device(resident) => resident.shape(),
        }
    }

    /// Returns the tensor in the host's memory, copied there if necessary.
    ///
    /// # Errors
    /// The device's failure.
    pub fn to_host(&self) -> Result<Tensor, RunError> {
        match self {
            Self::Host(tensor) => Ok(tensor.clone()),
            Self::Device(resident) => resident.to_host(),
        }
    }
}
