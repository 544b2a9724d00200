//! Defines the messages between a provider and a sandbox: the provider's orders and the sandbox's
//! answers. Both sides are the same program, so the messages have no versions.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_folder::config::{DeviceChoice, Fault};
use souk_memory::ContentId;
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;
use souk_scheduler::execution::{Moment, TaskError};
use souk_scheduler::learning::{CostHistory, Measurement};
use souk_scheduler::planning::Objective;

use super::shared_content::{SealedCopy, SharedContent};
use super::{RunMode, SandboxPolicy, SandboxRun};
use crate::device::graph_operators::GraphOperators;
use crate::device::graph_work::GraphWork;
use crate::device::refused_node;

/// The number of an order, which must be unique in a channel; the answer must repeat it.
pub(super) type Number = u64;

/// The orders of a provider.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SandboxOrder {
    /// The first order: which devices to open. [`SandboxAnswer::OpenAnswer`] follows.
    OpenOrder(Box<OpenOrder>),
    /// Contents to hold; no answer follows.
    Hold(Vec<(ContentId, SharedContent)>),
    /// A request for a model's operators, with a fault to play meanwhile, for tests.
    /// [`SandboxAnswer::Inspected`] follows.
    Inspect(Number, ContentId, Option<Fault>),
    /// A model to prepare. [`SandboxAnswer::Prepared`] follows.
    Prepare(Number, ContentId),
    /// A model to run. [`SandboxAnswer::Ran`] follows; other runs of a stream can be sent before
    /// that.
    Run(Number, RunOrder),
}

/// The configuration of a sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OpenOrder {
    #[serde(with = "as_json")]
    pub(super) device: DeviceChoice,
    pub(super) cores: Option<u32>,
    pub(super) label: String,
    /// The devices' profiles as JSON, because their encoding does not fit the channel's.
    pub(super) profiles: Option<String>,
    /// Their measured costs.
    pub(super) costs: CostHistory,
    /// Their objective.
    pub(super) objective: Objective,
    /// The library of ONNX Runtime that they use.
    pub(super) library: Option<PathBuf>,
    pub(super) memory_bytes: u64,
}

/// A choice as JSON, which can omit fields; the channel's encoding cannot.
mod as_json {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::DeviceChoice;

    pub fn serialize<S: Serializer>(choice: &DeviceChoice, to: S) -> Result<S::Ok, S::Error> {
        let text = serde_json::to_string(choice).map_err(S::Error::custom)?;
        to.serialize_str(&text)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DeviceChoice, D::Error> {
        let text = String::deserialize(from)?;
        serde_json::from_str(&text).map_err(D::Error::custom)
    }
}

/// One run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunOrder {
    pub(super) name: String,
    pub(super) model: ContentId,
    /// The sequence of a session that it is a step of, if it is one.
    pub(super) sequence: u32,
    pub(super) run_mode: RunMode,
    /// The blobs of tensors, by name.
    pub(super) inputs: Vec<(String, SharedContent)>,
    /// The time to its deadline, if it has one: the two processes share no clock. The other
    /// criteria order runs of different leases, and a sandbox has only one lease.
    pub(super) left: Option<Duration>,
    /// Whether the answer must state the work of the model.
    pub(super) is_weighed: bool,
    /// A fault to play, for tests.
    pub(super) fault: Option<Fault>,
}

impl RunOrder {
    /// Returns the order, and the shared memory that goes with it.
    pub(super) fn new(run: SandboxRun) -> io::Result<(RunOrder, Vec<SealedCopy>)> {
        let task = run.task;
        let mut sealed = Vec::new();
        let mut inputs = Vec::with_capacity(task.inputs.len());
        for (name, tensor) in &task.inputs {
            inputs.push((
                name.clone(),
                SharedContent::from_tensor(tensor, &mut sealed)?,
            ));
        }
        let (name, model) = (task.name, task.model);
        let order = RunOrder {
            name,
            model,
            sequence: task.sequence,
            run_mode: run.run_mode,
            inputs,
            left: run.deadline.map(|at| at.duration_since(Moment::now())),
            is_weighed: run.is_weighed,
            fault: run.fault,
        };
        Ok((order, sealed))
    }
}

/// Why a run has no result.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum RunFault {
    /// The deadline came first.
    Late,
    /// The device failed, with its words.
    Failed(String),
    /// The inputs are invalid for any device, with its words, and the work of the model, if the
    /// order wants it and the nodes state it.
    BadInput(String, Option<GraphWork>),
}

/// Why a model could not be prepared.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NotReady {
    /// The device's words.
    pub(super) reason: String,
    /// The digest of the node that the device refuses, if it names one.
    pub(super) node: Option<u64>,
}

impl NotReady {
    /// Describes why the device refuses a model.
    pub(super) fn from_task_error(error: &TaskError, model: Option<Bytes>) -> Self {
        let digest = |node: &str| refused_node::node_digest(model?, node);
        Self {
            node: error.refused_node().and_then(digest),
            reason: error.to_string(),
        }
    }
}

/// The answers of a sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SandboxAnswer {
    /// The sandbox is busy; it repeats this until it is done.
    Alive,
    /// The devices are open, or the reason why they are not.
    OpenAnswer(Result<OpenAnswer, String>),
    /// The operators of the model, unless there are too many to report.
    Inspected(Number, Result<GraphOperators, String>),
    /// The model is ready, or the reason why it is not.
    Prepared(Number, Result<(), NotReady>),
    /// The outputs of the run, or why it failed.
    Ran(Number, Box<Result<RunHead, RunFault>>),
}

/// The properties of an open sandbox.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct OpenAnswer {
    pub(super) label: String,
    pub(super) profiles: String,
    /// The number of requests of a stream that keep its devices busy.
    pub(super) stream_ahead: usize,
    pub(super) policy: SandboxPolicy,
}

/// The result of a run; the blobs of its outputs follow, one after the other.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunHead {
    /// The names and lengths of the blobs.
    pub(super) outputs: Vec<(String, u64)>,
    pub(super) report: Report,
    pub(super) timeline: Timeline,
    pub(super) busy: Duration,
    pub(super) makespan: Duration,
    pub(super) learned: Vec<Measurement>,
    /// The work of the model, if the order wants it and the nodes state it.
    pub(super) work: Option<GraphWork>,
}

#[cfg(test)]
mod tests {
    use souk_node_testing::fuzzed;

    use super::*;

    #[test]
    fn damaged_words_of_either_side_do_no_harm() {
        let id = ContentId::for_content(b"model");
        let run = RunOrder {
            name: "part 1 of 1".to_owned(),
            model: id,
            sequence: 3,
            run_mode: RunMode::InStream,
            inputs: vec![("x".to_owned(), SharedContent::NextMemory)],
            left: Some(Duration::from_secs(3)),
            is_weighed: true,
            fault: None,
        };
        let hold = vec![(id, SharedContent::Bytes(Bytes::from_static(b"model")))];
        fuzzed::fuzz_decoder(14, &[SandboxOrder::Hold(hold), SandboxOrder::Run(3, run)]);
        fuzzed::fuzz_decoder::<SandboxAnswer>(15, &[SandboxAnswer::Alive]);
    }
}
