//! Brings what pieces will read back from disk while others compute.
//!
//! A plan says what each device runs next. What that reads and memory had no room for is read back
//! by a thread of its own as soon as there is room, so that the device finds it there. A guess that
//! proves wrong costs nothing but the reading: whoever needs content brings it himself.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use souk_memory::holdings::Handle;
use souk_memory::paths::{Hop, PathKind};
use souk_memory::place::Place;
use souk_memory::space::Space;
use souk_memory::transfers::{Batch, TransferCounts, Transfers, Urgency, Wanted};

use super::flow::lock;
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
    space: Arc<Mutex<Space>>,
}

#[derive(Default)]
struct Queue {
    transfers: Transfers,
    stopping: bool,
}

impl Mover {
    /// Starts the thread.
    pub fn start(space: Arc<Mutex<Space>>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            work: Condvar::new(),
            space,
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
}

impl Asking {
    /// Content that a piece will read: brought back if it lies on disk and there is room.
    pub fn want(&self, handle: Handle, bytes: u64, urgency: Urgency) {
        let wanted = Wanted { handle, bytes };
        let mut queue = lock(&self.0.queue);
        let asked = queue
            .transfers
            .want(wanted, Place::Disk, Place::Host, urgency);
        // A path that cannot keep up is no help: whoever reads it brings it.
        if asked.is_ok() {
            self.0.work.notify_one();
        }
    }

    /// Content that nobody will read any more.
    pub fn forget(&self, handle: Handle) {
        lock(&self.0.queue).transfers.forget(handle);
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
            drop(queue);
            self.bring(&batch);
            queue = lock(&self.queue);
            queue.transfers.done(&batch);
        }
    }

    /// Reads a batch without holding up who uses the space.
    fn bring(&self, batch: &Batch) {
        for wanted in &batch.items {
            let Some(restore) = lock(&self.space).restore(wanted.handle) else {
                continue;
            };
            let began = Moment::now();
            // What cannot be read, or has no room any more, is told to whoever needs it.
            let Ok(bytes) = restore.read() else {
                continue;
            };
            let took = Moment::now().since(began);
            let mut space = lock(&self.space);
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
        self.shared.work.notify_one();
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

    use super::*;

    /// Turns of waiting: far more than reading a few bytes takes on any disk.
    const TURNS_MAX: usize = 10_000_000;

    #[test]
    fn what_is_wanted_is_back_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut space = Space::open(SpaceConfig {
            host_bytes_max: 500,
            spill: Some((folder.path().to_owned(), 1 << 20)),
            disk: Path {
                kind: PathKind::File,
                latency: Duration::from_millis(1),
                bytes_per_second: 1e9,
            },
        })
        .unwrap();
        let mut adopt = |byte: u8, bytes: usize| {
            let content = Bytes::from(vec![byte; bytes]);
            space.adopt_unnamed(content, Place::Host).unwrap()
        };
        let (first, second) = (adopt(1, 400), adopt(2, 400));
        assert!(
            !space.holdings().holds(first, Place::Host),
            "it was spilled"
        );
        space.release(second).unwrap();
        let space = Arc::new(Mutex::new(space));
        let mover = Mover::start(space.clone()).unwrap();
        mover.asking().want(first, 400, Urgency::Planned);
        let back = || lock(&space).holdings().holds(first, Place::Host);
        let waited = (0..TURNS_MAX).find(|_| {
            std::thread::yield_now();
            back()
        });
        assert!(waited.is_some(), "nobody had to ask for it");
        assert_eq!(lock(&space).moved().restored_bytes, 400);
        assert_eq!(mover.counts().batches, 1);
    }
}
