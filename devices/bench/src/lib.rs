//! Benchmarks of devices: the ONNX project's operator tests, whole models, the cost model's
//! predictions of operators, and comparisons with the libraries of a card's maker. The latter need
//! the feature `cuda`, and can run only on a machine with such a card.

pub mod accuracy;
pub mod conformance;
pub mod models;
#[cfg(feature = "cuda")]
pub mod ratios;
pub mod rten_alone;
