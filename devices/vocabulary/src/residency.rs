//! Tensors that stay in a device's own memory from one run to another.
//!
//! A device that has such memory says what lies between it and the host's, and between other
//! devices' and it; who runs several devices decides by that what goes where.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use souk_memory::paths::Path;
use souk_memory::{DType, Shape, Tensor};

use crate::run_error::RunError;

/// A device's own memory, and the ways into it.
pub trait DeviceMemory: Any + Send + Sync {
    /// What lies between it and the host's memory, as far as the device says.
    fn host_link(&self) -> Path;

    /// What lies between another device's memory and it, where tensors come from there without
    /// passing the host's; `None` where they do not.
    fn peer_link(&self, other: &dyn DeviceMemory) -> Option<Path>;

    /// Copies a tensor here from the host's memory.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], or why the device failed.
    fn put(&self, tensor: &Tensor) -> Result<Arc<dyn Resident>, RunError>;

    /// Copies tensors here from the host's memory, all or none. A device that can makes one
    /// operation of it, so that what small ones take beside their bytes is taken once.
    ///
    /// # Errors
    /// As [`Self::put`].
    fn put_all(&self, tensors: &[Tensor]) -> Result<Vec<Arc<dyn Resident>>, RunError> {
        tensors.iter().map(|tensor| self.put(tensor)).collect()
    }

    /// Copies tensors that lie here to the host's memory, in one operation as
    /// [`Self::put_all`] does.
    ///
    /// # Errors
    /// Why the device failed.
    fn read_all(&self, residents: &[Arc<dyn Resident>]) -> Result<Vec<Tensor>, RunError> {
        let each = residents.iter().map(|resident| resident.to_host());
        each.collect()
    }

    /// Copies a tensor here from the memory of a device that has a [`Self::peer_link`] to it.
    ///
    /// # Errors
    /// As [`Self::put`].
    fn take(&self, from: &dyn Resident) -> Result<Arc<dyn Resident>, RunError>;

    /// Copies tensors here from one such device, in one operation as [`Self::put_all`] does.
    ///
    /// # Errors
    /// As [`Self::put`].
    fn take_all(&self, from: &[Arc<dyn Resident>]) -> Result<Vec<Arc<dyn Resident>>, RunError> {
        from.iter().map(|resident| self.take(&**resident)).collect()
    }
}

/// A tensor in a device's own memory; its room is given back when it is dropped.
pub trait Resident: Any + fmt::Debug + Send + Sync {
    /// Element type.
    fn dtype(&self) -> DType;

    /// Shape.
    fn shape(&self) -> &Shape;

    /// Bytes of the device's memory that it takes, which may be more than its elements have.
    fn bytes(&self) -> u64;

    /// Copies it to the host's memory.
    ///
    /// # Errors
    /// Why the device failed.
    fn to_host(&self) -> Result<Tensor, RunError>;
}

/// A tensor, wherever it lies.
#[derive(Clone, Debug)]
pub enum TensorHandle {
    /// In the host's memory.
    Host(Tensor),
    /// In a device's own.
    Device(Arc<dyn Resident>),
}

impl TensorHandle {
    /// Its element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::Host(tensor) => tensor.dtype(),
            Self::Device(resident) => resident.dtype(),
        }
    }

    /// Its shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        match self {
            Self::Host(tensor) => tensor.shape(),
            Self::Device(resident) => resident.shape(),
        }
    }

    /// The tensor in the host's memory: copied there if it is not.
    ///
    /// # Errors
    /// Why the device failed.
    pub fn to_host(&self) -> Result<Tensor, RunError> {
        match self {
            Self::Host(tensor) => Ok(tensor.clone()),
            Self::Device(resident) => resident.to_host(),
        }
    }
}
