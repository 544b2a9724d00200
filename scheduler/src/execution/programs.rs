//! Caches the compiled programs of a single device, for the next run of the same subgraph. It drops
//! the least recently used ones beyond a fixed number, or if the device needs room.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use souk_memory::ContentId;
use souk_vocabulary::processor::Program;

/// Maximum number of cached programs, if the device has memory for them. Each holds its weights on
/// the device, and a device serves few jobs at a time.
const PROGRAMS_MAX: usize = 16;

/// Free memory that a program needs on a device, as a multiple of its model's bytes: for the
/// weights in the device's layout, and for its activations.
const ROOM_TIMES: u64 = 2;

/// The recent programs, the latest at the back.
#[derive(Default)]
pub(super) struct Programs {
    recent: Mutex<VecDeque<(ContentId, Arc<dyn Program>)>>,
}

impl Programs {
    pub fn get(&self, id: &ContentId) -> Option<Arc<dyn Program>> {
        let mut recent = self.lock_recent();
        let index = recent.iter().position(|(held, _)| held == id)?;
        let entry = recent.remove(index)?;
        let program = entry.1.clone();
        recent.push_back(entry);
        Some(program)
    }

    /// Drops the least recently used programs until `free` bytes suffice for a model of
    /// `model_bytes`, or none remains.
    pub fn make_room(&self, model_bytes: u64, free: impl Fn() -> u64) {
        let wanted = model_bytes.saturating_mul(ROOM_TIMES);
        let mut recent = self.lock_recent();
        while !recent.is_empty() && free() < wanted {
            recent.pop_front();
        }
    }

    pub fn insert(&self, id: ContentId, program: Arc<dyn Program>) {
        let mut recent = self.lock_recent();
        // Two threads can have compiled the same model; the later program stays.
        recent.retain(|(held, _)| *held != id);
        if recent.len() == PROGRAMS_MAX {
            recent.pop_front();
        }
        recent.push_back((id, program));
        assert!(recent.len() <= PROGRAMS_MAX, "programs are bounded");
    }

    fn lock_recent(&self) -> MutexGuard<'_, VecDeque<(ContentId, Arc<dyn Program>)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
