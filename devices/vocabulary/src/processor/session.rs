//! Sessions: a program run again and again on states that stay with it.
//!
//! A decoder's keys and values grow by one position a token; brought along with every request they
//! would be most of what moves. In a session they stay where the program computes.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::Tensor;
use souk_onnx::states::StatePort;

use super::{Outcome, Program, RunError};
use crate::residency::TensorHandle;

/// A state, and what it is at first.
#[derive(Clone, Debug)]
pub struct State {
    /// The input it is, and the output that is its next value.
    pub port: StatePort,
    /// Its value before the first step.
    pub value: Tensor,
}

/// A step of one sequence.
#[derive(Clone, Debug)]
pub struct SequenceStep {
    /// Which.
    pub sequence: u32,
    /// The inputs that are no states.
    pub inputs: BTreeMap<String, Tensor>,
}

/// Steps of one program over states.
///
/// A sequence's states are made with its first step, and begin as the session's did. A decoder's
/// caches have room for all positions from the start, and the inputs say how many count: so a
/// sequence goes back to an earlier position by inputs alone, and needs no word for it.
pub trait Session: Send {
    /// Runs once for each of some sequences, no two the same, on the states as the last step left
    /// them; gives each one's outputs that are none, in their order, the same bits whatever is
    /// beside it. The times of all add up to what was worked. A step that fails leaves the others
    /// as they are, and may have written its states where a cache has not counted yet, nowhere
    /// else.
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>>;

    /// The same for the first sequence alone.
    ///
    /// # Errors
    /// [`RunError`], as a run.
    fn step(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        let step = SequenceStep {
            sequence: 0,
            inputs: inputs.clone(),
        };
        let mut outcomes = self.step_all(&[step]);
        outcomes.pop().expect("a step has an outcome")
    }

    /// The states of a sequence as they are, by the names of their inputs.
    ///
    /// # Errors
    /// Why the device failed.
    fn export(&self, sequence: u32) -> Result<BTreeMap<String, Tensor>, RunError>;
}

/// A session of any program: a state is an output of one run, kept where the device works, and an
/// input of the next. Sequences are stepped one after the other.
pub struct HeldSession<'a, P: Program + ?Sized> {
    program: &'a P,
    /// What the states of a sequence are before its first step.
    first: BTreeMap<String, TensorHandle>,
    /// By sequence.
    states: BTreeMap<u32, BTreeMap<String, TensorHandle>>,
    ports: Vec<StatePort>,
    /// The inputs that are states, and the outputs that are their next values.
    own: BTreeSet<String>,
    kept: BTreeSet<String>,
}

impl<'a, P: Program + ?Sized> HeldSession<'a, P> {
    /// A session whose sequences begin with these states.
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
        let mut outcome = self.program.run_over(&given, &self.kept, &self.own)?;
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

    fn export(&self, sequence: u32) -> Result<BTreeMap<String, Tensor>, RunError> {
        let own = self.states.get(&sequence).unwrap_or(&self.first);
        let each = own.iter();
        each.map(|(name, state)| Ok((name.clone(), state.to_host()?)))
            .collect()
    }
}
