//! What a provider and a sandbox say to each other. Both are the same program: nothing here
//! outlives it, so nothing is versioned.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_memory::ContentId;
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;
use souk_scheduler::execution::{Moment, TaskError};
use souk_scheduler::learning::{CostHistory, Measurement};
use souk_scheduler::planning::Objective;

use super::shared::{SealedCopy, SharedContent};
use super::{RunMode, SandboxPolicy, SandboxRun};
use crate::device::graph_operators::GraphOperators;
use crate::device::graph_work::GraphWork;
use crate::device::refused_node;
use crate::folder::config::{DeviceChoice, Fault};

/// What an order that is answered is called in its answer: each has another one.
pub(super) type Number = u64;

/// What a provider says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SandboxOrder {
    /// The first: what to be. [`SandboxAnswer::OpenAnswer`] follows.
    OpenOrder(Box<OpenOrder>),
    /// Content to hold; nothing follows.
    Hold(Vec<(ContentId, SharedContent)>),
    /// A model whose operators are asked for, and a fault to play meanwhile, for tests.
    /// [`SandboxAnswer::Inspected`] follows.
    Inspect(Number, ContentId, Option<Fault>),
    /// A model to make ready. [`SandboxAnswer::Prepared`] follows.
    Prepare(Number, ContentId),
    /// A model to run. [`SandboxAnswer::Ran`] follows; of a stream others may be sent before that.
    Run(Number, RunOrder),
}

/// What a sandbox is to be.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OpenOrder {
    #[serde(with = "as_json")]
    pub(super) device: DeviceChoice,
    pub(super) cores: Option<u32>,
    pub(super) label: String,
    /// The devices' profiles as JSON, whose form is not that of the channel.
    pub(super) profiles: Option<String>,
    /// What they were seen to take.
    pub(super) costs: CostHistory,
    /// What they make small.
    pub(super) objective: Objective,
    /// The library of ONNX Runtime that they use.
    pub(super) library: Option<PathBuf>,
    pub(super) memory_bytes: u64,
}

/// A choice as JSON: it leaves out what is not said, which the form of the channel cannot.
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
    /// The sequence that it is a step of where it is one of a session.
    pub(super) sequence: u32,
    pub(super) run_mode: RunMode,
    /// Blobs of tensors by name.
    pub(super) inputs: Vec<(String, SharedContent)>,
    /// Time to its deadline, if it has one: the two processes share no clock. What else orders
    /// runs is between leases, and here is but one.
    pub(super) left: Option<Duration>,
    /// Whether it is to be told what the model takes.
    pub(super) is_weighed: bool,
    /// A fault to play, for tests.
    pub(super) fault: Option<Fault>,
}

impl RunOrder {
    /// The order, and the memory that goes with it.
    pub(super) fn new(run: SandboxRun) -> io::Result<(RunOrder, Vec<SealedCopy>)> {
        let task = run.task;
        let mut sealed = Vec::new();
        let mut inputs = Vec::with_capacity(task.inputs.len());
        for (name, tensor) in &task.inputs {
            inputs.push((name.clone(), SharedContent::tensor(tensor, &mut sealed)?));
        }
        let (name, model) = (task.name, task.model);
        let order = RunOrder {
            name,
            model,
            sequence: task.sequence,
            run_mode: run.run_mode,
            inputs,
            left: run.deadline.map(|at| at.since(Moment::now())),
            is_weighed: run.is_weighed,
            fault: run.fault,
        };
        Ok((order, sealed))
    }
}

/// Why a run gave nothing.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum RunFault {
    /// Its deadline came first.
    Late,
    /// The device's words.
    Failed(String),
    /// The same, of inputs that no device can work with.
    BadInput(String),
}

/// Why a model is not made ready.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NotReady {
    /// The device's words.
    pub(super) reason: String,
    /// The digest of the node that it refuses, if it is one.
    pub(super) node: Option<u64>,
}

impl NotReady {
    /// Why the device refuses a model.
    pub(super) fn of(error: &TaskError, model: Option<Bytes>) -> Self {
        let digest = |node: &str| refused_node::digest(model?, node);
        Self {
            node: error.refused_node().and_then(digest),
            reason: error.to_string(),
        }
    }
}

/// What a sandbox says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SandboxAnswer {
    /// It is at work. Said again and again until it is done.
    Alive,
    /// Its devices are open; or why they are not.
    OpenAnswer(Result<OpenAnswer, String>),
    /// The operators of the model, if there are no more than may be told.
    Inspected(Number, Result<GraphOperators, String>),
    /// The model is ready; or why it is not.
    Prepared(Number, Result<(), NotReady>),
    /// What the run gave, or why it failed.
    Ran(Number, Box<Result<RunHead, RunFault>>),
}

/// An open sandbox.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct OpenAnswer {
    pub(super) label: String,
    pub(super) profiles: String,
    /// Requests of a stream that keep its devices at work.
    pub(super) stream_ahead: usize,
    pub(super) policy: SandboxPolicy,
}

/// What a run gave; the blobs of its outputs follow, one after the other.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunHead {
    /// Names and lengths of the blobs.
    pub(super) outputs: Vec<(String, u64)>,
    pub(super) report: Report,
    pub(super) timeline: Timeline,
    pub(super) busy: Duration,
    pub(super) makespan: Duration,
    pub(super) learned: Vec<Measurement>,
    /// What the model takes, where that was asked and its nodes say it.
    pub(super) work: Option<GraphWork>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::fuzzed;

    #[test]
    fn damaged_words_of_either_side_do_no_harm() {
        let id = ContentId::of(b"model");
        let run = RunOrder {
            name: "part 1 of 1".to_owned(),
            model: id,
            sequence: 3,
            run_mode: RunMode::InStream,
            inputs: vec![("x".to_owned(), SharedContent::SharedContents)],
            left: Some(Duration::from_secs(3)),
            is_weighed: true,
            fault: None,
        };
        let hold = vec![(id, SharedContent::Here(Bytes::from_static(b"model")))];
        fuzzed::try_messages(14, &[SandboxOrder::Hold(hold), SandboxOrder::Run(3, run)]);
        fuzzed::try_messages::<SandboxAnswer>(15, &[SandboxAnswer::Alive]);
    }
}
