//! Converts a step or an evaluation of a training run into requests of a lease, and the answers to
//! these requests into one answer.

use std::collections::{BTreeMap, VecDeque};

use souk_memory::Tensor;
use souk_roles::train::{LossBits, RunRequest, States, StepAnswer};
use souk_scheduler::gradient::step_graph::LOSS;

use super::Training;
use crate::buyer::job::RequestInputs;

/// The requests of a lease that are not sent or not answered.
#[derive(Default)]
pub(super) struct SentRequests {
    /// The requests of an evaluation that must be sent before any other.
    waiting: VecDeque<RequestInputs>,
    /// The kinds of the requests without an answer, in the order in which they were sent.
    sent: VecDeque<RequestKind>,
    /// The losses of the batches of the present evaluation.
    losses: Vec<f32>,
}

/// The kind of a request.
enum RequestKind {
    Step,
    Batch {
        is_last: bool,
    },
    /// The last one sent of an evaluation that the buyer gave up.
    LastOfAbandoned,
}

/// The requests that a step or an evaluation is.
pub(super) fn to_requests(training: &Training, request: RunRequest) -> Vec<RequestInputs> {
    let of_tensors = |tensors, keep| RequestInputs {
        sequence: 0,
        tensors,
        keep,
    };
    match request {
        RunRequest::Step(step) => {
            vec![of_tensors(training.step_inputs(step.position), step.keep)]
        }
        RunRequest::Evaluation { .. } => {
            let batches = training.held_out.iter().flat_map(|it| 0..it.batch_count());
            let inputs = batches.map(|place| training.evaluation_inputs(place));
            inputs.map(|tensors| of_tensors(tensors, false)).collect()
        }
    }
}

impl SentRequests {
    /// Notes requests that will be sent, and returns the first of them.
    pub(super) fn begin(
        &mut self,
        requests: Vec<RequestInputs>,
        what: RunRequest,
    ) -> RequestInputs {
        assert!(self.waiting.is_empty(), "one after the other");
        let count = requests.len();
        let sent = (1..=count).map(|number| match what {
            RunRequest::Step(_) => RequestKind::Step,
            RunRequest::Evaluation { .. } => RequestKind::Batch {
                is_last: number == count,
            },
        });
        self.sent.extend(sent);
        self.waiting.extend(requests);
        let first = self.waiting.pop_front();
        first.expect("a step or an evaluation is at least one request")
    }

    /// Returns the next request of an evaluation that has begun.
    pub(super) fn take_waiting(&mut self) -> Option<RequestInputs> {
        self.waiting.pop_front()
    }

    /// Gives up the batches of an evaluation that are not sent. Returns the answer to it if all
    /// that were sent are answered; else the last of these has that answer.
    pub(super) fn abandon_evaluation(&mut self) -> Option<StepAnswer> {
        let unsent = self.waiting.len();
        if unsent == 0 {
            return None;
        }
        self.waiting.clear();
        self.sent.truncate(self.sent.len() - unsent);
        match self.sent.back_mut() {
            Some(last @ RequestKind::Batch { .. }) => {
                *last = RequestKind::LastOfAbandoned;
                None
            }
            _ => {
                self.losses.clear();
                Some(StepAnswer::Abandoned)
            }
        }
    }

    /// Judges the outputs of the next request by their form. Returns the answer with the states
    /// that came with it; none if more batches of its evaluation follow.
    pub(super) fn take_answer(
        &mut self,
        training: &Training,
        outputs: &BTreeMap<String, Tensor>,
    ) -> Option<(StepAnswer, Option<BTreeMap<String, Tensor>>)> {
        let loss = outputs.get(LOSS).and_then(|loss| loss.to_vec::<f32>().ok());
        let loss = loss.and_then(|loss| loss.first().copied());
        let (Some(loss), Some(sent)) = (loss, self.sent.pop_front()) else {
            return Some((StepAnswer::Malformed, None));
        };
        match (sent, &training.held_out) {
            (RequestKind::LastOfAbandoned, _) => {
                self.losses.clear();
                Some((StepAnswer::Abandoned, None))
            }
            (RequestKind::Batch { is_last }, Some(held_out)) => {
                self.losses.push(loss);
                if !is_last {
                    return None;
                }
                let losses = std::mem::take(&mut self.losses);
                let loss = LossBits(held_out.combine_losses(&losses).to_bits());
                let states = None;
                Some((StepAnswer::Done { loss, states }, None))
            }
            _ => Some(judge_step(training, outputs, loss)),
        }
    }
}

/// Judges the answer to a step.
fn judge_step(
    training: &Training,
    outputs: &BTreeMap<String, Tensor>,
    loss: f32,
) -> (StepAnswer, Option<BTreeMap<String, Tensor>>) {
    let bits = LossBits(loss.to_bits());
    let next = training.step.next_states(outputs);
    let mut states = next.iter().flat_map(BTreeMap::values);
    if !loss.is_finite() || states.any(|state| !is_finite(state)) {
        return (StepAnswer::NotFinite { loss: bits }, None);
    }
    let states = next.as_ref().map(state_ids);
    (StepAnswer::Done { loss: bits, states }, next)
}

/// Returns the contents of states by the names of the inputs that they feed.
pub(super) fn state_ids(states: &BTreeMap<String, Tensor>) -> States {
    let ids = states.iter().map(|(name, it)| (name.clone(), it.id()));
    ids.collect()
}

/// Returns whether all elements of a state are finite.
fn is_finite(state: &Tensor) -> bool {
    let elements = state.to_vec::<f32>();
    elements.is_ok_and(|elements| elements.iter().all(|element| element.is_finite()))
}
