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

use super::flow::lock;
use super::log::Log;
use super::memories::Kept;

/// The lanes of a team.
#[derive(Default)]
pub(super) struct Lanes {
    queue: Mutex<Queue>,
    /// Rung when there is something to do or something has ended.
    pub work: Condvar,
}

/// What is to be brought, and who writes it down.
pub(super) type Asked = (Kept, Option<Arc<Log>>);

#[derive(Default)]
pub(super) struct Queue {
    pub transfers: Transfers,
    /// What waits, and where it is to come.
    pub asked: BTreeMap<(Handle, Place), Asked>,
    pub threads: Vec<JoinHandle<()>>,
    /// How many of them are at work.
    pub moving: usize,
    pub stopping: bool,
}

/// A way that somebody takes who waits, until this is dropped.
pub(super) struct First<'a> {
    lanes: &'a Lanes,
    hop: Hop,
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        let mut queue = self.lanes.lock();
        queue.transfers.end_awaited(self.hop.from, self.hop.to);
        drop(queue);
        self.lanes.work.notify_all();
    }
}

impl Lanes {
    pub fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Content goes over a hop: if somebody waits for it, before what waits there.
    pub fn goes_first(
        &self,
        urgency: Urgency,
        hop: Hop,
        handles: impl Iterator<Item = Handle>,
    ) -> Option<First<'_>> {
        if urgency != Urgency::Awaited {
            return None;
        }
        let mut queue = self.lock();
        let Queue {
            transfers, asked, ..
        } = &mut *queue;
        let forgotten = handles.inspect(|&handle| drop(asked.remove(&(handle, hop.to))));
        transfers.begin_awaited(forgotten, hop.from, hop.to);
        Some(First { lanes: self, hop })
    }
}
