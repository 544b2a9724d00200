//! Determines the time with which a leader stamps entries, so that the log's time is never later
//! than the clocks of a majority show.
//!
//! The leader stamps entries, and time in the log never goes back. A single clock far ahead could
//! make everything expire for everyone. So each replica reports its clock to the leader now and
//! then, and the leader stamps with the latest time that a majority of the voters has reached. If
//! the local clock jumps between two ticks, the readings lose their meaning until the other
//! replicas report again; until then time in the log will stand still.

use std::collections::BTreeMap;

use super::Replica;
use crate::ids::ReplicaId;
use crate::machine::StateMachine;
use crate::wire::{Envelope, PeerMessage};
use souk_proof::LogTime;

/// If the local clock moves by more than this between two ticks, it jumped or its replica stood
/// still.
const JUMP_MS: u64 = 2_000;

/// The most voters whose clocks can be compared without an allocation, because the leader compares
/// them often.
const FEW_VOTERS: usize = 16;

/// Another replica's clock, as its difference to the local one.
#[derive(Clone, Copy, Debug)]
struct Reading {
    ahead_ms: i64,
    tick: u64,
}

/// The clocks that a replica knows, as the module describes.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// The local clock, as of the last call.
    local: LogTime,
    /// The local clock at the last tick.
    at_tick: Option<LogTime>,
    readings: BTreeMap<ReplicaId, Reading>,
    /// The leader to which this replica last reported its clock, and the tick of the report.
    last_report: Option<(ReplicaId, u64)>,
}

impl Clocks {
    /// Returns the local clock.
    pub(super) fn local_time(&self) -> LogTime {
        self.local
    }

    /// Sets the local clock for a call, at most [`JUMP_MS`] after the last tick.
    pub(super) fn on_call(&mut self, now: LogTime) {
        let latest = self.at_tick.map_or(now, |at| LogTime(at.0 + JUMP_MS));
        self.local = now.min(latest);
    }

    /// Sets the local clock at a tick, and forgets the readings if it jumped.
    pub(super) fn on_tick(&mut self, now: LogTime) {
        let moved = self.at_tick.map_or(0, |at| at.0.abs_diff(now.0));
        if moved > JUMP_MS {
            self.readings.clear();
        }
        self.at_tick = Some(now);
        self.local = now;
        assert!(moved <= JUMP_MS || self.readings.is_empty());
    }

    /// Records what another replica's clock shows.
    pub(super) fn on_reading(&mut self, from: ReplicaId, shown: LogTime, tick: u64) {
        let ahead_ms = shown
            .0
            .cast_signed()
            .wrapping_sub(self.local.0.cast_signed());
        self.readings.insert(from, Reading { ahead_ms, tick });
    }

    /// Returns the latest time that a majority of `voters` has reached, if enough of them reported
    /// since the tick `since`.
    fn majority_time(&self, me: ReplicaId, voters: &[u64], since: u64) -> Option<LogTime> {
        let ahead = |voter: &u64| {
            if *voter == me.get() {
                return Some(0);
            }
            let reading = self.readings.get(&ReplicaId::new(*voter)?)?;
            (reading.tick >= since).then_some(reading.ahead_ms)
        };
        let (mut few, mut many) = ([0; FEW_VOTERS], Vec::new());
        let room = match voters.len() {
            ..=FEW_VOTERS => &mut few[..],
            all => {
                many.resize(all, 0);
                &mut many[..]
            }
        };
        let mut heard = 0;
        for ahead in voters.iter().filter_map(ahead) {
            room[heard] = ahead;
            heard += 1;
        }
        let ahead = &mut room[..heard];
        ahead.sort_unstable();
        let place = heard.checked_sub(voters.len() / 2 + 1)?;
        let agreed = ahead.get(place)?;
        Some(LogTime(self.local.0.saturating_add_signed(*agreed)))
    }
}

impl<M: StateMachine> Replica<M> {
    /// Returns the time with which a leader stamps entries.
    pub(super) fn entry_time(&self) -> LogTime {
        let since = self
            .ticks
            .saturating_sub(4 * self.config.election_ticks as u64);
        let voters = self.raw.store().members().get_voters();
        let agreed = self.clocks.majority_time(self.config.id, voters, since);
        agreed.map_or(self.time, |agreed| agreed.max(self.time))
    }

    /// Reports the local clock to the leader, if a report is due.
    pub(super) fn tell_clock(&mut self) {
        let Some(leader) = self.leader().filter(|leader| *leader != self.config.id) else {
            return;
        };
        let pause = self.config.election_ticks as u64;
        let told = |(to, tick): (ReplicaId, u64)| to == leader && tick + pause > self.ticks;
        if self.clocks.last_report.is_some_and(told) {
            return;
        }
        self.clocks.last_report = Some((leader, self.ticks));
        let bytes = PeerMessage::Clock(self.clocks.local).encode();
        self.outbox.push(Envelope { to: leader, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn id(number: u64) -> ReplicaId {
        ReplicaId::new(number).unwrap()
    }

    /// Clock 1 shows `NOW`, the others what is given; the time agreed on, relative to `NOW`.
    fn agreed(voters: &[u64], others: &[(u64, i64)]) -> Option<i64> {
        let mut clocks = Clocks::default();
        clocks.on_tick(LogTime(NOW));
        for (other, ahead) in others {
            clocks.on_reading(id(*other), LogTime(NOW.saturating_add_signed(*ahead)), 7);
        }
        let agreed = clocks.majority_time(id(1), voters, 7)?;
        Some(agreed.0.cast_signed() - NOW.cast_signed())
    }

    #[test]
    fn one_clock_far_ahead_or_behind_moves_nothing() {
        assert_eq!(agreed(&[1, 2, 3], &[(2, -5), (3, 86_400_000)]), Some(0));
        assert_eq!(agreed(&[1, 2, 3], &[(2, -5), (3, -86_400_000)]), Some(-5));
        let own_far_ahead = [(2, -86_400_000), (3, -86_400_010)];
        assert_eq!(agreed(&[1, 2, 3], &own_far_ahead), Some(-86_400_000));
    }

    #[test]
    fn without_a_majority_s_clocks_there_is_no_time() {
        assert_eq!(agreed(&[1, 2, 3], &[]), None);
        assert_eq!(agreed(&[1, 2, 3, 4, 5], &[(2, 3)]), None);
        assert_eq!(agreed(&[1, 2, 3, 4, 5], &[(2, 3), (9, 4)]), None);
        assert_eq!(agreed(&[1], &[]), Some(0));
    }

    #[test]
    fn a_clock_that_jumps_is_not_believed_until_others_were_heard_again() {
        let (voters, mut clocks) = ([1, 2, 3], Clocks::default());
        clocks.on_tick(LogTime(NOW));
        clocks.on_reading(id(2), LogTime(NOW + 3), 1);
        let year = LogTime(NOW + 31_536_000_000);
        clocks.on_call(year);
        let between = clocks.majority_time(id(1), &voters, 1).unwrap();
        assert!(between.0 <= NOW + 2 * JUMP_MS, "{between}");
        clocks.on_tick(year);
        assert_eq!(clocks.majority_time(id(1), &voters, 1), None);
        clocks.on_reading(id(2), LogTime(NOW + 60), 2);
        assert_eq!(
            clocks.majority_time(id(1), &voters, 1),
            Some(LogTime(NOW + 60))
        );
    }
}
