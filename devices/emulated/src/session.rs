//! A session (steps with state, such as the tokens of a text) on an emulated device: the CPU
//! computes each step, and the profile gives the step's time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use souk_memory::Tensor;
use souk_vocabulary::processor::session::{SequenceStep, Session, State};
use souk_vocabulary::processor::{Outcome, RunError};

use super::EmulatedProgram;

/// A session of the CPU, with the step times of the emulated device.
pub(super) struct EmulatedSession<'a> {
    program: &'a EmulatedProgram,
    session: Box<dyn Session + 'a>,
    /// The initial states: their sizes decide the time of a step.
    first: BTreeMap<String, Tensor>,
    /// Bytes of the device's memory that the states of a sequence take.
    bytes: u64,
    /// The sequences that have them.
    sequences: BTreeSet<u32>,
}

impl<'a> EmulatedSession<'a> {
    pub(super) fn new(program: &'a EmulatedProgram, states: Vec<State>) -> Result<Self, RunError> {
        let first = states.iter();
        let first: BTreeMap<String, Tensor> = first
            .map(|state| (state.port.input.clone(), state.value.clone()))
            .collect();
        let session = program.program.open_session(states)?;
        let bytes = first.values().map(|state| state.bytes().len() as u64).sum();
        Ok(Self {
            program,
            session,
            first,
            bytes,
            sequences: BTreeSet::new(),
        })
    }

    /// Takes the profile's time for each by itself.
    fn step_one(&mut self, step: &SequenceStep) -> Result<Outcome, RunError> {
        if self.sequences.insert(step.sequence) {
            let loaded = &self.program.state.loaded_bytes;
            loaded.fetch_add(self.bytes, Ordering::Relaxed);
        }
        let mut all = self.first.clone();
        all.extend(step.inputs.clone());
        let session = &mut self.session;
        self.program.as_modelled(&all, || {
            let mut outcomes = session.step_all(std::slice::from_ref(step));
            outcomes.pop().expect("a step has an outcome")
        })
    }
}

impl Session for EmulatedSession<'_> {
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>> {
        steps.iter().map(|step| self.step_one(step)).collect()
    }

    fn export_states(&self, sequence: u32) -> Result<BTreeMap<String, Tensor>, RunError> {
        self.session.export_states(sequence)
    }
}

impl Drop for EmulatedSession<'_> {
    fn drop(&mut self) {
        let loaded = &self.program.state.loaded_bytes;
        let bytes = self.bytes * self.sequences.len() as u64;
        loaded.fetch_sub(bytes, Ordering::Relaxed);
    }
}
