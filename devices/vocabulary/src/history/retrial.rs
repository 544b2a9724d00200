//! A device that became slower, and is given nothing since, tells nothing: whether it is as quick
//! as before has to be tried.
//!
//! It is believed to be as it was once others have told enough of themselves. If it is not, its
//! first measurement says so at once, and the next trial is twice as far away.

use super::{History, OutlierFilter, Record};

/// Measurements of other devices before the first trial.
const PASSED_MAX: u32 = 64;
/// How often that doubles.
const TRIALS_MAX: u32 = 6;

impl History {
    /// Another device of the same group has told what it took, and not this one; says whether this
    /// one is believed to be as quick as before now.
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

    /// It has told what it took itself; one that is as expected needs no trial.
    pub(super) fn told(&mut self, is_expected: bool) {
        self.passed = 0;
        if is_expected {
            self.trials = 0;
        }
    }
}

impl Record {
    fn believe_again(&mut self) -> Option<()> {
        let before = self.before.take()?;
        self.outliers = OutlierFilter::expecting(self.mean, before);
        self.seconds += before - self.mean;
        self.mean = before;
        Some(())
    }
}
