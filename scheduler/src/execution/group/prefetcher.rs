//! Moves fragments' inputs to their devices while other fragments compute.
//!
//! The plan says which fragments each device runs next. A thread of the prefetcher brings their
//! inputs to the device's own memory, or back from disk, as soon as there is room. A wrong guess
//! costs nothing but the move, because the fragment that needs a tensor brings it itself.
//!
//! Each path between two places carries one batch at a time, and all paths work in parallel, so a
//! slow disk delays no card. The prefetcher starts a thread if a path is free, a transfer waits for
//! it, and all present threads are busy.

use std::sync::Arc;
use std::thread::JoinHandle;

use souk_memory::holdings::Handle;
use souk_memory::location::Location;
use souk_memory::transfers::{TransferCounts, Urgency, WantedContent};

use super::held_tensor::HeldTensor;
use super::memories::Memories;
use super::run_log::RunLog;
use super::transfer_queue::{QueuedTransfer, TransferQueue, TransferState};

/// Maximum number of threads. They wait for disks and links and hardly compute, and eight cards
/// have as many incoming paths.
const THREADS_MAX: usize = 16;

/// The threads that prefetch tensors, with their queue.
pub(super) struct Prefetcher {
    shared: Arc<PrefetchShared>,
}

/// The handle with which runs request transfers from the prefetcher.
#[derive(Clone)]
pub(super) struct PrefetchHandle(Arc<PrefetchShared>);

struct PrefetchShared {
    transfer_queue: Arc<TransferQueue>,
    memories: Arc<Memories>,
}

impl Prefetcher {
    /// Starts the first thread.
    pub fn start(memories: Arc<Memories>) -> std::io::Result<Self> {
        let shared = Arc::new(PrefetchShared {
            transfer_queue: memories.transfer_queue().clone(),
            memories,
        });
        let first = spawn_thread(&shared)?;
        shared.transfer_queue.lock().threads.push(first);
        Ok(Self { shared })
    }

    pub fn new_handle(&self) -> PrefetchHandle {
        PrefetchHandle(self.shared.clone())
    }

    /// Returns the number of transfers so far.
    pub fn transfer_counts(&self) -> TransferCounts {
        self.shared.transfer_queue.lock().transfers.counts()
    }

    /// Returns whether a transfer waits for a free path.
    #[cfg(test)]
    pub fn is_ready(&self) -> bool {
        self.shared.transfer_queue.lock().transfers.is_ready()
    }

    /// Waits until the queue is empty and no transfer runs.
    #[cfg(test)]
    pub fn wait_until_idle(&self) {
        let mut queue = self.shared.transfer_queue.lock();
        while queue.moving > 0 || !queue.transfers.is_empty() {
            let waited = self.shared.transfer_queue.work.wait(queue);
            queue = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

impl PrefetchHandle {
    /// Requests a tensor that a fragment on a device will read at a place. It moves there if that
    /// is the device's own memory or the tensor is in another's; otherwise it comes back from disk
    /// if there is room.
    pub fn want_at(&self, kept: &HeldTensor, to: Location, device: usize, log: &Arc<RunLog>) {
        self.ask_at(kept, to, device, (Urgency::Planned, log));
    }

    /// Requests a tensor that a fragment on the device can read, unless another device runs that
    /// fragment.
    pub fn guess_at(&self, kept: &HeldTensor, to: Location, device: usize, log: &Arc<RunLog>) {
        self.ask_at(kept, to, device, (Urgency::Guessed, log));
    }

    fn ask_at(&self, kept: &HeldTensor, to: Location, device: usize, how: (Urgency, &Arc<RunLog>)) {
        let memories = &self.0.memories;
        let (urgency, log) = how;
        if !memories.has_device_memory() {
            return self.ask(kept, [Location::Disk, Location::Host], urgency, None);
        }
        let from = memories.source_place(kept);
        let in_memory = matches!(from, Location::Host | Location::Disk);
        match memories.own_memory(device).is_some() || !in_memory {
            true => self.ask(kept, [from, to], urgency, Some(log)),
            false => self.ask(kept, [Location::Disk, Location::Host], urgency, None),
        }
    }

    fn ask(
        &self,
        kept: &HeldTensor,
        [from, to]: [Location; 2],
        urgency: Urgency,
        log: Option<&Arc<RunLog>>,
    ) {
        let wanted = WantedContent {
            handle: kept.handle,
            bytes: kept.byte_size(),
        };
        let mut queue = self.0.transfer_queue.lock();
        let asked = queue.transfers.request_transfer(wanted, from, to, urgency);
        // A path that cannot keep up does not help: the reader brings the tensor itself.
        if asked.is_ok() {
            let asked = (kept.clone(), log.cloned());
            queue.waiting_transfers.insert((kept.handle, to), asked);
            add_thread(&self.0, &mut queue);
            self.0.transfer_queue.work.notify_all();
        }
    }

    /// Cancels requests for a tensor that no fragment will read any more.
    pub fn cancel_requests(&self, handle: Handle) {
        let mut queue = self.0.transfer_queue.lock();
        queue.transfers.forget_content(handle);
        queue
            .waiting_transfers
            .retain(|(asked, _), _| *asked != handle);
    }
}

/// Starts another thread if a free path has work and all threads are busy.
fn add_thread(shared: &Arc<PrefetchShared>, queue: &mut TransferState) {
    let all_at_work = queue.moving == queue.threads.len();
    let may_start = queue.threads.len() < THREADS_MAX && !queue.stopping;
    if all_at_work && may_start && queue.transfers.is_ready() {
        // Without another thread, the present ones do the work later.
        queue.threads.extend(spawn_thread(shared));
    }
}

fn spawn_thread(shared: &Arc<PrefetchShared>) -> std::io::Result<JoinHandle<()>> {
    let own = shared.clone();
    let named = std::thread::Builder::new().name("prefetcher".to_owned());
    named.spawn(move || run_prefetcher(&own))
}

fn run_prefetcher(shared: &Arc<PrefetchShared>) {
    let mut queue = shared.transfer_queue.lock();
    while !queue.stopping {
        let Some(batch) = queue.transfers.take_batch() else {
            let waited = shared.transfer_queue.work.wait(queue);
            queue = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
            continue;
        };
        let waiting_transfers: Vec<QueuedTransfer> = batch
            .items
            .iter()
            .filter_map(|wanted| queue.waiting_transfers.remove(&(wanted.handle, batch.to)))
            .collect();
        queue.moving += 1;
        add_thread(shared, &mut queue);
        drop(queue);
        bring_batch(&shared.memories, &waiting_transfers, batch.to);
        drop(waiting_transfers);
        queue = shared.transfer_queue.lock();
        queue.moving -= 1;
        queue.transfers.on_batch_done(&batch);
        shared.transfer_queue.work.notify_all();
    }
}

/// Brings a batch: tensors with a common hop together, then each one the rest of its way.
fn bring_batch(memories: &Memories, waiting_transfers: &[QueuedTransfer], to: Location) {
    if waiting_transfers.len() > 1 {
        let wanted = waiting_transfers
            .iter()
            .map(|(kept, log)| (kept, log.as_deref()));
        memories.bring_together(wanted, to, Urgency::Planned);
    }
    for (kept, log) in waiting_transfers {
        memories.prefetch_to(kept, to, log.as_deref());
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        let threads = {
            let mut queue = self.shared.transfer_queue.lock();
            queue.stopping = true;
            std::mem::take(&mut queue.threads)
        };
        self.shared.transfer_queue.work.notify_all();
        for thread in threads {
            // The threads panic only if an assertion is broken, and that panic is already printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use souk_memory::paths::{Path, PathKind};
    use souk_memory::space::SpaceConfig;
    use souk_memory::{DType, Shape, Tensor};

    use super::super::Clock;
    use super::*;
    use crate::execution::timeline::UnixMicros;

    fn adopt(memories: &Memories, byte: u8) -> HeldTensor {
        let shape = Shape::new(vec![400]).unwrap();
        let tensor = Tensor::new(DType::U8, shape, Bytes::from(vec![byte; 400])).unwrap();
        memories
            .adopt_host("tensor", &tensor, Location::Host, None)
            .unwrap()
    }

    #[test]
    fn what_is_wanted_is_back_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let config = SpaceConfig {
            host_bytes_max: 500,
            spill: Some((folder.path().to_owned(), 1 << 20)),
            disk: Path {
                kind: PathKind::File,
                latency: Duration::from_millis(1),
                bytes_per_second: 1e9,
            },
        };
        let memories = Arc::new(Memories::open(Vec::new(), config, Duration::ZERO).unwrap());
        let (first, second) = (adopt(&memories, 1), adopt(&memories, 2));
        let is_back = || {
            memories
                .lock()
                .holdings()
                .has_copy(first.handle, Location::Host)
        };
        assert!(!is_back(), "it was spilled");
        memories.lock().release_reference(second.handle).unwrap();
        let prefetcher = Prefetcher::start(memories.clone()).unwrap();
        let clock: Arc<Clock> = Arc::new(|| UnixMicros(1));
        let log = Arc::new(RunLog::new(&[], clock, false));
        prefetcher
            .new_handle()
            .want_at(&first, Location::Host, 0, &log);
        prefetcher.wait_until_idle();
        assert!(is_back(), "nobody had to ask for it");
        assert_eq!(memories.lock().move_totals().restored_bytes, 400);
        assert_eq!(prefetcher.transfer_counts().batches, 1);
    }
}
