//! Defines [`RunError`], the reasons why a run failed, in terms common to all backends. An error of
//! an input (`Input…`) will occur on every device, so the caller must correct the input. After an
//! error of the device, such as [`RunError::OutOfMemory`], another device can still succeed.

use std::time::Duration;

use souk_memory::{DType, Shape};
use thiserror::Error;

/// Reasons why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// The caller left out an input.
    #[error("input {name:?} ({dtype}) is missing")]
    InputMissing {
        /// Name of the input.
        name: String,
        /// Element type that the model expects.
        dtype: DType,
    },
    /// The model has no such input.
    #[error("there is no input {name:?}; there are: {}", known.join(", "))]
    InputUnknown {
        /// Name from the caller.
        name: String,
        /// Names of the model's inputs.
        known: Vec<String>,
    },
    /// An input has the wrong element type.
    #[error("input {name:?} should be {expected}, but is {found}")]
    InputDType {
        /// Name of the input.
        name: String,
        /// Type that the model expects.
        expected: DType,
        /// Type from the caller.
        found: DType,
    },
    /// An input has the wrong shape.
    #[error("input {name:?} should have the shape {expected}, but has {found}")]
    InputShape {
        /// Name of the input.
        name: String,
        /// Shape that the model expects, with `?` for sizes that may vary.
        expected: String,
        /// Shape from the caller.
        found: Shape,
    },
    /// An integer lies outside the range in which the engine is exact.
    #[error("value {value} of {name:?} is outside the 32 bits in which this device is exact")]
    IntegerRange {
        /// Name of the value that holds the integer.
        name: String,
        /// The integer out of range.
        value: i64,
    },
    /// An operator failed on these inputs.
    #[error("operator {operator} (node {node:?}) failed: {reason}")]
    Operator {
        /// Operator type, such as `Conv`.
        operator: String,
        /// Name of the node.
        node: String,
        /// Reason for the failure.
        reason: String,
    },
    /// The engine failed.
    #[error("the {engine} engine failed: {reason}")]
    Engine {
        /// Name of the engine.
        engine: &'static str,
        /// The engine's message.
        reason: String,
    },
    /// The engine panicked; the run is lost, but the process continues.
    #[error("the {engine} engine crashed: {reason}")]
    Crashed {
        /// Name of the engine.
        engine: &'static str,
        /// The panic's message.
        reason: String,
    },
    /// The device has no room for a value; another device can have it.
    #[error("{device}: {bytes} bytes of its memory are needed, {free} are free")]
    OutOfMemory {
        /// Name of the device.
        device: String,
        /// Bytes requested at once.
        bytes: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// The device was lost during the run.
    #[error("{device}: the device was lost during the run")]
    DeviceLost {
        /// Name of the device.
        device: String,
    },
    /// A kernel exceeded its time limit.
    #[error("{device}: a kernel did not finish within {limit:?}")]
    Hung {
        /// Name of the device.
        device: String,
        /// The time limit.
        limit: Duration,
    },
    /// An emulated device failed because its configuration requested it.
    #[error("the emulated device {device:?} failed in its run {run}, as configured")]
    Injected {
        /// Name of the device.
        device: String,
        /// Number of the run, from 0.
        run: u64,
    },
}
