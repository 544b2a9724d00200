//! Counts naively the time that a buyer can have seen of its leases: the time with an open request.
//! The check of payments uses it as the limit of what the buyer pays.

use std::collections::BTreeMap;

use souk_market::{DeviceMicros, LeaseId};
use souk_roles::job::Leg;

/// The observations: see the module.
#[derive(Default)]
pub struct Witness {
    /// The leases of this life's legs.
    legs: BTreeMap<Leg, LeaseId>,
    leases: BTreeMap<LeaseId, SeenLease>,
    /// How far ahead of the log the clock of a later life was at its start, at most.
    ahead_ms: u64,
}

/// Observations of a lease, in simulated milliseconds.
struct SeenLease {
    began: u64,
    /// Number of missing parts of each open request.
    open: BTreeMap<u32, usize>,
    parts: usize,
    since: u64,
    counted: u64,
    /// Whether the buyer's process ended since: it cannot tell what it missed.
    is_interrupted: bool,
}

impl SeenLease {
    fn new(now: u64, parts: usize) -> Self {
        Self {
            began: now,
            open: BTreeMap::new(),
            parts,
            since: now,
            counted: 0,
            is_interrupted: false,
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
}

impl Witness {
    /// Forgets the legs of this life, because the buyer's process ended. A buyer that resumes
    /// counts each of their leases from its begin.
    pub fn on_restart(&mut self) {
        for lease in std::mem::take(&mut self.legs).into_values() {
            if let Some(seen) = self.leases.get_mut(&lease) {
                seen.is_interrupted = true;
            }
        }
    }

    /// Records that a later life begins whose clock is so far ahead of the log.
    pub fn on_resumed(&mut self, ahead_ms: u64) {
        self.ahead_ms = self.ahead_ms.max(ahead_ms);
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

    /// Returns the maximum usage that the buyer pays for a lease that opened at `opened_at`, and
    /// how long it held the lease, or none if it never contacted the provider.
    pub fn payable_usage(
        &self,
        lease: LeaseId,
        opened_at: u64,
        now: u64,
    ) -> Option<(DeviceMicros, DeviceMicros)> {
        let seen = self.leases.get(&lease)?;
        let seen_ms = match seen.is_interrupted {
            true => now - opened_at + self.ahead_ms,
            false => seen.seen_ms(now),
        };
        let micros = seen_ms * 1_000;
        // A sixteenth and 250 ms more, as docs/buying.md states.
        let payable = DeviceMicros(micros + micros / 16 + 250_000);
        Some((payable, DeviceMicros((now - seen.began) * 1_000)))
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
        // A buyer that resumes counts from the lease's begin, by the clock that it has then.
        witness.on_restart();
        witness.on_resumed(100);
        let micros = 8_600 * 1_000;
        let payable = DeviceMicros(micros + micros / 16 + 250_000);
        assert_eq!(
            witness.payable_usage(lease, 500, 9_000),
            Some((payable, held))
        );
    }
}
