//! NVIDIA GPUs through CUDA: the driver, the compiler (NVRTC) and the library of matrix products
//! (cuBLASLt). The crate opens each when it needs it, and needs none of them to build.
//!
//! CUDA is another driver beneath the GPU backend, so its operators, kernels and refusals are those
//! of `gpu`. The crate translates kernels from the same WGSL ([`emit`]) and compiles them for the
//! card. Products go to the library, with a bias where the operator has one. A repeated run is
//! captured as a graph and launched at once.

mod driver;
pub mod emit;
mod library;
pub mod nvrtc;
mod product;

use std::time::Duration;

use souk_vocabulary::profile::{self, Memory, Profile};
use souk_vocabulary::taxonomy::{GpuApi, MemoryKind, ProcessorKind, Trait};
use thiserror::Error;

pub use driver::{Block, Driver, Kernel, RunStep, Span};
pub use library::{MissingLibrary, check_libraries};
pub use product::{FusedFunction, Product, Side, SumPrecision, even_stride};

/// A GPU that the driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Number of the card in CUDA.
    pub ordinal: usize,
    /// Name of the card in the driver.
    pub name: String,
    /// Compute capability, such as (9, 0).
    pub capability: (u8, u8),
    /// Bytes of its memory.
    pub memory_bytes: u64,
}

/// Why no GPU is reached through CUDA.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CudaError {
    /// A library is not there.
    #[error(transparent)]
    Absent(#[from] MissingLibrary),
    /// The driver failed.
    #[error("the CUDA driver failed: {reason}")]
    Driver {
        /// The library's message.
        reason: String,
    },
    /// There is no such device.
    #[error("there is no CUDA device {ordinal}; there are {count}")]
    Unknown {
        /// The requested number.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
}

impl CudaError {
    fn from_driver(error: impl std::fmt::Debug) -> Self {
        let reason = format!("{error:?}");
        Self::Driver { reason }
    }
}

/// Lists the GPUs of this machine.
///
/// # Errors
/// Returns a [`CudaError`] if a library is absent or the driver reports an error.
pub fn list_devices() -> Result<Vec<CudaDevice>, CudaError> {
    check_libraries()?;
    let count = driver::device_count().map_err(CudaError::from_driver)?;
    (0..count).map(driver::describe_device).collect()
}

impl CudaDevice {
    /// Describes the device. A measurement must fill in the figures of its speed.
    #[must_use]
    pub fn profile(&self) -> Profile {
        Profile {
            name: profile::GPU.to_owned(),
            vendor: "NVIDIA".to_owned(),
            model: self.name.clone(),
            kind: ProcessorKind::Gpu {
                api: GpuApi::Cuda {
                    capability: self.capability,
                },
            },
            emulated: false,
            memory: Memory {
                kind: MemoryKind::Unknown,
                bytes: self.memory_bytes,
                bytes_per_second: f64::INFINITY,
            },
            throughput: Default::default(),
            launch: Duration::ZERO,
            power: None,
            traits: vec![Trait::HighlyParallel, Trait::LargeBatch],
            source: "the CUDA driver".to_owned(),
        }
    }
}

#[cfg(test)]
pub mod tests;
