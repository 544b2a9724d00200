//! Processors: found, measured, described, run; and the graph language they run, ONNX.
//!
//! A device sees one subgraph at a time. It knows neither money nor peers.

pub mod onnx;
