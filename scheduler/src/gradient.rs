//! Differentiates ONNX models in reverse mode, and builds from a model the graph of one training
//! step: a batch and the parameters in, the loss and the next parameters out.
//!
//! The result is an ONNX model of standard operators. So every device that runs models can train
//! them, and the market prices, cuts and compares a training step as any other model. Shapes are
//! known after the import, so a gradient has no shape arithmetic. The rules are one function for
//! each operator; contributions to one gradient add up in the reverse order of the nodes that read
//! the value, so the same model gives the same graph and, on one device, the same bits.
//!
//! - [`step_graph`]: the graph of a step, with the parameters as one vector that each request feeds
//!   to the next one.
//! - `tape`: the pass over the nodes in reverse. `rules`: what it does at each operator.
//! - [`sgd`], [`adamw`]: the optimisers.

pub mod adamw;
mod error;
mod node_view;
pub mod parameters;
mod rules;
pub mod sgd;
pub mod step_graph;
mod tape;
mod writer;

pub use error::{GradientError, TargetMismatch};
pub use parameters::{Parameter, Parameters, Selection};
pub use rules::loss::Loss;
pub use step_graph::{Optimizer, Recipe, StepGraph, build_step_graph};

#[cfg(test)]
mod tests;
