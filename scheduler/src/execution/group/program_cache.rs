//! Programs as devices have them loaded, shared by all plans that need the same.
//!
//! A plan that is made anew, because its shares or its fragments moved, mostly runs what the one
//! before it ran. The weights of that lie where they are wanted: whoever still has the program
//! hands it on, and only what a device lacks is loaded. Nothing is held here: a program goes with
//! its last plan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use souk_memory::ContentId;
use souk_onnx::subgraph::{CompileError, Subgraph};
use souk_vocabulary::processor::{Processor, Program};

use crate::execution::lock::lock;

/// The programs of a group.
pub(in crate::execution) struct ProgramCache {
    devices: usize,
    /// By device and model, which names its weights by content.
    known: Mutex<BTreeMap<(usize, ContentId), Weak<dyn Program>>>,
}

/// What the devices made of one subgraph.
pub(in crate::execution) struct ProgramSlots {
    each: Vec<OnceLock<Result<Arc<dyn Program>, CompileError>>>,
    loaded: Arc<ProgramCache>,
}

impl ProgramSlots {
    /// Its program on a device, made when it is first wanted there.
    pub fn program(
        &self,
        device: usize,
        subgraph: &Subgraph,
        processor: &dyn Processor,
    ) -> Result<Arc<dyn Program>, CompileError> {
        let made = || self.loaded.program(device, subgraph, processor);
        self.each[device].get_or_init(made).clone()
    }
}

impl ProgramCache {
    /// Of so many devices.
    pub fn new(devices: usize) -> Self {
        let known = Mutex::default();
        Self { devices, known }
    }

    /// Room for the programs of one subgraph.
    pub fn slots(self: &Arc<Self>) -> ProgramSlots {
        ProgramSlots {
            each: (0..self.devices).map(|_| OnceLock::new()).collect(),
            loaded: self.clone(),
        }
    }

    /// What a device had loaded is gone.
    pub fn forget(&self, device: usize) {
        lock(&self.known).retain(|(of, _), _| *of != device);
    }

    /// The program of a subgraph on a device: compiled unless somebody has it.
    fn program(
        &self,
        device: usize,
        subgraph: &Subgraph,
        processor: &dyn Processor,
    ) -> Result<Arc<dyn Program>, CompileError> {
        let key = (device, ContentId::of(&subgraph.model));
        let known = lock(&self.known).get(&key).and_then(Weak::upgrade);
        if let Some(program) = known {
            return Ok(program);
        }
        let program: Arc<dyn Program> = Arc::from(processor.compile(subgraph)?);
        let mut known = lock(&self.known);
        known.retain(|_, program| program.strong_count() > 0);
        known.insert(key, Arc::downgrade(&program));
        Ok(program)
    }
}
