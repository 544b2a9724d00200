//! What a provider and a cell say to each other. Both are the same program: nothing here outlives
//! it, so nothing is versioned.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_memory::ContentId;
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;
use souk_scheduler::learning::{CostHistory, Measurement};
use souk_scheduler::planning::Objective;

use super::shared::Given;
use super::{Course, Walls};
use crate::folder::config::{DeviceChoice, Fault};

/// What an order that is answered is called in its answer: each has another one.
pub(super) type Number = u64;

/// What a provider says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// The first: what to be. [`Answer::Opened`] follows.
    Open(Box<Open>),
    /// Content to hold; nothing follows.
    Hold(Vec<(ContentId, Given)>),
    /// A model to make ready. [`Answer::Prepared`] follows.
    Prepare(Number, ContentId),
    /// A model to run. [`Answer::Ran`] follows; of a stream others may be sent before that.
    Run(Number, RunOrder),
}

/// What a cell is to be.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Open {
    #[serde(with = "as_json")]
    pub(super) device: DeviceChoice,
    pub(super) cores: Option<u32>,
    pub(super) label: String,
    /// The devices' profiles as JSON, whose form is not that of the line.
    pub(super) profiles: Option<String>,
    /// What they were seen to take.
    pub(super) costs: CostHistory,
    /// What they make small.
    pub(super) objective: Objective,
    /// The library of ONNX Runtime that they use.
    pub(super) library: Option<PathBuf>,
    pub(super) memory_bytes: u64,
}

/// A choice as JSON: it leaves out what is not said, which the form of the line cannot.
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
    pub(super) course: Course,
    /// Blobs of tensors by name.
    pub(super) inputs: Vec<(String, Given)>,
    /// Time to its deadline, if it has one: the two processes share no clock. What else orders
    /// runs is between leases, and here is but one.
    pub(super) left: Option<Duration>,
    /// A fault to play, for tests.
    pub(super) fault: Option<Fault>,
}

/// Why a run gave nothing.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Unrun {
    /// Its deadline came first.
    Late,
    /// The device's words.
    Failed(String),
}

/// What a cell says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is at work. Said again and again until it is done.
    Alive,
    /// Its devices are open; or why they are not.
    Opened(Result<Opened, String>),
    /// The model is ready; or why it is not.
    Prepared(Number, Result<(), String>),
    /// What the run gave, or why it failed.
    Ran(Number, Box<Result<RanHead, Unrun>>),
}

/// An open cell.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Opened {
    pub(super) label: String,
    pub(super) profiles: String,
    /// Requests of a stream that keep its devices at work.
    pub(super) stream_ahead: usize,
    pub(super) walls: Walls,
}

/// What a run gave; the blobs of its outputs follow, one after the other.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RanHead {
    /// Names and lengths of the blobs.
    pub(super) outputs: Vec<(String, u64)>,
    pub(super) report: Report,
    pub(super) timeline: Timeline,
    pub(super) busy: Duration,
    pub(super) makespan: Duration,
    pub(super) learned: Vec<Measurement>,
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
            course: Course::InStream,
            inputs: vec![("x".to_owned(), Given::Shared)],
            left: Some(Duration::from_secs(3)),
            fault: None,
        };
        let hold = vec![(id, Given::Here(bytes::Bytes::from_static(b"model")))];
        fuzzed::try_messages(14, &[Order::Hold(hold), Order::Run(3, run)]);
        fuzzed::try_messages::<Answer>(15, &[Answer::Alive]);
    }
}
