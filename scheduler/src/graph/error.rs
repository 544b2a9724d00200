//! Why a model cannot be imported: each cause with the facts a person needs to mend it.

use souk_memory::DType;
use souk_onnx::budget::Beyond;
use souk_onnx::expansion::ExpansionError;
use souk_onnx::{DecodeError, TensorDataError};
use thiserror::Error;

use super::inline::FunctionError;
use super::shape::ShapeFault;

/// Why a model cannot be imported.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ImportError {
    /// The bytes are no ONNX model.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It asks for more than a reader gives.
    #[error(transparent)]
    Beyond(#[from] Beyond),
    /// Its functions cannot be put in place of their calls.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// A node computes with texts.
    #[error(transparent)]
    Expansion(#[from] ExpansionError),
    /// Texts are given as they are where they must be prepared.
    #[error(
        "texts of {inputs:?} are computed with before the model runs: submit it by `souk submit`"
    )]
    Unprepared {
        /// The inputs.
        inputs: Vec<String>,
    },
    /// The standard operator set is older than what the operators' rules here cover.
    #[error("operator set {found} is not supported: it must be {oldest} or newer")]
    Opset {
        /// Version the model states.
        found: i64,
        /// Oldest version understood.
        oldest: i64,
    },
    /// Two things make a value of one name.
    #[error("value {value:?} is made twice, the second time by {by:?}")]
    DuplicateValue {
        /// The value.
        value: String,
        /// Second maker: a node, an input or an initialiser.
        by: String,
    },
    /// A node reads a value that nothing makes.
    #[error("node {node:?} ({operator}) reads {value:?}, which nothing makes")]
    UnknownValue {
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
        /// The value.
        value: String,
    },
    /// No node is left.
    #[error("the model computes nothing: each of its outputs is an input or a constant")]
    NothingToCompute,
    /// An output of the model that nothing makes.
    #[error("output {value:?} is made by nothing")]
    UnknownOutput {
        /// The output.
        value: String,
    },
    /// Nodes wait for each other.
    #[error("node {node:?} ({operator}) depends on its own output")]
    Cycle {
        /// A node on or behind the cycle.
        node: String,
        /// Its operator.
        operator: String,
    },
    /// A constant's values cannot be had.
    #[error(transparent)]
    Tensor(#[from] TensorDataError),
    /// A constant's bytes and extents disagree.
    #[error("constant {name:?} needs {expected} bytes, {found} are there")]
    WeightLength {
        /// The constant.
        name: String,
        /// Bytes its extents ask for.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// External data at a place that a model may not name.
    #[error("constant {name:?} lies outside the model's folder, at {location:?}")]
    ExternalOutside {
        /// The constant.
        name: String,
        /// The place.
        location: String,
    },
    /// External data that was not there.
    #[error("the values of constant {name:?} were not found at {location:?}")]
    ExternalMissing {
        /// The constant.
        name: String,
        /// The place.
        location: String,
    },
    /// External data shorter than its declaration.
    #[error("constant {name:?}: bytes {offset}..{end} of {location:?}, which has only {length}")]
    ExternalRange {
        /// The constant.
        name: String,
        /// The file.
        location: String,
        /// First byte.
        offset: u64,
        /// One past the last byte.
        end: u64,
        /// Length of the file.
        length: u64,
    },
    /// An entry of external data that is no number or no content id.
    #[error("constant {name:?}: external {key} {value:?} is not valid")]
    ExternalEntry {
        /// The constant.
        name: String,
        /// The entry.
        key: &'static str,
        /// What it says.
        value: String,
    },
    /// A binding for an input the model does not have.
    #[error("the model has no input {name:?}; its inputs are {}", known.join(", "))]
    UnknownInput {
        /// Name given.
        name: String,
        /// Names the model has.
        known: Vec<String>,
    },
    /// An input that was not given.
    #[error("input {name:?} is missing; the model wants {expected}")]
    MissingInput {
        /// The input.
        name: String,
        /// Its type, as `i64 [batch, seq]`.
        expected: String,
    },
    /// An input of the wrong element type.
    #[error("input {name:?} must be {expected}, {found} was given")]
    InputType {
        /// The input.
        name: String,
        /// Element type the model states.
        expected: String,
        /// Element type given.
        found: DType,
    },
    /// An input of the wrong shape.
    #[error("input {name:?} must have the shape {expected}, {found:?} was given")]
    InputShape {
        /// The input.
        name: String,
        /// Extents the model states.
        expected: String,
        /// Extents given.
        found: Vec<usize>,
    },
    /// An input that holds an index beyond what a node takes by it.
    #[error(
        "input {input:?} holds the index {index}, of {extent} places of node {node:?} ({operator})"
    )]
    InputIndex {
        /// The input.
        input: String,
        /// The index.
        index: i64,
        /// How many places there are.
        extent: u64,
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
    },
    /// Two inputs that should agree on an extent.
    #[error(
        "{symbol:?} is {first} by input {first_input:?} but {second} by input {second_input:?}"
    )]
    SymbolConflict {
        /// The symbol.
        symbol: String,
        /// Input that bound it.
        first_input: String,
        /// Its extent.
        first: u64,
        /// Input that disagrees.
        second_input: String,
        /// Its extent.
        second: u64,
    },
    /// A node that can never run on its inputs.
    #[error("node {node:?} ({operator}): {fault}")]
    Shape {
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
        /// What is wrong.
        fault: ShapeFault,
    },
}
