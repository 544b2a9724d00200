//! Compiled programs, kept for the next run of the same subgraph.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use souk_devices::processor::Program;
use souk_memory::ContentId;

/// Programs kept. Each holds its weights in memory, and a device serves few jobs at a time.
const PROGRAMS_MAX: usize = 16;

/// The programs last used, the latest at the back.
#[derive(Default)]
pub(super) struct Programs {
    recent: Mutex<VecDeque<(ContentId, Arc<dyn Program>)>>,
}

impl Programs {
    pub fn get(&self, id: &ContentId) -> Option<Arc<dyn Program>> {
        let mut recent = self.recent();
        let index = recent.iter().position(|(held, _)| held == id)?;
        let entry = recent.remove(index)?;
        let program = entry.1.clone();
        recent.push_back(entry);
        Some(program)
    }

    pub fn insert(&self, id: ContentId, program: Arc<dyn Program>) {
        let mut recent = self.recent();
        // Two threads may have compiled the same model; the later one is kept.
        recent.retain(|(held, _)| *held != id);
        if recent.len() == PROGRAMS_MAX {
            recent.pop_front();
        }
        recent.push_back((id, program));
        assert!(recent.len() <= PROGRAMS_MAX, "programs are bounded");
    }

    fn recent(&self) -> MutexGuard<'_, VecDeque<(ContentId, Arc<dyn Program>)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
