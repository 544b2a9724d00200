//! Brings what pieces will read to where they will run while others compute.
//!
//! A plan says what each device runs next. What that reads is brought to a device's own memory by a
//! thread of its own, and read back from disk if memory had no room for it, as soon as there is
//! room, so that the device finds it there. A guess that proves wrong costs nothing but the move:
//! whoever needs content brings it himself.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use souk_memory::holdings::Handle;
use souk_memory::paths::{Hop, PathKind};
use souk_memory::place::Place;
use souk_memory::transfers::{Batch, TransferCounts, Transfers, Urgency, Wanted};

use super::flow::lock;
use super::log::Log;
use super::memories::{Kept, Memories};
use crate::executor::Moment;

/// The thread, and what it has to do.
pub(super) struct Mover {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What asks for transfers.
#[derive(Clone)]
pub(super) struct Asking(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    memories: Arc<Memories>,
}

#[derive(Default)]
struct Queue {
    transfers: Transfers,
    /// What waits for a device's own memory, and whose it is.
    asked: BTreeMap<(Handle, Place), (Kept, Arc<Log>)>,
    moving: bool,
    stopping: bool,
}

impl Mover {
    /// Starts the thread.
    pub fn start(memories: Arc<Memories>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            work: Condvar::new(),
            memories,
        });
        let own = shared.clone();
        let named = std::thread::Builder::new().name("mover".to_owned());
        let thread = named.spawn(move || own.work())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    pub fn asking(&self) -> Asking {
        Asking(self.shared.clone())
    }

    /// What it did so far.
    pub fn counts(&self) -> TransferCounts {
        lock(&self.shared.queue).transfers.counts()
    }

    /// Waits until it has nothing to do.
    #[cfg(test)]
    pub fn settle(&self) {
        let mut queue = lock(&self.shared.queue);
        while queue.moving || !queue.transfers.is_empty() {
            let waited = self.shared.work.wait(queue);
            queue = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

impl Asking {
    /// A tensor that a piece will read in host memory: brought back if it lies on disk and there is
    /// room.
    pub fn want(&self, kept: &Kept) {
        self.ask(kept, [Place::Disk, Place::Host], None);
    }

    /// A tensor that a piece will read in a device's own memory, or that leaves one.
    pub fn want_on(&self, kept: &Kept, from: Place, to: Place, log: &Arc<Log>) {
        self.ask(kept, [from, to], Some(log));
    }

    fn ask(&self, kept: &Kept, [from, to]: [Place; 2], log: Option<&Arc<Log>>) {
        let wanted = Wanted {
            handle: kept.handle,
            bytes: kept.bytes(),
        };
        let mut queue = lock(&self.0.queue);
        let asked = queue.transfers.want(wanted, from, to, Urgency::Planned);
        // A path that cannot keep up is no help: whoever reads it brings it.
        if asked.is_ok() {
            if let Some(log) = log {
                let asked = (kept.clone(), log.clone());
                queue.asked.insert((kept.handle, to), asked);
            }
            self.0.work.notify_all();
        }
    }

    /// Content that nobody will read any more.
    pub fn forget(&self, handle: Handle) {
        let mut queue = lock(&self.0.queue);
        queue.transfers.forget(handle);
        queue.asked.retain(|(asked, _), _| *asked != handle);
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = lock(&self.queue);
        while !queue.stopping {
            let Some(batch) = queue.transfers.take() else {
                let waited = self.work.wait(queue);
                queue = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            };
            let asked: Vec<(Kept, Arc<Log>)> = batch
                .items
                .iter()
                .filter_map(|wanted| queue.asked.remove(&(wanted.handle, batch.to)))
                .collect();
            queue.moving = true;
            drop(queue);
            match batch.from {
                Place::Disk => self.bring_back(&batch),
                _ => asked.iter().for_each(|(kept, log)| {
                    self.memories.bring_ahead(kept, batch.to, Some(log));
                }),
            }
            drop(asked);
            queue = lock(&self.queue);
            queue.moving = false;
            queue.transfers.done(&batch);
            self.work.notify_all();
        }
    }

    /// Reads a batch without holding up who uses the space.
    fn bring_back(&self, batch: &Batch) {
        for wanted in &batch.items {
            let Some(restore) = self.memories.lock().restore(wanted.handle) else {
                continue;
            };
            let began = Moment::now();
            // What cannot be read, or has no room any more, is told to whoever needs it.
            let Ok(bytes) = restore.read() else {
                continue;
            };
            let took = Moment::now().since(began);
            let mut space = self.memories.lock();
            let hop = Hop {
                from: batch.from,
                to: batch.to,
                kind: PathKind::File,
            };
            space.paths_mut().observe(hop, wanted.bytes, took);
            let _ = space.restored(wanted.handle, bytes);
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        lock(&self.shared.queue).stopping = true;
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has no panics of its own but broken asserts, which were printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use souk_memory::paths::Path;
    use souk_memory::space::SpaceConfig;
    use souk_memory::{DType, Shape};

    use super::*;

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
        let adopt = |byte: u8| Kept {
            name: "tensor".into(),
            handle: {
                let content = Bytes::from(vec![byte; 400]);
                let mut space = memories.lock();
                space.adopt_unnamed(content, Place::Host).unwrap()
            },
            dtype: DType::U8,
            shape: Shape::new(vec![400]).unwrap(),
        };
        let (first, second) = (adopt(1), adopt(2));
        let is_back = || memories.lock().holdings().holds(first.handle, Place::Host);
        assert!(!is_back(), "it was spilled");
        memories.lock().release(second.handle).unwrap();
        let mover = Mover::start(memories.clone()).unwrap();
        mover.asking().want(&first);
        mover.settle();
        assert!(is_back(), "nobody had to ask for it");
        assert_eq!(memories.lock().moved().restored_bytes, 400);
        assert_eq!(mover.counts().batches, 1);
    }
}
