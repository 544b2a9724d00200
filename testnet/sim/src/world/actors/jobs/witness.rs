//! Computes, in a simple way, the longest time for which a buyer can have seen each of its leases
//! at work: the time with an open request, or since the lease's begin in the log if a later process
//! of the buyer asked about it. The check of payments uses it as the limit of what an honest buyer
//! pays.

use std::collections::BTreeMap;

use souk_market::{DeviceMicros, LeaseId};
use souk_roles::job::Leg;

/// A buyer's observations of its leases.
#[derive(Default)]
pub struct Witness {
    /// The leases of this life's legs.
    legs: BTreeMap<Leg, LeaseId>,
    leases: BTreeMap<LeaseId, SeenLease>,
}

/// Observations of a lease, in simulated milliseconds.
struct SeenLease {
    began: u64,
    /// Number of missing parts of each open request.
    open: BTreeMap<u32, usize>,
    parts: usize,
    since: u64,
    counted: u64,
    /// Set if a later process of the buyer asked about the lease, because it cannot know what
    /// happened before: the most by which its clock was ahead of simulated time then.
    ahead_ms: Option<i64>,
}

impl SeenLease {
    fn new(now: u64, parts: usize) -> Self {
        Self {
            began: now,
            open: BTreeMap::new(),
            parts,
            since: now,
            counted: 0,
            ahead_ms: None,
        }
    }

    fn begin_request(&mut self, request: u32, parts: usize, now: u64) {
        if self.open.is_empty() {
            self.since = now;
        }
        self.open.insert(request, parts);
    }

    fn seen_ms(&self, now: u64) -> u64 {
        let open = if self.open.is_empty() {
            0
        } else {
            now - self.since
        };
        self.counted + open
    }

    /// Returns the time since the lease's begin in the log, by the clock of the life that asked
    /// about it; zero if none did.
    fn ms_since_begin(&self, begin: u64, now: u64) -> u64 {
        let passed = |ahead| now.saturating_add_signed(ahead).saturating_sub(begin);
        self.ahead_ms.map_or(0, passed)
    }
}

impl Witness {
    /// Forgets the legs of this life, because the buyer's process ended.
    pub fn on_restart(&mut self) {
        self.legs.clear();
    }

    /// Records that a later life asks about a lease, with a clock that is so far ahead of simulated
    /// time.
    pub fn on_resumed(&mut self, lease: LeaseId, ahead_ms: i64) {
        if let Some(seen) = self.leases.get_mut(&lease) {
            seen.ahead_ms = seen.ahead_ms.max(Some(ahead_ms));
        }
    }

    /// Records the first request of a lease.
    pub fn on_started(&mut self, leg: Leg, lease: LeaseId, parts: usize, request: u32, now: u64) {
        self.legs.insert(leg, lease);
        let known = self.leases.entry(lease);
        let seen = known.or_insert_with(|| SeenLease::new(now, parts));
        seen.begin_request(request, parts, now);
    }

    /// Records another request of a leg.
    pub fn on_asked(&mut self, leg: Leg, request: u32, now: u64) {
        if let Some(seen) = self
            .leases
            .get_mut(self.legs.get(&leg).unwrap_or(&LeaseId(0)))
        {
            seen.begin_request(request, seen.parts, now);
        }
    }

    /// Records that the buyer receives a part.
    pub fn on_made(&mut self, leg: Leg, request: u32, now: u64) {
        let Some(seen) = self
            .leases
            .get_mut(self.legs.get(&leg).unwrap_or(&LeaseId(0)))
        else {
            return;
        };
        let Some(left) = seen.open.get_mut(&request) else {
            return;
        };
        *left = left.saturating_sub(1);
        if *left == 0 {
            seen.counted = seen.seen_ms(now);
            seen.since = now;
            seen.open.remove(&request);
        }
    }

    /// Returns the maximum usage that the buyer pays for a lease that begins at `begin` in the log,
    /// and how long it held the lease, or none if it never contacted the provider.
    pub fn payable_usage(
        &self,
        lease: LeaseId,
        begin: u64,
        now: u64,
    ) -> Option<(DeviceMicros, DeviceMicros)> {
        let seen = self.leases.get(&lease)?;
        let since_begin = seen.ms_since_begin(begin, now);
        let micros = seen.seen_ms(now).max(since_begin) * 1_000;
        // A sixteenth and 250 ms more, as docs/buying.md states.
        let payable = DeviceMicros(micros + micros / 16 + 250_000);
        let held_ms = (now - seen.began).max(since_begin);
        Some((payable, DeviceMicros(held_ms * 1_000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_no_request_is_open_is_not_seen() {
        let (leg, lease) = (
            Leg {
                attempt: 0,
                place: 0,
            },
            LeaseId(7),
        );
        let mut witness = Witness::default();
        witness.on_started(leg, lease, 2, 0, 1_000);
        witness.on_asked(leg, 1, 1_100);
        for (request, now) in [(0, 1_200), (1, 1_300), (0, 1_400), (1, 1_600)] {
            witness.on_made(leg, request, now);
        }
        let micros = 600 * 1_000;
        let payable = DeviceMicros(micros + micros / 16 + 250_000);
        let held = DeviceMicros(8_000_000);
        assert_eq!(
            witness.payable_usage(lease, 500, 9_000),
            Some((payable, held))
        );
        assert_eq!(witness.payable_usage(LeaseId(8), 500, 9_000), None);
    }

    /// The log had the purchase 3.6 s after its time, because no leader could commit it before.
    #[test]
    fn a_buyer_that_resumes_counts_from_the_begin_in_the_log() {
        let (leg, lease) = (
            Leg {
                attempt: 0,
                place: 0,
            },
            LeaseId(352),
        );
        let (begin, contacted, now) = (25_886, 30_045, 31_442);
        let mut witness = Witness::default();
        witness.on_started(leg, lease, 1, 0, contacted);
        witness.on_restart();
        let of = |witness: &Witness| witness.payable_usage(lease, begin, now);
        let usage = |micros: u64| DeviceMicros(micros + micros / 16 + 250_000);
        let micros = (now - contacted) * 1_000;
        assert_eq!(of(&witness), Some((usage(micros), DeviceMicros(micros))));
        witness.on_resumed(lease, -20);
        let micros = (now - begin - 20) * 1_000;
        assert_eq!(of(&witness), Some((usage(micros), DeviceMicros(micros))));
        // A later life with a clock behind that one pays for what the one before signed.
        witness.on_resumed(lease, -2_000);
        assert_eq!(of(&witness), Some((usage(micros), DeviceMicros(micros))));
    }
}
