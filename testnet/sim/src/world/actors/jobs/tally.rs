//! What a provider's device did, and what its store holds for it, by what its core was told: bills
//! and holds are compared with that.

use std::collections::BTreeMap;

use souk_market::{LeaseId, ReceiptBody};
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::provider::Answer;

/// See the module.
#[derive(Debug, Default)]
pub struct WorkTally {
    busy: BTreeMap<LeaseId, Micros>,
    /// When the device is done with what a lease had it run: it runs one thing at a time.
    free_at: BTreeMap<LeaseId, u64>,
    held: BTreeMap<ContentId, i64>,
}

impl WorkTally {
    /// How long from `now` it is until a run is done that takes so long.
    pub fn run(&mut self, lease: LeaseId, now: u64, takes: u64) -> u64 {
        let free_at = self.free_at.entry(lease).or_default();
        *free_at = now.max(*free_at) + takes;
        *free_at - now
    }

    /// Its core is told that a run was done for a lease, or that contents came.
    pub fn tell(&mut self, lease: Option<LeaseId>, answer: &Answer) {
        match (lease, answer) {
            (Some(lease), Answer::Ran(Ok(ran))) => {
                let busy = self.busy.entry(lease).or_default();
                *busy = busy.plus(ran.busy);
            }
            (_, Answer::Came(arrivals)) => self.hold(arrivals.iter().map(|it| it.id)),
            _ => {}
        }
    }

    /// Contents are held once more.
    pub fn hold(&mut self, contents: impl IntoIterator<Item = ContentId>) {
        for id in contents {
            self.add(id, 1);
        }
    }

    /// Contents are held once less.
    pub fn release(&mut self, contents: impl IntoIterator<Item = ContentId>) {
        for id in contents {
            self.add(id, -1);
        }
    }

    fn add(&mut self, id: ContentId, change: i64) {
        let count = self.held.entry(id).or_default();
        *count += change;
        if *count == 0 {
            self.held.remove(&id);
        }
    }

    /// The process ended: it holds nothing, and runs nothing.
    pub fn restart(&mut self) {
        self.held.clear();
        self.free_at.clear();
    }

    /// What of a bill is not what was run.
    pub fn wrong_bill(&self, body: &ReceiptBody) -> Option<String> {
        let busy = self.busy.get(&body.lease).copied().unwrap_or_default();
        let billed = body.usage.0;
        let is_wrong = billed != busy.0.max(1);
        is_wrong.then(|| format!("{} bills {billed} us of {} us", body.lease, busy.0))
    }

    /// A content that is held, or let go more often than it was held.
    pub fn unreleased(&self) -> Option<ContentId> {
        self.held.keys().next().copied()
    }
}
