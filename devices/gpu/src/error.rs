//! The errors of the GPU backend, and their conversion to the errors that a compilation or a run
//! returns to its caller.

use std::time::Duration;

use souk_onnx::NodeProto;
use souk_onnx::subgraph::{CompileError, node_name};
use souk_reference::call::KernelError;
use souk_vocabulary::processor::RunError;
use thiserror::Error;

/// Why a step on the GPU failed.
#[derive(Debug, Error)]
pub(crate) enum GpuError {
    /// The operator's inputs do not go together.
    #[error(transparent)]
    Operator(#[from] KernelError),
    /// The run has no such value.
    #[error("the value {0:?} is missing")]
    NoValue(String),
    /// There is no memory for a value.
    #[error("{bytes} bytes of the device's memory are needed, {free} are free")]
    OutOfMemory {
        /// Bytes wanted.
        bytes: u64,
        /// Bytes not in use.
        free: u64,
    },
    /// The device is gone.
    #[error("the device was lost")]
    Lost,
    /// A submission did not end.
    #[error("it did not finish within {limit:?}")]
    Hung {
        /// The time it had.
        limit: Duration,
    },
    /// The driver failed otherwise.
    #[error("the driver failed: {0}")]
    Driver(String),
    /// A kernel was refused.
    #[error("a kernel was refused: {0}")]
    Kernel(String),
}

impl GpuError {
    /// Returns this failure as one of compiling, for a weight on its way to the device called
    /// `device`.
    pub fn into_compile_error(self, device: &str, weight: &str) -> CompileError {
        let device = device.to_owned();
        match self {
            Self::OutOfMemory { bytes, free } => CompileError::OutOfMemory {
                device,
                bytes,
                free,
            },
            Self::Lost | Self::Hung { .. } => CompileError::DeviceLost { device },
            failure => CompileError::Engine {
                engine: "gpu",
                reason: format!("weight {weight:?}: {failure}"),
            },
        }
    }

    /// Returns this failure as one of a run, on the device called `device`, and at `node` if known.
    pub fn into_run_error(self, device: &str, node: Option<&NodeProto>) -> RunError {
        let device = device.to_owned();
        match (self, node) {
            (Self::OutOfMemory { bytes, free }, _) => RunError::OutOfMemory {
                device,
                bytes,
                free,
            },
            (Self::Lost, _) => RunError::DeviceLost { device },
            (Self::Hung { limit }, _) => RunError::Hung { device, limit },
            (failure, Some(node)) => RunError::Operator {
                operator: node.op_type().to_owned(),
                node: node_name(node),
                reason: failure.to_string(),
            },
            (failure, None) => RunError::Engine {
                engine: "gpu",
                reason: failure.to_string(),
            },
        }
    }
}
