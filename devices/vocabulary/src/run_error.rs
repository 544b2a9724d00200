//! Why a run failed, in the words that every backend uses.

use std::time::Duration;

use souk_memory::{DType, Shape};
use thiserror::Error;

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// An input was not given.
    #[error("input {name:?} ({dtype}) is missing")]
    InputMissing {
        /// Its name.
        name: String,
        /// Its element type.
        dtype: DType,
    },
    /// There is no such input.
    #[error("there is no input {name:?}; there are: {}", known.join(", "))]
    InputUnknown {
        /// The name given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// An input has another element type.
    #[error("input {name:?} should be {expected}, but is {found}")]
    InputDType {
        /// Its name.
        name: String,
        /// Type of the model.
        expected: DType,
        /// Type given.
        found: DType,
    },
    /// An input has another shape.
    #[error("input {name:?} should have the shape {expected}, but has {found}")]
    InputShape {
        /// Its name.
        name: String,
        /// Shape of the model, with `?` for sizes that may vary.
        expected: String,
        /// Shape given.
        found: Shape,
    },
    /// An integer lies outside the range in which the engine is exact.
    #[error("value {value} of {name:?} is outside the 32 bits in which this device is exact")]
    IntegerRange {
        /// Where it was found.
        name: String,
        /// The value.
        value: i64,
    },
    /// An operator failed on these inputs.
    #[error("operator {operator} (node {node:?}) failed: {reason}")]
    Operator {
        /// Operator.
        operator: String,
        /// The node's name.
        node: String,
        /// Why.
        reason: String,
    },
    /// The engine beneath failed.
    #[error("the {engine} engine failed: {reason}")]
    Engine {
        /// Which engine.
        engine: &'static str,
        /// What it said.
        reason: String,
    },
    /// The engine beneath panicked; the run is lost, the process is not.
    #[error("the {engine} engine crashed: {reason}")]
    Crashed {
        /// Which engine.
        engine: &'static str,
        /// What it said.
        reason: String,
    },
    /// The device has no room for a value; another one may.
    #[error("{device}: {bytes} bytes are wanted of its memory, {free} are free")]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes wanted at once.
        bytes: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// The device went away in the run.
    #[error("{device}: the device was lost in the run")]
    DeviceLost {
        /// The device.
        device: String,
    },
    /// A kernel did not end in its time.
    #[error("{device}: a kernel did not end within {limit:?}")]
    Hung {
        /// The device.
        device: String,
        /// The time it had.
        limit: Duration,
    },
    /// An emulated device failed because it was told to.
    #[error("the emulated device {device:?} failed in its run {run}, as configured")]
    Injected {
        /// The device.
        device: String,
        /// Which of its runs, from 0.
        run: u64,
    },
}
