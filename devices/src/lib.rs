//! Processors: found, measured, described, run; and the graph language they run, ONNX.
//!
//! A device sees one subgraph at a time. It knows neither money nor peers.

pub mod bench;
mod busy;
pub mod catalogue;
pub mod check;
pub mod conformance;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod custom;
pub mod discover;
pub mod emulated;
#[cfg(feature = "wgpu")]
pub mod gpu;
pub mod held;
pub mod history;
mod links;
pub mod measure;
pub mod models;
pub mod onnx;
#[cfg(feature = "onnxruntime")]
pub mod onnxruntime;
pub mod power;
pub mod processor;
pub mod profile;
#[cfg(target_os = "linux")]
pub mod sealed;
pub mod streaming;
pub mod system;
pub mod taxonomy;
pub mod warm;
#[cfg(feature = "wasm")]
pub mod wasm;
pub mod work;
