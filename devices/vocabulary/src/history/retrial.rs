//! Lets a planner try a device again that had become slower. Such a device gets no work, so it
//! reports no times from which the planner could see that it has recovered.
//!
//! Once other devices have reported enough measurements, the history assumes that the device is as
//! quick as before. If it is not, its first measurement will show this at once, and the next
//! retrial will come after twice as many measurements.

use super::{History, OutlierFilter, Record};

/// Other devices' measurements before the first retrial.
const PASSED_MAX: u32 = 64;
/// The most times that [`PASSED_MAX`] can double.
const TRIALS_MAX: u32 = 6;

impl History {
    /// Counts a measurement by another device of the same group. Returns whether the history now
    /// assumes that this device is as quick as before.
    pub fn pass_over(&mut self) -> bool {
        self.passed = self.passed.saturating_add(1);
        if self.passed < PASSED_MAX << self.trials.min(TRIALS_MAX) {
            return false;
        }
        self.passed = 0;
        let records = self.records.iter_mut();
        let believed = records.filter_map(|(_, record)| record.believe_again());
        let is_trial = believed.count() > 0;
        self.trials = (self.trials + u32::from(is_trial)).min(TRIALS_MAX);
        is_trial
    }

    /// Notes a measurement by this device; if it was as expected, resets the distance to the next
    /// retrial.
    pub(super) fn record_measurement(&mut self, is_expected: bool) {
        self.passed = 0;
        if is_expected {
            self.trials = 0;
        }
    }
}

impl Record {
    fn believe_again(&mut self) -> Option<()> {
        let before = self.before.take()?;
        self.outliers = OutlierFilter::with_outliers(self.mean, before);
        self.seconds += before - self.mean;
        self.mean = before;
        Some(())
    }
}
