//! Shares the programs that devices have loaded between all plans that need them.
//!
//! A new plan, with other shares or fragments, mostly runs the same programs as the one before it,
//! and their weights are already on the devices. So an existing program is shared, and a device
//! loads only the missing ones. The cache itself holds no program alive: a program will disappear
//! with its last plan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use souk_memory::ContentId;
use souk_onnx::subgraph::{CompileError, Subgraph};
use souk_vocabulary::processor::{Processor, Program};

use crate::execution::lock::lock;

/// The programs of a group.
pub(in crate::execution) struct ProgramCache {
    devices: usize,
    /// By device and by model, whose id covers its weights.
    known: Mutex<BTreeMap<(usize, ContentId), Weak<dyn Program>>>,
}

/// The programs of one subgraph on each device.
pub(in crate::execution) struct ProgramSlots {
    each: Vec<OnceLock<Result<Arc<dyn Program>, CompileError>>>,
    program_cache: Arc<ProgramCache>,
}

impl ProgramSlots {
    /// Returns the program on a device, and compiles it at the first request.
    pub fn get_or_compile(
        &self,
        device: usize,
        subgraph: &Subgraph,
        processor: &dyn Processor,
    ) -> Result<Arc<dyn Program>, CompileError> {
        let made = || {
            self.program_cache
                .get_or_compile(device, subgraph, processor)
        };
        self.each[device].get_or_init(made).clone()
    }
}

impl ProgramCache {
    /// Creates an empty cache for this number of devices.
    pub fn new(devices: usize) -> Self {
        let known = Mutex::default();
        Self { devices, known }
    }

    /// Returns empty slots for the programs of one subgraph.
    pub fn new_slots(self: &Arc<Self>) -> ProgramSlots {
        ProgramSlots {
            each: (0..self.devices).map(|_| OnceLock::new()).collect(),
            program_cache: self.clone(),
        }
    }

    /// Forgets the programs of a device that has lost them.
    pub fn forget_device(&self, device: usize) {
        lock(&self.known).retain(|(of, _), _| *of != device);
    }

    /// Returns the program of a subgraph on a device, and compiles it unless a plan still holds it.
    fn get_or_compile(
        &self,
        device: usize,
        subgraph: &Subgraph,
        processor: &dyn Processor,
    ) -> Result<Arc<dyn Program>, CompileError> {
        let key = (device, ContentId::for_content(&subgraph.model));
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
