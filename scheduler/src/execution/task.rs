//! Describes the input and the result of a run: a task is a subgraph with its input tensors, its
//! precedence decides which of several runs goes first, and the result holds the outputs and the
//! report. Two helpers of the executors are here too: the weights that a task's model names, and
//! the key under which its plan is cached.

use std::collections::BTreeMap;
use std::time::Duration;

use souk_memory::{ContentId, DType, Store, Tensor};
use souk_onnx as onnx;
use souk_onnx::subgraph::weight_id;

use super::error::TaskError;
use super::report::Report;
use super::timeline::{Timeline, UnixMicros};
use super::worker_pool::Moment;
use crate::learning::Measurement;

/// A subgraph to run.
#[derive(Clone, Debug)]
pub struct Task {
    /// Name in reports and timelines.
    pub name: String,
    /// Content id of its ONNX model, which must be in the store.
    pub model: ContentId,
    /// Input tensors by their names in the model. You must supply all of them, unless the task is a
    /// step of a session.
    pub inputs: BTreeMap<String, Tensor>,
    /// If the task is a step of a session, which keeps states between steps: the number of the
    /// sequence whose states it reads and writes. Otherwise 0.
    pub sequence: u32,
}

/// The result of a task.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// Output tensors by name.
    pub outputs: BTreeMap<String, Tensor>,
    /// The costs of the run.
    pub report: Report,
    /// The events of the run with their times.
    pub timeline: Timeline,
    /// Metered time: the time that the device reports as work.
    pub busy: Duration,
    /// Time from start to end, in the devices' own time if all of them are emulated.
    pub makespan: Duration,
    /// Measurements of the operators for the cost history.
    pub learned: Vec<Measurement>,
}

/// The clock that gives a runner's timeline events their times.
pub type Clock = dyn Fn() -> UnixMicros + Send + Sync;

/// The precedence of a run over others that share the devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precedence {
    /// Runs with a higher priority go first.
    pub priority: u8,
    /// The run's share of the devices relative to other runs. It should be positive.
    pub weight: f64,
    /// The owner, such as a lease. All runs of one owner share one part of the devices.
    pub owner: Option<u64>,
    /// The moment at which the run will fail if it has not ended.
    pub deadline: Option<Moment>,
}

impl Default for Precedence {
    fn default() -> Self {
        Self {
            priority: 0,
            weight: 1.0,
            owner: None,
            deadline: None,
        }
    }
}

/// Returns the weights that a model names by content id, with their names.
pub(super) fn weights_of(
    store: &Store,
    model: ContentId,
) -> Result<Vec<(String, ContentId)>, TaskError> {
    let bytes = store
        .get(&model)?
        .ok_or(TaskError::ModelMissing { id: model })?;
    let decoded = onnx::decode_model(bytes);
    let decoded = decoded.map_err(|cause| TaskError::Model { id: model, cause })?;
    let initializers = decoded.graph.iter().flat_map(|graph| &graph.initializer);
    let weight = |initializer: &onnx::TensorProto| {
        // The compiler reports locations that name no content.
        let id = weight_id(onnx::external_location(initializer)?)?;
        Some((initializer.name().to_owned(), id))
    };
    Ok(initializers.filter_map(weight).collect())
}

/// Maximum number of cached plans; a provider serves few models at a time.
pub(super) const PLANS_MAX: usize = 16;

/// The key of a plan: the model, and the types and shapes of the inputs.
pub(super) type PlanKey = (ContentId, Vec<(String, DType, Vec<usize>)>);

/// Returns the key of a task's plan.
pub(super) fn plan_key(task: &Task) -> PlanKey {
    let shape =
        |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.dtype(), tensor.dims().to_vec());
    (task.model, task.inputs.iter().map(shape).collect())
}
