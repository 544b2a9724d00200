//! Why a task does not run: on one device, or on a group of them.

use souk_memory::space::SpaceError;
use souk_memory::{ContentId, StoreError};
use souk_onnx::DecodeError;
use souk_onnx::states::StateError;
use souk_onnx::subgraph::{CompileError, UnsupportedReason};
use souk_vocabulary::processor::RunError;
use souk_vocabulary::processor::stepping::StepError;
use thiserror::Error;

use super::worker_pool::SubmitError;
use crate::graph::ImportError;
use crate::graph::cut::CutError;
use crate::planning::PlanError;
use crate::planning::problem::ProblemError;
use crate::planning::split::SplitError;

/// Why there is no session of a model, or why it went no further.
#[derive(Debug, Error)]
pub enum SessionError {
    /// What the model says of its states does not hold.
    #[error(transparent)]
    States(StateError),
    /// The model does not say how large a state is, or it is too large.
    #[error("state {name:?} has no fixed sizes of 32-bit floats that there is room for")]
    Sizes {
        /// Its name.
        name: String,
    },
    /// It does not open, or a step of it was not done.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Why a task did not run.
#[derive(Debug, Error)]
pub enum TaskError {
    /// The model is not in the store.
    #[error("the model {id} is not in the store")]
    ModelMissing {
        /// Its id.
        id: ContentId,
    },
    /// The model is none.
    #[error("the model {id}: {cause}")]
    Model {
        /// Its id.
        id: ContentId,
        /// What is wrong.
        cause: DecodeError,
    },
    /// A weight is not in the store.
    #[error("weight {name:?} ({id}) is not in the store")]
    WeightMissing {
        /// Its name in the model.
        name: String,
        /// Its id.
        id: ContentId,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device refuses the subgraph.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A session is not opened, or went no further.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The devices cannot share the subgraph.
    #[error(transparent)]
    Plan(#[from] GroupPlanError),
    /// The run on several devices failed.
    #[error(transparent)]
    Group(#[from] GroupRunError),
    /// A request of a stream failed.
    #[error("request {request}: {cause}")]
    Request {
        /// Which, from 0.
        request: usize,
        /// Why.
        cause: Box<TaskError>,
    },
}

impl TaskError {
    /// Whether it is the inputs that are at fault: an operator refuses these values, or they have
    /// another type or shape than the model's. Other devices come to the same.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        let run = match self {
            TaskError::Run(run) | TaskError::Session(SessionError::Step(StepError::Run(run))) => {
                run
            }
            TaskError::Request { cause, .. } => return cause.is_bad_input(),
            _ => return false,
        };
        matches!(
            run,
            RunError::Operator { .. } | RunError::InputDType { .. } | RunError::InputShape { .. }
        )
    }

    /// The node that a device refuses wherever it stands, if that is what is wrong. What an engine
    /// says, the range of integers and where sizes come from are of the graph around it.
    #[must_use]
    pub fn refused_node(&self) -> Option<&str> {
        let TaskError::Compile(CompileError::Unsupported(unsupported)) = self else {
            return None;
        };
        let is_anywhere = match unsupported.reason {
            UnsupportedReason::Operator | UnsupportedReason::Attribute(_) => true,
            // Integers may be sizes, which a GPU's host computes.
            UnsupportedReason::DType(dtype) => dtype.is_float(),
            UnsupportedReason::UnknownDType
            | UnsupportedReason::Version(_)
            | UnsupportedReason::IntegerRange
            | UnsupportedReason::Engine(_) => false,
        };
        is_anywhere.then_some(&unsupported.node)
    }
}

/// Why a group was not set up.
#[derive(Debug, Error)]
pub enum GroupError {
    /// A group of nobody.
    #[error("a device group needs a device")]
    Empty,
    /// The system gives no more threads.
    #[error("cannot start a thread for each device: {0}")]
    Threads(#[from] std::io::Error),
    /// Memory or the spill folder.
    #[error(transparent)]
    Space(#[from] SpaceError),
}

/// Why a subgraph could not be planned out over the devices.
#[derive(Debug, Error)]
pub enum GroupPlanError {
    /// The model could not be read for these inputs.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The plan cannot be cut.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// It cannot be divided over the devices.
    #[error(transparent)]
    Division(#[from] PlanError),
    /// The fragments make no problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// An operator cannot be shared out.
    #[error(transparent)]
    Split(#[from] SplitError),
}

/// Why a run that was planned out did not end well.
#[derive(Debug, Error)]
pub enum GroupRunError {
    /// The devices have as many jobs as they may.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A tensor found no room or was lost.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A device failed as it gave or took a tensor.
    #[error("a tensor could not be moved: {0}")]
    Memory(RunError),
    /// What was made lay in the memory of a device that failed, and nothing makes it again.
    #[error("what the run made went with a device that failed")]
    Gone,
    /// A fragment failed wherever it ran.
    #[error("{fragment} failed: {cause}")]
    Fragment {
        /// Which fragment.
        fragment: String,
        /// Why.
        cause: String,
    },
    /// No device is left for a fragment.
    #[error("no device is left that runs {fragment}; those that failed said: {faults}")]
    NoDevice {
        /// Which fragment.
        fragment: String,
        /// What each said.
        faults: String,
    },
    /// Its deadline came first.
    #[error("the run's deadline came before its end")]
    Deadline,
    /// It was cancelled.
    #[error("the run was cancelled")]
    Cancelled,
    /// The system gives no thread for it.
    #[error("cannot start a thread for the run: {0}")]
    Thread(std::io::Error),
}

#[cfg(test)]
mod tests {
    use souk_memory::DType;
    use souk_onnx::NodeProto;
    use souk_onnx::subgraph::Unsupported;

    use super::*;

    #[test]
    fn only_what_a_device_refuses_in_every_graph_is_said_to_be_refused() {
        let refused = |reason| {
            let node = NodeProto::of("Reshape", &["x", "s"], "y");
            let error = TaskError::Compile(Unsupported::new(&node, reason).into());
            error.refused_node().map(str::to_owned)
        };
        let y = Some("y".to_owned());
        assert_eq!(refused(UnsupportedReason::Operator), y);
        assert_eq!(refused(UnsupportedReason::Attribute("mode")), y);
        assert_eq!(refused(UnsupportedReason::DType(DType::F64)), y);
        assert_eq!(refused(UnsupportedReason::DType(DType::I64)), None);
        assert_eq!(refused(UnsupportedReason::Version(5)), None);
        let here = "a shape or index is only known on the device".to_owned();
        assert_eq!(refused(UnsupportedReason::Engine(here)), None);
    }
}
