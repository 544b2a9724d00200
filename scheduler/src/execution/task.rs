//! A subgraph to run, how it stands beside others, and what running it gave.

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
    /// What it is called in reports and timelines.
    pub name: String,
    /// Its ONNX model, held by the store.
    pub model: ContentId,
    /// Input tensors by the names the model gives them.
    pub inputs: BTreeMap<String, Tensor>,
    /// The sequence that it is a step of where it is one of a session.
    pub sequence: u32,
}

/// What running a task gave.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// Output tensors by name.
    pub outputs: BTreeMap<String, Tensor>,
    /// What it took.
    pub report: Report,
    /// When what happened.
    pub timeline: Timeline,
    /// Time the device worked, by its own account: what is metered.
    pub busy: Duration,
    /// From its start to its end; in the devices' own time if all of them are emulated.
    pub makespan: Duration,
    /// What the devices took for its operators.
    pub learned: Vec<Measurement>,
}

/// The clock a runner stamps spans with.
pub type Clock = dyn Fn() -> UnixMicros + Send + Sync;

/// How a run is told apart from others that share the devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precedence {
    /// Runs of a higher one go first.
    pub priority: u8,
    /// Its part of the devices beside other runs.
    pub weight: f64,
    /// Whose it is: runs of one owner, such as a lease, have one part together.
    pub owner: Option<u64>,
    /// When it must have ended.
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

/// Weights by name that a model names by content.
pub(super) fn weights_of(
    store: &Store,
    model: ContentId,
) -> Result<Vec<(String, ContentId)>, TaskError> {
    let bytes = store
        .get(&model)?
        .ok_or(TaskError::ModelMissing { id: model })?;
    let decoded = onnx::decode(bytes);
    let decoded = decoded.map_err(|cause| TaskError::Model { id: model, cause })?;
    let initializers = decoded.graph.iter().flat_map(|graph| &graph.initializer);
    let weight = |initializer: &onnx::TensorProto| {
        // A place that names no content is reported when the model is compiled.
        let id = weight_id(onnx::location(initializer)?)?;
        Some((initializer.name().to_owned(), id))
    };
    Ok(initializers.filter_map(weight).collect())
}

/// Plans kept; a provider serves few models at a time.
pub(super) const PLANS_MAX: usize = 16;

/// What a plan is for: a model, and the inputs' types and shapes.
pub(super) type PlanKey = (ContentId, Vec<(String, DType, Vec<usize>)>);

/// What a task's plan is kept by.
pub(super) fn key(task: &Task) -> PlanKey {
    let shape =
        |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.dtype(), tensor.dims().to_vec());
    (task.model, task.inputs.iter().map(shape).collect())
}
