//! Estimates by how much this machine's clock differs from the market's, so that the client signs
//! expiry times that the market accepts.
//!
//! Each validator states its clock with its answers. The log's clock is the time that a majority of
//! them has reached, so the client takes the median of their statements, and one lying validator
//! has no effect. The client uses this estimate only for times that the market judges, and its own
//! clock for its own waits.

use std::collections::BTreeMap;

use serde::Serialize;
use souk_market::Millis;

use super::ValidatorIndex;
use crate::clock::Micros;

/// The fewest validators whose clocks must be known before the median counts.
pub const SAID_MIN: usize = 2;

/// How long the client trusts the validators' clocks before it asks all of them again.
pub const CLOCK_PERIOD: Micros = Micros::from_seconds(600);

/// The step of this machine's clock after which the client asks at once: it was set, or slept.
pub const CLOCK_STEP: Micros = Micros::from_seconds(1);

/// What both clocks of this machine showed at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClockReading {
    /// The monotonic clock.
    pub tick: Micros,
    /// The clock that people set, in microseconds since 1970.
    pub own: Micros,
}

impl ClockReading {
    /// Returns whether the clocks that validators stated at `asked` are too old, or this machine's
    /// clock was set since.
    #[must_use]
    pub fn needs_clocks(self, asked: ClockReading) -> bool {
        let passed = self.tick.since(asked.tick);
        let expected = asked.own.plus(passed);
        passed >= CLOCK_PERIOD || self.own.0.abs_diff(expected.0) >= CLOCK_STEP.0
    }
}

/// The clocks of validators, as the milliseconds by which each is ahead of this machine's.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Offsets {
    said: BTreeMap<ValidatorIndex, i64>,
    /// The same difference for the log's clock, learned when the market refused a batch.
    learned: i64,
    /// The difference that counts: the median of `said`, or `learned` if too few are known.
    offset: i64,
}

impl Offsets {
    /// Records that a validator's clock showed `time` when this one showed `own`.
    pub fn record_clock(&mut self, validator: ValidatorIndex, time: Millis, own: Millis) {
        self.said.insert(validator, millis_ahead(time, own));
        self.update_offset();
    }

    /// Records that the log was at `time` when this clock showed `own`, and forgets the validators'
    /// clocks.
    pub fn record_log_time(&mut self, time: Millis, own: Millis) {
        self.learned = millis_ahead(time, own);
        self.forget_clocks();
    }

    /// Returns whether enough validators stated their clocks.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.said.len() >= SAID_MIN
    }

    /// Forgets the validators' clocks, because the list of validators has changed.
    pub fn forget_clocks(&mut self) {
        self.said.clear();
        self.update_offset();
    }

    fn update_offset(&mut self) {
        let mut said: Vec<i64> = self.said.values().copied().collect();
        said.sort_unstable();
        self.offset = match said.len() {
            SAID_MIN.. => said[(said.len() - 1) / 2],
            _ => self.learned,
        };
    }

    /// Returns the market's time when this clock shows `own`.
    #[must_use]
    pub fn log_time(&self, own: Millis) -> Millis {
        Millis(own.0.saturating_add_signed(self.offset))
    }
}

fn millis_ahead(time: Millis, own: Millis) -> i64 {
    i64::try_from(i128::from(time.0) - i128::from(own.0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_validator_that_lies_moves_no_clock() {
        let (own, mut offsets) = (Millis(1_000_000), Offsets::default());
        assert_eq!(offsets.log_time(own), own);
        offsets.record_clock(ValidatorIndex(0), Millis(9_000_000), own);
        assert_eq!(offsets.log_time(own), own, "of one nobody knows");
        offsets.record_clock(ValidatorIndex(1), Millis(1_002_000), own);
        offsets.record_clock(ValidatorIndex(2), Millis(1_003_000), own);
        assert_eq!(offsets.log_time(own), Millis(1_003_000));
    }
}
