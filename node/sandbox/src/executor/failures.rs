//! Says why a lease's executor has no result: the failure that the buyer receives, and what the
//! provider learns from it.

use souk_memory::{ContentId, Store};
use souk_roles::lease::Failure;
use souk_scheduler::execution::TaskError;

use crate::device::graph_work::GraphWork;
use crate::device::refused_node;

/// Why a run has no result.
pub struct NotRun {
    /// The failure that the buyer receives.
    pub failure: Failure,
    /// The work of the subgraph, if the inputs are at fault, the task asks for it and it is known.
    pub work: Option<GraphWork>,
}

impl NotRun {
    pub(super) fn bad_input(text: String, work: Option<GraphWork>) -> NotRun {
        let failure = Failure::BadInput(text);
        NotRun { failure, work }
    }
}

impl From<Failure> for NotRun {
    fn from(failure: Failure) -> NotRun {
        let work = None;
        NotRun { failure, work }
    }
}

/// Why a subgraph is not ready.
pub struct NotPrepared {
    /// The failure that the buyer receives.
    pub failure: Failure,
    /// The digest of the node that the device refuses, if it refuses a single node.
    pub node: Option<u64>,
}

/// Describes why a device in this process refuses a model.
pub(super) fn not_prepared(error: &TaskError, store: &Store, model: ContentId) -> NotPrepared {
    let digest = |node: &str| refused_node::node_digest(store.get(&model).ok()??, node);
    NotPrepared {
        failure: Failure::Compile(error.to_string()),
        node: error.refused_node().and_then(digest),
    }
}

impl From<Failure> for NotPrepared {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            node: None,
        }
    }
}
