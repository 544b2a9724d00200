//! Queues transfers of tensors until the path between two places is free, and lets the transfer of
//! a waiting thread go first.
//!
//! A thread that needs a tensor moves it itself and at once, because a queue would only cost time.
//! Planned transfers on its path let it go first, and the queue drops a planned transfer of the
//! same tensor.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use souk_memory::holdings::Handle;
use souk_memory::location::Location;
use souk_memory::paths::Hop;
use souk_memory::transfers::{Transfers, Urgency};

use super::held_tensor::HeldTensor;
use super::run_log::RunLog;
use crate::execution::lock::lock;

/// The transfer queue of a group.
#[derive(Default)]
pub(super) struct TransferQueue {
    queue: Mutex<TransferState>,
    /// Signals new work or the end of a transfer.
    pub work: Condvar,
}

/// A tensor to bring, and the log that records it.
pub(super) type QueuedTransfer = (HeldTensor, Option<Arc<RunLog>>);

#[derive(Default)]
pub(super) struct TransferState {
    pub transfers: Transfers,
    /// The waiting transfers by their destination.
    pub waiting_transfers: BTreeMap<(Handle, Location), QueuedTransfer>,
    pub threads: Vec<JoinHandle<()>>,
    /// Number of threads that move a batch now.
    pub moving: usize,
    pub stopping: bool,
}

/// Claims a path for a waiting thread until the thread drops it. No batch of the queue will begin
/// on the path before that.
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

    /// Claims a hop for contents that a thread waits for, ahead of the queue. Returns none for
    /// other urgencies.
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
            transfers,
            waiting_transfers,
            ..
        } = &mut *queue;
        let forgotten =
            handles.inspect(|&handle| drop(waiting_transfers.remove(&(handle, hop.to))));
        transfers.begin_awaited(forgotten, hop.from, hop.to);
        Some(AwaitedTransfer { queue: self, hop })
    }
}
