//! Devices of this machine made ready to be sold: opened, measured, checked against the CPU,
//! warmed, and two engines of one device held against each other.

pub mod check;
#[cfg(feature = "onnxruntime")]
pub mod contest;
pub mod copies;
#[cfg(feature = "wgpu")]
pub mod gpus;
pub mod measure;
#[cfg(feature = "onnxruntime")]
pub mod runtimes;
pub mod sheet;
pub mod warm;
