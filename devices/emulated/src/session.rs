//! A session on a device that is only described: the CPU steps it, and the profile says how long
//! that took.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use souk_memory::Tensor;
use souk_vocabulary::processor::session::{Session, State};
use souk_vocabulary::processor::{Outcome, RunError};

use super::EmulatedProgram;

/// A session of the CPU's, timed as the device.
pub(super) struct EmulatedSession<'a> {
    program: &'a EmulatedProgram,
    session: Box<dyn Session + 'a>,
    /// What the states were at first: their sizes decide what a step takes.
    first: BTreeMap<String, Tensor>,
    /// Bytes of the device's memory that the states take.
    bytes: u64,
}

impl<'a> EmulatedSession<'a> {
    pub(super) fn new(program: &'a EmulatedProgram, states: Vec<State>) -> Result<Self, RunError> {
        let first = states.iter();
        let first: BTreeMap<String, Tensor> = first
            .map(|state| (state.port.input.clone(), state.value.clone()))
            .collect();
        let session = program.program.session(states)?;
        let bytes = first.values().map(|state| state.bytes().len() as u64).sum();
        let loaded = &program.state.loaded_bytes;
        loaded.fetch_add(bytes, Ordering::Relaxed);
        Ok(Self {
            program,
            session,
            first,
            bytes,
        })
    }
}

impl Session for EmulatedSession<'_> {
    fn step(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        let mut all = self.first.clone();
        all.extend(inputs.clone());
        let session = &mut self.session;
        self.program.as_modelled(&all, || session.step(inputs))
    }

    fn export(&self) -> Result<BTreeMap<String, Tensor>, RunError> {
        self.session.export()
    }
}

impl Drop for EmulatedSession<'_> {
    fn drop(&mut self) {
        let loaded = &self.program.state.loaded_bytes;
        loaded.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
