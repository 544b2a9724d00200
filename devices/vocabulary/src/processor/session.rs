//! Defines sessions, in which a program runs step after step on states that stay with it. A state
//! is a value that a model carries from one request to the next. One session can step several
//! sequences (for a decoder, texts), each with states of its own.
//!
//! A decoder's keys and values grow by one position per token. If each request carried them, they
//! would be most of the traffic. In a session they stay where the program computes.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::Tensor;
use souk_onnx::states::StatePort;

use super::{Outcome, Program, RunError};
use crate::residency::TensorHandle;

/// A state and its first value.
#[derive(Clone, Debug)]
pub struct State {
    /// The input that reads the state, and the output that is its next value.
    pub port: StatePort,
    /// Its value before the first step.
    pub value: Tensor,
}

/// A step of one sequence.
#[derive(Clone, Debug)]
pub struct SequenceStep {
    /// Number of the sequence.
    pub sequence: u32,
    /// The inputs that are not states; each step must bring all of them.
    pub inputs: BTreeMap<String, Tensor>,
}

/// Runs a program step by step for several sequences, each with states of its own.
///
/// A sequence's states are created at its first step, and begin as the session's did. A decoder's
/// caches have room for all positions from the start, and the inputs say how many count; so you can
/// return a sequence to an earlier position by its inputs alone.
pub trait Session: Send {
    /// Runs each of these sequences, which must all differ, once on the states that its last step
    /// left, and returns in the same order the outputs that are not states. The bits of an output
    /// must not depend on the other sequences. The times of all outcomes must add up to the time
    /// worked. If a step fails, it leaves the other sequences unchanged; in its own states it may
    /// have written only positions that a cache did not count yet.
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>>;

    /// Steps sequence 0 alone. Use [`Self::step_all`] if you have several sequences, because a
    /// device can then step them together.
    ///
    /// # Errors
    /// [`RunError`], as for a run.
    fn step(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        let step = SequenceStep {
            sequence: 0,
            inputs: inputs.clone(),
        };
        let mut outcomes = self.step_all(&[step]);
        outcomes.pop().expect("a step has an outcome")
    }

    /// Returns the current states of a sequence, by the names of their inputs.
    ///
    /// # Errors
    /// [`RunError`] if the device failed.
    fn export_states(&self, sequence: u32) -> Result<BTreeMap<String, Tensor>, RunError>;
}

/// A session of any program: a state is an output of one run that stays in the device's memory and
/// is an input of the next. The session steps sequences one after the other.
pub struct HeldSession<'a, P: Program + ?Sized> {
    program: &'a P,
    /// The states of each sequence before its first step.
    first: BTreeMap<String, TensorHandle>,
    /// The current states of each sequence.
    states: BTreeMap<u32, BTreeMap<String, TensorHandle>>,
    ports: Vec<StatePort>,
    /// The inputs that are states, and the outputs that are their next values.
    own: BTreeSet<String>,
    kept: BTreeSet<String>,
}

impl<'a, P: Program + ?Sized> HeldSession<'a, P> {
    /// Creates a session whose sequences begin with these states.
    #[must_use]
    pub fn new(program: &'a P, states: Vec<State>) -> Self {
        let ports: Vec<StatePort> = states.iter().map(|it| it.port.clone()).collect();
        let held = states
            .into_iter()
            .map(|state| (state.port.input, TensorHandle::Host(state.value)));
        Self {
            program,
            first: held.collect(),
            states: BTreeMap::new(),
            own: ports.iter().map(|port| port.input.clone()).collect(),
            kept: ports.iter().map(|port| port.output.clone()).collect(),
            ports,
        }
    }

    fn step_one(&mut self, step: &SequenceStep) -> Result<Outcome, RunError> {
        let own = self.states.get(&step.sequence).unwrap_or(&self.first);
        let mut next = own.clone();
        let mut given = own.clone();
        for (name, tensor) in &step.inputs {
            given.insert(name.clone(), TensorHandle::Host(tensor.clone()));
        }
        let mut outcome = self.program.run_in_place(&given, &self.kept, &self.own)?;
        for port in &self.ports {
            if let Some(made) = outcome.outputs.remove(&port.output) {
                next.insert(port.input.clone(), made);
            }
        }
        self.states.insert(step.sequence, next);
        outcome.try_map(|output| output.to_host())
    }
}

impl<P: Program + ?Sized> Session for HeldSession<'_, P> {
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>> {
        steps.iter().map(|step| self.step_one(step)).collect()
    }

    fn export_states(&self, sequence: u32) -> Result<BTreeMap<String, Tensor>, RunError> {
        let own = self.states.get(&sequence).unwrap_or(&self.first);
        let each = own.iter();
        each.map(|(name, state)| Ok((name.clone(), state.to_host()?)))
            .collect()
    }
}
