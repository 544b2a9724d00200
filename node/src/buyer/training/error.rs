//! Lists the reasons why a run of training cannot begin, all of which are known before any
//! purchase.

use souk_scheduler::gradient::GradientError;
use thiserror::Error;

use super::{EVALUATION_BATCHES_MAX, STEPS_MAX, WORKERS_MAX};

/// The reason why a run cannot begin.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TrainingError {
    /// The model gives no training step.
    #[error(transparent)]
    Gradient(#[from] GradientError),
    /// A tensor has no axis of examples.
    #[error("{name:?} is one number: its first axis must be the examples")]
    Scalar {
        /// Name of the input or the target.
        name: String,
    },
    /// Two tensors disagree on the number of examples.
    #[error("{name:?} has {found} examples and {target:?} has {targets}")]
    Rows {
        /// Name of the input.
        name: String,
        /// Number of rows of the input.
        found: usize,
        /// Name of the targets.
        target: String,
        /// Their number of rows.
        targets: usize,
    },
    /// No batch of that size fits the examples.
    #[error("a batch of {batch} does not fit {examples} examples")]
    Batch {
        /// Number of examples of a step.
        batch: usize,
        /// Number of all examples.
        examples: usize,
    },
    /// The number of steps is out of range.
    #[error("{steps} steps are not between 1 and {STEPS_MAX}")]
    Steps {
        /// Number of steps.
        steps: u64,
    },
    /// The learning rate is no positive number.
    #[error("the learning rate {learning_rate} is no positive number")]
    LearningRate {
        /// The learning rate that the settings state.
        learning_rate: f64,
    },
    /// The warm-up is as long as the run.
    #[error("a warm-up of {warmup} steps leaves none of the {steps} steps of the run")]
    Warmup {
        /// Number of steps of the warm-up.
        warmup: u64,
        /// Number of steps of the run.
        steps: u64,
    },
    /// The largest norm of a gradient is no positive number.
    #[error("the norm {norm} is no positive number")]
    GradientNorm {
        /// The norm that the settings state.
        norm: f64,
    },
    /// The number of workers or the length of a round is out of range.
    #[error(
        "{count} workers with rounds of {round_steps} steps are not 1 to {WORKERS_MAX} workers \
         with rounds of at least one step"
    )]
    Workers {
        /// Number of workers.
        count: usize,
        /// Number of steps of a round.
        round_steps: u64,
    },
    /// A number of the data is infinite or no number.
    #[error("{name:?} holds an infinite number or a NaN in row {row}")]
    NotFinite {
        /// Name of the input or the target.
        name: String,
        /// Row of the example, from 0.
        row: usize,
    },
    /// A label is no class.
    #[error(
        "{name:?} is {label} in row {row}, but the model has the classes 0 to {last}",
        last = classes.saturating_sub(1)
    )]
    Label {
        /// Name of the labels.
        name: String,
        /// Row of the example, from 0.
        row: usize,
        /// Number that is no class.
        label: i64,
        /// Number of classes.
        classes: usize,
    },
    /// The held-out examples do not fit.
    #[error("of the held-out examples: {0}")]
    HeldOut(Box<TrainingError>),
    /// The held-out examples have other inputs than those of the training.
    #[error("{name:?} is not there, or has another type or shape than in the training")]
    HeldOutType {
        /// Name of the input or the target.
        name: String,
    },
    /// The held-out examples fill no batch.
    #[error("{examples} examples fill no batch of {batch}")]
    HeldOutFew {
        /// Number of examples of a step.
        batch: usize,
        /// Number of held-out examples.
        examples: usize,
    },
    /// An evaluation would be too long.
    #[error("{batches} batches are more than {EVALUATION_BATCHES_MAX}")]
    HeldOutMany {
        /// Number of batches.
        batches: usize,
    },
}
