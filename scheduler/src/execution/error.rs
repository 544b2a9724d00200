//! Defines the errors of tasks and sessions on one device or on a group.

use souk_memory::space::SpaceError;
use souk_memory::{ContentId, StoreError};
use souk_onnx::DecodeError;
use souk_onnx::states::StateError;
use souk_onnx::subgraph::{CompileError, UnsupportedReason};
use souk_vocabulary::processor::RunError;
use souk_vocabulary::processor::stepped_session::StepError;
use thiserror::Error;

use super::worker_pool::SubmitError;
use crate::graph::ImportError;
use crate::graph::cut::CutError;
use crate::planning::PlanError;
use crate::planning::problem::ProblemError;
use crate::planning::split::SplitError;

/// The reason why a session of a model did not open or could not continue.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The model's declaration of its states is wrong.
    #[error(transparent)]
    States(StateError),
    /// The model does not declare the size of a state, or the state is too large.
    #[error("state {name:?} must have fixed sizes and 32-bit floats, and must not be too large")]
    Sizes {
        /// Name of the state.
        name: String,
    },
    /// The device could not open the session or run a step.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// The reason why a task did not run.
#[derive(Debug, Error)]
pub enum TaskError {
    /// The model is not in the store, where the caller must put it before the run.
    #[error("the model {id} is not in the store")]
    ModelMissing {
        /// Content id of the model.
        id: ContentId,
    },
    /// The content is not an ONNX model.
    #[error("the model {id}: {cause}")]
    Model {
        /// Content id of the model.
        id: ContentId,
        /// The decoder's error.
        cause: DecodeError,
    },
    /// A weight is not in the store.
    #[error("weight {name:?} ({id}) is not in the store")]
    WeightMissing {
        /// Name of the weight in the model.
        name: String,
        /// Content id of the weight.
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
    /// A session did not open or could not continue.
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
        /// Index of the request, from 0.
        request: usize,
        /// Cause of the failure.
        cause: Box<TaskError>,
    },
}

impl TaskError {
    /// Returns whether the inputs are at fault: an operator refuses their values, or their type or
    /// shape differs from the model's. Other devices will return the same error.
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

    /// Returns the node that the device refuses in any graph, if that is the cause. Refusals by an
    /// engine, by the range of integers and by the source of sizes depend on the surrounding graph.
    #[must_use]
    pub fn refused_node(&self) -> Option<&str> {
        let TaskError::Compile(CompileError::Unsupported(unsupported)) = self else {
            return None;
        };
        let is_anywhere = match unsupported.reason {
            UnsupportedReason::Operator
            | UnsupportedReason::Inexact
            | UnsupportedReason::Attribute(_) => true,
            // Integers can be sizes, which a GPU's host computes.
            UnsupportedReason::DType(dtype) => dtype.is_float(),
            UnsupportedReason::UnknownDType
            | UnsupportedReason::Version(_)
            | UnsupportedReason::IntegerRange
            | UnsupportedReason::Engine(_) => false,
        };
        is_anywhere.then_some(&unsupported.node)
    }
}

/// The reason why a group could not start.
#[derive(Debug, Error)]
pub enum GroupError {
    /// The group has no devices.
    #[error("a device group needs a device")]
    Empty,
    /// The system refuses to start more threads.
    #[error("cannot start a thread for each device: {0}")]
    Threads(#[from] std::io::Error),
    /// The group's memory or its spill folder failed.
    #[error(transparent)]
    Space(#[from] SpaceError),
}

/// The reason why a subgraph could not be planned over the devices.
#[derive(Debug, Error)]
pub enum GroupPlanError {
    /// The import refuses the model with these inputs.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The graph cannot be cut along the plan.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// The planner cannot divide the graph over the devices.
    #[error(transparent)]
    Division(#[from] PlanError),
    /// The fragments do not form a valid problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// An operator cannot be split between devices.
    #[error(transparent)]
    Split(#[from] SplitError),
}

/// The reason why a planned run failed.
#[derive(Debug, Error)]
pub enum GroupRunError {
    /// The devices have the maximum number of jobs.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A tensor found no room or is lost.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A device failed while it sent or received a tensor.
    #[error("a tensor could not be moved: {0}")]
    Memory(RunError),
    /// A result was in the memory of a failed device, and no task computes it again.
    #[error("the run's results were lost with a device that failed")]
    Gone,
    /// A fragment failed on every device that ran it.
    #[error("{fragment} failed: {cause}")]
    Fragment {
        /// Name of the fragment.
        fragment: String,
        /// Cause of the failure.
        cause: String,
    },
    /// No remaining device can run a fragment.
    #[error("no remaining device runs {fragment}; the failed ones reported: {faults}")]
    NoDevice {
        /// Name of the fragment.
        fragment: String,
        /// The error of each failed device.
        faults: String,
    },
    /// The deadline passed before the end of the run.
    #[error("the run's deadline passed before its end")]
    Deadline,
    /// The caller cancelled the run.
    #[error("the run was cancelled")]
    Cancelled,
    /// The system refuses to start a thread for the run.
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
            let node = NodeProto::for_operator("Reshape", &["x", "s"], "y");
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
