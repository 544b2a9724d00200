//! Defines the reasons why a model cannot be trained. Each names the value or the operator that the
//! user has to change, and all are found before the buyer spends money.

use souk_memory::DType;
use souk_onnx::{DecodeError, TensorDataError};
use thiserror::Error;

use crate::graph::ImportError;

/// The reason why no training step can be built from a model.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum GradientError {
    /// The bytes are not an ONNX model.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The model, or the step built from it, does not import with these inputs.
    #[error(transparent)]
    Import(Box<ImportError>),
    /// A rule needs a newer operator set than the model's.
    #[error(
        "operator set {found} is too old to train: export the model with operator set {oldest} \
         or newer"
    )]
    Opset {
        /// Version that the model declares.
        found: i64,
        /// Oldest version that the rules write.
        oldest: i64,
    },
    /// No rule differentiates the operator.
    #[error("node {node:?} is a {operator}, for which there is no gradient")]
    Operator {
        /// Name of the node.
        node: String,
        /// Operator of the node, with its domain.
        operator: String,
    },
    /// The rule of the operator does not cover this use of it.
    #[error("node {node:?} ({operator}) has no gradient here: {why}")]
    Unsupported {
        /// Name of the node.
        node: String,
        /// Operator of the node, with its domain.
        operator: String,
        /// The unsupported part of it.
        why: &'static str,
    },
    /// The shape of a value is not known before the run.
    #[error("the shape of {value:?} is not known before the run, so it has no gradient")]
    UnknownShape {
        /// Name of the value.
        value: String,
    },
    /// The parameters or the loss are not floats of 32 bits.
    #[error("{value:?} is {found}; a training step computes with f32")]
    Type {
        /// Name of the value.
        value: String,
        /// Element type of the value.
        found: DType,
    },
    /// No initialiser of the model has an effect on the loss.
    #[error(
        "no initialiser can be trained: none that is f32, has a dimension and is not frozen has \
         an effect on the output {output:?}"
    )]
    NothingToTrain {
        /// The output of which the loss is taken.
        output: String,
    },
    /// `frozen` names no initialiser.
    #[error("no initialiser's name begins with {prefix:?}")]
    UnknownPrefix {
        /// Beginning of a name that the recipe freezes.
        prefix: String,
    },
    /// The weights of the model are in other files.
    #[error("initialiser {name:?} cannot be read: {cause}; save the model with its weights inside")]
    Weight {
        /// Name of the initialiser.
        name: String,
        /// Why it cannot be read.
        cause: TensorDataError,
    },
    /// The parameters are too many.
    #[error("the model has {found} parameters to train, at most {limit} can be; freeze some")]
    TooLarge {
        /// Number of elements.
        found: usize,
        /// Largest number.
        limit: usize,
    },
    /// The output of which the loss is taken does not exist.
    #[error("the model has no output {wanted:?}; its outputs are {found:?}")]
    Output {
        /// The wanted output.
        wanted: String,
        /// Names of its outputs.
        found: Vec<String>,
    },
    /// The model has several outputs.
    #[error("the model has {} outputs, {found:?}: say of which to take the loss", found.len())]
    Outputs {
        /// Names of its outputs.
        found: Vec<String>,
    },
    /// The examples are for another input than the model has.
    #[error("the model has no input {wanted:?}; its inputs are {found:?}")]
    Input {
        /// Name of the input that has examples.
        wanted: String,
        /// Names of the model's inputs.
        found: Vec<String>,
    },
    /// The targets do not fit the output.
    #[error(transparent)]
    Target(Box<TargetMismatch>),
    /// The target has the name of another input.
    #[error("{name:?} is already a value of the model: name the target otherwise")]
    Name {
        /// Name that two values would have.
        name: String,
    },
}

/// The targets do not fit the output of which the loss is taken.
#[derive(Clone, Debug, PartialEq, Error)]
#[error(
    "target {target:?} is {found_type} {found:?}, but {loss} of {output:?} {dims:?} wants \
     {expected}"
)]
pub struct TargetMismatch {
    /// Name of the target.
    pub target: String,
    /// Element type of the target.
    pub found_type: DType,
    /// Extents of the target.
    pub found: Vec<usize>,
    /// Name of the loss.
    pub loss: &'static str,
    /// Name of the output.
    pub output: String,
    /// Extents of the output.
    pub dims: Vec<usize>,
    /// The expected target.
    pub expected: String,
}

impl From<ImportError> for GradientError {
    fn from(error: ImportError) -> Self {
        Self::Import(Box::new(error))
    }
}
