//! What measures devices and holds them against others: the ONNX project's tests of operators,
//! whole models, how well the cost model foretells operators, and what a card's maker has for it.

pub mod accuracy;
pub mod conformance;
pub mod models;
#[cfg(feature = "cuda")]
pub mod ratios;
pub mod rten_alone;
