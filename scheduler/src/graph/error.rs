//! Defines the errors of a model import. Each contains the facts that a person needs to correct the
//! model.

use souk_memory::DType;
use souk_onnx::budget::ExceededLimit;
use souk_onnx::expansion::ExpansionError;
use souk_onnx::{DecodeError, TensorDataError};
use thiserror::Error;

use super::inline::FunctionError;
use super::shape::ShapeFault;

/// The reason why an import refuses a model.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ImportError {
    /// The bytes are not an ONNX model.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The model exceeds a limit of the reader.
    #[error(transparent)]
    Beyond(#[from] ExceededLimit),
    /// The import cannot inline the model's functions at their calls.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// A node computes with texts, and the import cannot expand it.
    #[error(transparent)]
    Expansion(#[from] ExpansionError),
    /// The caller passed texts that must be prepared before the model runs.
    #[error(
        "the texts of {inputs:?} are needed before the model runs: submit it with `souk submit`"
    )]
    Unprepared {
        /// Names of the inputs that hold texts.
        inputs: Vec<String>,
    },
    /// The model's standard operator set is older than the oldest one that the operator rules
    /// cover.
    #[error("operator set {found} is not supported: it must be {oldest} or newer")]
    Opset {
        /// Version that the model declares.
        found: i64,
        /// Oldest version that the import accepts.
        oldest: i64,
    },
    /// Two producers define values with the same name.
    #[error("value {value:?} is made twice, the second time by {by:?}")]
    DuplicateValue {
        /// Name of the value.
        value: String,
        /// Second producer: a node, an input or an initialiser.
        by: String,
    },
    /// A node reads a value that nothing produces.
    #[error("node {node:?} ({operator}) reads {value:?}, which nothing produces")]
    UnknownValue {
        /// Name of the node.
        node: String,
        /// Operator of the node.
        operator: String,
        /// Name of the value.
        value: String,
    },
    /// No node remains: each output of the model is an input or a constant.
    #[error("the model computes nothing: each of its outputs is an input or a constant")]
    NothingToCompute,
    /// Nothing produces an output of the model.
    #[error("nothing produces output {value:?}")]
    UnknownOutput {
        /// Name of the output.
        value: String,
    },
    /// A node depends on its own output.
    #[error("node {node:?} ({operator}) depends on its own output")]
    Cycle {
        /// A node on the cycle, or one that depends on the cycle.
        node: String,
        /// Operator of the node.
        operator: String,
    },
    /// The import cannot read the values of a constant.
    #[error(transparent)]
    Tensor(#[from] TensorDataError),
    /// The number of a constant's bytes disagrees with its extents.
    #[error("constant {name:?} needs {expected} bytes, {found} are present")]
    WeightLength {
        /// Name of the constant.
        name: String,
        /// Bytes that the extents require.
        expected: u64,
        /// Bytes that the model contains.
        found: u64,
    },
    /// A constant's external data lies outside the model's folder.
    #[error("constant {name:?} lies outside the model's folder, at {location:?}")]
    ExternalOutside {
        /// Name of the constant.
        name: String,
        /// Location that the model names.
        location: String,
    },
    /// The import did not find a constant's external data.
    #[error("the values of constant {name:?} were not found at {location:?}")]
    ExternalMissing {
        /// Name of the constant.
        name: String,
        /// Location that the model names.
        location: String,
    },
    /// A constant's external data ends after the end of its file.
    #[error("constant {name:?}: bytes {offset}..{end} of {location:?}, which has only {length}")]
    ExternalRange {
        /// Name of the constant.
        name: String,
        /// File that the model names.
        location: String,
        /// Offset of the first byte.
        offset: u64,
        /// Offset after the last byte.
        end: u64,
        /// Length of the file in bytes.
        length: u64,
    },
    /// An entry of external data is neither a valid number nor a valid content id.
    #[error("constant {name:?}: external {key} {value:?} is not valid")]
    ExternalEntry {
        /// Name of the constant.
        name: String,
        /// Key of the entry.
        key: &'static str,
        /// Value of the entry.
        value: String,
    },
    /// The caller binds an input that the model does not have.
    #[error("the model has no input {name:?}; its inputs are {}", known.join(", "))]
    UnknownInput {
        /// Name that the caller used.
        name: String,
        /// Names of the model's inputs.
        known: Vec<String>,
    },
    /// The caller did not bind an input of the model.
    #[error("input {name:?} is missing; the model wants {expected}")]
    MissingInput {
        /// Name of the input.
        name: String,
        /// Type of the input, for example `i64 [batch, seq]`.
        expected: String,
    },
    /// The caller bound an input to a tensor of the wrong element type.
    #[error("input {name:?} must be {expected}, {found} was given")]
    InputType {
        /// Name of the input.
        name: String,
        /// Element type that the model declares.
        expected: String,
        /// Element type of the caller's tensor.
        found: DType,
    },
    /// The caller bound an input to a tensor of the wrong shape.
    #[error("input {name:?} must have the shape {expected}, {found:?} was given")]
    InputShape {
        /// Name of the input.
        name: String,
        /// Extents that the model declares.
        expected: String,
        /// Extents of the caller's tensor.
        found: Vec<usize>,
    },
    /// An input holds an index beyond the extent that a node reads by it.
    #[error(
        "input {input:?} holds the index {index}, but node {node:?} ({operator}) has {extent} \
         places"
    )]
    InputIndex {
        /// Name of the input.
        input: String,
        /// Value of the index.
        index: i64,
        /// Number of places that the node can read.
        extent: u64,
        /// Name of the node.
        node: String,
        /// Operator of the node.
        operator: String,
    },
    /// Two inputs disagree on the extent of a symbol.
    #[error(
        "{symbol:?} is {first} by input {first_input:?} but {second} by input {second_input:?}"
    )]
    SymbolConflict {
        /// Name of the symbol.
        symbol: String,
        /// Input that bound the symbol first.
        first_input: String,
        /// Extent by the first input.
        first: u64,
        /// Input that disagrees.
        second_input: String,
        /// Extent by the second input.
        second: u64,
    },
    /// A node can never run on inputs of these shapes.
    #[error("node {node:?} ({operator}): {fault}")]
    Shape {
        /// Name of the node.
        node: String,
        /// Operator of the node.
        operator: String,
        /// The fault that the operator's shape rule found.
        fault: ShapeFault,
    },
}
