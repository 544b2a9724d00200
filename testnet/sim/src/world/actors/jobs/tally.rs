//! What a provider's device did, by what its core was told: bills are compared with that.

use std::collections::BTreeMap;

use souk_market::{LeaseId, ReceiptBody};
use souk_roles::clock::Micros;
use souk_roles::provider::Answer;

/// See the module.
#[derive(Debug, Default)]
pub struct WorkTally {
    busy: BTreeMap<LeaseId, Micros>,
    /// When the device is done with what a lease had it run: it runs one thing at a time.
    free_at: BTreeMap<LeaseId, u64>,
}

impl WorkTally {
    /// How long from `now` it is until a run is done that takes so long.
    pub fn run(&mut self, lease: LeaseId, now: u64, takes: u64) -> u64 {
        let free_at = self.free_at.entry(lease).or_default();
        *free_at = now.max(*free_at) + takes;
        *free_at - now
    }

    /// Its core is told what something came to that was done for a lease.
    pub fn tell(&mut self, lease: Option<LeaseId>, answer: &Answer) {
        if let (Some(lease), Answer::Ran(Ok(ran))) = (lease, answer) {
            let busy = self.busy.entry(lease).or_default();
            *busy = busy.plus(ran.busy);
        }
    }

    /// The process ended: it runs nothing.
    pub fn restart(&mut self) {
        self.free_at.clear();
    }

    /// What of a bill is not what was run.
    pub fn wrong_bill(&self, body: &ReceiptBody) -> Option<String> {
        let busy = self.busy.get(&body.lease).copied().unwrap_or_default();
        let billed = body.usage.0;
        let is_wrong = billed != busy.0.max(1);
        is_wrong.then(|| format!("{} bills {billed} us of {} us", body.lease, busy.0))
    }
}
