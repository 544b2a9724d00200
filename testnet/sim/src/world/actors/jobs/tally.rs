//! Counts a provider's device runs from its core's inputs, and the pins in its store (contents
//! protected from eviction) from its core's requests. The checks compare its bills and its holds
//! with them.

use std::collections::BTreeMap;

use souk_market::{LeaseId, ReceiptBody};
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::provider::Answer;

/// A provider's device time by lease, and its pins by content.
#[derive(Debug, Default)]
pub struct WorkTally {
    busy: BTreeMap<LeaseId, Micros>,
    /// The longest run of each lease.
    longest: BTreeMap<LeaseId, Micros>,
    /// When the device finishes the runs of each lease, one at a time.
    free_at: BTreeMap<LeaseId, u64>,
    /// Pins of each content, counted from the request on, whether the content arrives or not.
    pins: BTreeMap<ContentId, i64>,
}

impl WorkTally {
    /// Returns the time from `now` until a run of this length is done.
    pub fn run(&mut self, lease: LeaseId, now: u64, takes: u64) -> u64 {
        let free_at = self.free_at.entry(lease).or_default();
        *free_at = now.max(*free_at) + takes;
        *free_at - now
    }

    /// Records the result of an effect for a lease, which the core receives.
    pub fn record_answer(&mut self, lease: Option<LeaseId>, answer: &Answer) {
        if let (Some(lease), Answer::Ran(Ok(ran))) = (lease, answer) {
            let busy = self.busy.entry(lease).or_default();
            *busy = busy.plus(ran.busy);
            let longest = self.longest.entry(lease).or_default();
            *longest = (*longest).max(ran.busy);
        }
    }

    /// Counts another pin of each content.
    pub fn pin_contents(&mut self, contents: impl IntoIterator<Item = ContentId>) {
        self.change_pins(contents, 1);
    }

    /// Counts one pin less of each content.
    pub fn unpin_contents(&mut self, contents: impl IntoIterator<Item = ContentId>) {
        self.change_pins(contents, -1);
    }

    fn change_pins(&mut self, contents: impl IntoIterator<Item = ContentId>, change: i64) {
        for id in contents {
            let count = self.pins.entry(id).or_default();
            *count += change;
            if *count == 0 {
                self.pins.remove(&id);
            }
        }
    }

    /// Returns a content that is still pinned while the provider is idle, or that it released more
    /// often than it pinned.
    pub fn unlike_pin(&self, is_idle: bool) -> Option<(ContentId, i64)> {
        let mut pins = self.pins.iter();
        let found = pins.find(|(_, count)| is_idle || **count < 0);
        found.map(|(id, count)| (*id, *count))
    }

    /// Resets the counts after the process ended: it runs and holds nothing.
    pub fn on_restart(&mut self) {
        self.free_at.clear();
        self.pins.clear();
    }

    /// Returns the device time of all runs of a lease, and of the longest.
    pub fn device_time(&self, lease: LeaseId) -> (Micros, Micros) {
        let of = |times: &BTreeMap<LeaseId, Micros>| times.get(&lease).copied();
        let (busy, longest) = (of(&self.busy), of(&self.longest));
        (busy.unwrap_or_default(), longest.unwrap_or_default())
    }

    /// Returns the difference between a bill and the runs, if there is one.
    pub fn wrong_bill(&self, body: &ReceiptBody) -> Option<String> {
        let busy = self.busy.get(&body.lease).copied().unwrap_or_default();
        let billed = body.usage.0;
        let is_wrong = billed != busy.0.max(1);
        is_wrong.then(|| format!("{} bills {billed} us of {} us", body.lease, busy.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_or_let_go_too_often_is_noticed() {
        let id = ContentId::for_content(b"a value");
        let mut tally = WorkTally::default();
        tally.pin_contents([id, id]);
        tally.unpin_contents([id]);
        assert_eq!(tally.unlike_pin(false), None);
        assert_eq!(tally.unlike_pin(true), Some((id, 1)));
        tally.unpin_contents([id]);
        assert_eq!(tally.unlike_pin(true), None);
        tally.unpin_contents([id]);
        assert_eq!(tally.unlike_pin(false), Some((id, -1)));
    }
}
