//! Brings what fragments will read to where they will run while others compute.
//!
//! A plan says what each device runs next. What that reads is brought to a device's own memory by a
//! thread of its own, and read back from disk if memory had no room for it, as soon as there is
//! room, so that the device finds it there. A guess that proves wrong costs nothing but the move:
//! whoever needs content brings it himself.
//!
//! Each way between two places carries one batch at a time, and all ways do beside each other: a
//! disk that is slow holds up no card. A thread is started when a way is free, something waits for
//! it, and those there are are at work.

use std::sync::Arc;
use std::thread::JoinHandle;

use souk_memory::holdings::Handle;
use souk_memory::place::Place;
use souk_memory::transfers::{TransferCounts, Urgency, WantedContent};

use super::held_tensor::HeldTensor;
use super::memories::Memories;
use super::run_log::RunLog;
use super::transfer_queue::{QueuedTransfer, TransferQueue, TransferState};

/// Threads that move at a time. They wait for disks and links rather than compute, and eight cards
/// have as many ways in.
const THREADS_MAX: usize = 16;

/// The threads, and what they have to do.
pub(super) struct Prefetcher {
    shared: Arc<PrefetchShared>,
}

/// What asks for transfers.
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
        let first = spawned(&shared)?;
        shared.transfer_queue.lock().threads.push(first);
        Ok(Self { shared })
    }

    pub fn asking(&self) -> PrefetchHandle {
        PrefetchHandle(self.shared.clone())
    }

    /// What it did so far.
    pub fn counts(&self) -> TransferCounts {
        self.shared.transfer_queue.lock().transfers.counts()
    }

    /// Whether something waits for a way that is free.
    #[cfg(test)]
    pub fn is_ready(&self) -> bool {
        self.shared.transfer_queue.lock().transfers.is_ready()
    }

    /// Waits until it has nothing to do.
    #[cfg(test)]
    pub fn settle(&self) {
        let mut queue = self.shared.transfer_queue.lock();
        while queue.moving > 0 || !queue.transfers.is_empty() {
            let waited = self.shared.transfer_queue.work.wait(queue);
            queue = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

impl PrefetchHandle {
    /// A tensor that a fragment on a device will read at a place: brought there if that is the
    /// device's own memory or it lies in another's, else back from disk if there is room.
    pub fn want_at(&self, kept: &HeldTensor, to: Place, device: usize, log: &Arc<RunLog>) {
        self.ask_at(kept, to, device, (Urgency::Planned, log));
    }

    /// One that a fragment there may come to read: another device may take that fragment before.
    pub fn guess_at(&self, kept: &HeldTensor, to: Place, device: usize, log: &Arc<RunLog>) {
        self.ask_at(kept, to, device, (Urgency::Guessed, log));
    }

    fn ask_at(&self, kept: &HeldTensor, to: Place, device: usize, how: (Urgency, &Arc<RunLog>)) {
        let memories = &self.0.memories;
        let (urgency, log) = how;
        if !memories.any_own() {
            return self.ask(kept, [Place::Disk, Place::Host], urgency, None);
        }
        let from = memories.origin(kept);
        let in_memory = matches!(from, Place::Host | Place::Disk);
        match memories.own(device).is_some() || !in_memory {
            true => self.ask(kept, [from, to], urgency, Some(log)),
            false => self.ask(kept, [Place::Disk, Place::Host], urgency, None),
        }
    }

    fn ask(
        &self,
        kept: &HeldTensor,
        [from, to]: [Place; 2],
        urgency: Urgency,
        log: Option<&Arc<RunLog>>,
    ) {
        let wanted = WantedContent {
            handle: kept.handle,
            bytes: kept.bytes(),
        };
        let mut queue = self.0.transfer_queue.lock();
        let asked = queue.transfers.want(wanted, from, to, urgency);
        // A path that cannot keep up is no help: whoever reads it brings it.
        if asked.is_ok() {
            let asked = (kept.clone(), log.cloned());
            queue.asked.insert((kept.handle, to), asked);
            hire(&self.0, &mut queue);
            self.0.transfer_queue.work.notify_all();
        }
    }

    /// Content that nobody will read any more.
    pub fn forget(&self, handle: Handle) {
        let mut queue = self.0.transfer_queue.lock();
        queue.transfers.forget(handle);
        queue.asked.retain(|(asked, _), _| *asked != handle);
    }
}

/// Starts another thread if a free way has work and nobody is left to do it.
fn hire(shared: &Arc<PrefetchShared>, queue: &mut TransferState) {
    let all_at_work = queue.moving == queue.threads.len();
    let may_start = queue.threads.len() < THREADS_MAX && !queue.stopping;
    if all_at_work && may_start && queue.transfers.is_ready() {
        // Without it those there are do it when they come to it.
        queue.threads.extend(spawned(shared));
    }
}

fn spawned(shared: &Arc<PrefetchShared>) -> std::io::Result<JoinHandle<()>> {
    let own = shared.clone();
    let named = std::thread::Builder::new().name("prefetcher".to_owned());
    named.spawn(move || work(&own))
}

fn work(shared: &Arc<PrefetchShared>) {
    let mut queue = shared.transfer_queue.lock();
    while !queue.stopping {
        let Some(batch) = queue.transfers.take() else {
            let waited = shared.transfer_queue.work.wait(queue);
            queue = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
            continue;
        };
        let asked: Vec<QueuedTransfer> = batch
            .items
            .iter()
            .filter_map(|wanted| queue.asked.remove(&(wanted.handle, batch.to)))
            .collect();
        queue.moving += 1;
        hire(shared, &mut queue);
        drop(queue);
        bring(&shared.memories, &asked, batch.to);
        drop(asked);
        queue = shared.transfer_queue.lock();
        queue.moving -= 1;
        queue.transfers.done(&batch);
        shared.transfer_queue.work.notify_all();
    }
}

/// Brings a batch: together what goes the same way, then each of it for as far as is left.
fn bring(memories: &Memories, asked: &[QueuedTransfer], to: Place) {
    if asked.len() > 1 {
        let wanted = asked.iter().map(|(kept, log)| (kept, log.as_deref()));
        memories.bring_together(wanted, to, Urgency::Planned);
    }
    for (kept, log) in asked {
        memories.bring_ahead(kept, to, log.as_deref());
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
            // They have no panics of their own but broken asserts, which were printed.
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
            .adopt_host("tensor", &tensor, Place::Host, None)
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
        let is_back = || memories.lock().holdings().holds(first.handle, Place::Host);
        assert!(!is_back(), "it was spilled");
        memories.lock().release(second.handle).unwrap();
        let prefetcher = Prefetcher::start(memories.clone()).unwrap();
        let clock: Arc<Clock> = Arc::new(|| UnixMicros(1));
        let log = Arc::new(RunLog::new(&[], clock, false));
        prefetcher.asking().want_at(&first, Place::Host, 0, &log);
        prefetcher.settle();
        assert!(is_back(), "nobody had to ask for it");
        assert_eq!(memories.lock().moved().restored_bytes, 400);
        assert_eq!(prefetcher.counts().batches, 1);
    }
}
