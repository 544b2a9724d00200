//! What waits for its way between two places, and what is on one because somebody waits for it.
//!
//! Whoever waits for content moves it himself, at once: he would only lose time in a queue. What
//! was planned for the way that he takes lets him go first, and what was planned of the same
//! content is not moved again.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use souk_memory::holdings::Handle;
use souk_memory::paths::Hop;
use souk_memory::place::Place;
use souk_memory::transfers::{Transfers, Urgency};

use super::held_tensor::HeldTensor;
use super::run_log::RunLog;
use crate::execution::lock::lock;

/// The transfer queue of a group.
#[derive(Default)]
pub(super) struct TransferQueue {
    queue: Mutex<TransferState>,
    /// Rung when there is something to do or something has ended.
    pub work: Condvar,
}

/// What is to be brought, and who writes it down.
pub(super) type QueuedTransfer = (HeldTensor, Option<Arc<RunLog>>);

#[derive(Default)]
pub(super) struct TransferState {
    pub transfers: Transfers,
    /// What waits, and where it is to come.
    pub asked: BTreeMap<(Handle, Place), QueuedTransfer>,
    pub threads: Vec<JoinHandle<()>>,
    /// How many of them are at work.
    pub moving: usize,
    pub stopping: bool,
}

/// A way that somebody takes who waits, until this is dropped.
pub(super) struct AwaitedTransfer<'a> {
    queue: &'a TransferQueue,
    hop: Hop,
}

impl Drop for AwaitedTransfer<'_> {
    fn drop(&mut self) {
        let mut queue = self.queue.lock();
        queue.transfers.end_awaited(self.hop.from, self.hop.to);
        drop(queue);
        self.queue.work.notify_all();
    }
}

impl TransferQueue {
    pub fn lock(&self) -> MutexGuard<'_, TransferState> {
        lock(&self.queue)
    }

    /// Content goes over a hop: if somebody waits for it, before what waits there.
    pub fn goes_first(
        &self,
        urgency: Urgency,
        hop: Hop,
        handles: impl Iterator<Item = Handle>,
    ) -> Option<AwaitedTransfer<'_>> {
        if urgency != Urgency::Awaited {
            return None;
        }
        let mut queue = self.lock();
        let TransferState {
            transfers, asked, ..
        } = &mut *queue;
        let forgotten = handles.inspect(|&handle| drop(asked.remove(&(handle, hop.to))));
        transfers.begin_awaited(forgotten, hop.from, hop.to);
        Some(AwaitedTransfer { queue: self, hop })
    }
}
