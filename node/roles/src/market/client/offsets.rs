//! By how much this machine's clock differs from the market's.
//!
//! Each validator says its clock with its answers; the log's clock is what a majority of them
//! shows, so the median of what they said is believed, and one that lies moves nothing. Only what
//! the market itself judges is judged by it: patience is not.

use std::collections::BTreeMap;

use serde::Serialize;
use souk_market::Millis;

use super::ValidatorIndex;

/// Validators that must have said it before the median counts: of one nobody knows if it lies.
pub const SAID_MIN: usize = 2;

/// What validators said, by how many milliseconds they are ahead.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Offsets {
    said: BTreeMap<ValidatorIndex, i64>,
    /// What the market itself said when it refused something as too late.
    learned: i64,
}

impl Offsets {
    /// A validator's clock showed `time` when this one showed `own`.
    pub fn record_clock(&mut self, validator: ValidatorIndex, time: Millis, own: Millis) {
        self.said.insert(validator, millis_ahead(time, own));
    }

    /// The log was at `time` when this clock showed `own`.
    pub fn record_log_time(&mut self, time: Millis, own: Millis) {
        self.learned = millis_ahead(time, own);
        self.said.clear();
    }

    /// The validators are others: what those said is forgotten.
    pub fn forget_clocks(&mut self) {
        self.said.clear();
    }

    /// The market's clock where this one shows `own`.
    #[must_use]
    pub fn log_time(&self, own: Millis) -> Millis {
        let mut said: Vec<i64> = self.said.values().copied().collect();
        said.sort_unstable();
        let offset = match said.len() {
            SAID_MIN.. => said[(said.len() - 1) / 2],
            _ => self.learned,
        };
        Millis(own.0.saturating_add_signed(offset))
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
