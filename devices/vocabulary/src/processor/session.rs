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

/// Steps of one program over states.
///
/// A decoder's caches have room for all positions from the start, and the inputs say how many
/// count: so a session goes back to an earlier position by inputs alone, and needs no word for it.
pub trait Session: Send {
    /// Runs once on the states as the last step left them; gives the outputs that are none. A step
    /// that fails may have written the states where a cache has not counted yet, nowhere else.
    ///
    /// # Errors
    /// [`RunError`], as a run.
    fn step(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError>;

    /// The states as they are, by the names of their inputs.
    ///
    /// # Errors
    /// Why the device failed.
    fn export(&self) -> Result<BTreeMap<String, Tensor>, RunError>;
}

/// A session of any program: a state is an output of one run, kept where the device works, and an
/// input of the next.
pub struct HeldSession<'a, P: Program + ?Sized> {
    program: &'a P,
    states: BTreeMap<String, TensorHandle>,
    ports: Vec<StatePort>,
    kept: BTreeSet<String>,
}

impl<'a, P: Program + ?Sized> HeldSession<'a, P> {
    /// A session that begins with these states.
    #[must_use]
    pub fn new(program: &'a P, states: Vec<State>) -> Self {
        let ports: Vec<StatePort> = states.iter().map(|it| it.port.clone()).collect();
        let held = states
            .into_iter()
            .map(|state| (state.port.input, TensorHandle::Host(state.value)));
        Self {
            program,
            states: held.collect(),
            kept: ports.iter().map(|port| port.output.clone()).collect(),
            ports,
        }
    }
}

impl<P: Program + ?Sized> Session for HeldSession<'_, P> {
    fn step(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        let mut given = self.states.clone();
        for (name, tensor) in inputs {
            given.insert(name.clone(), TensorHandle::Host(tensor.clone()));
        }
        let mut outcome = self.program.run_held(&given, &self.kept)?;
        for port in &self.ports {
            if let Some(next) = outcome.outputs.remove(&port.output) {
                self.states.insert(port.input.clone(), next);
            }
        }
        outcome.try_map(|output| output.to_host())
    }

    fn export(&self) -> Result<BTreeMap<String, Tensor>, RunError> {
        let each = self.states.iter();
        each.map(|(name, state)| Ok((name.clone(), state.to_host()?)))
            .collect()
    }
}
