//! Decides whether a measured quantity changed, or whether a run was only held up once. The history
//! passes each measured time through such a filter.
//!
//! A mean of many measurements needs as many again to follow a device that changed. So the filter
//! treats outliers apart. It counts one or two as if they lay only as far off as noise may; after
//! three in a row on one side, it concludes that the quantity changed and takes their median as the
//! new mean. Outliers on alternating sides widen the deviation, so that in the end they are
//! averaged like any noise.

/// Outliers in a row, on one side, that show a change.
const CHANGED: usize = 3;
/// An outlier is at least this many times more or less than the mean.
const FAR: f64 = 1.5;
/// An outlier also lies at least this many deviations off the mean.
const FAR_DEVIATIONS: f64 = 2.0;
/// The number of measurements after which a mean counts as known; with fewer, the mean follows each
/// measurement without a filter. After a change, the new mean counts as known too: its outliers
/// count as this many measurements.
pub const KNOWN: f64 = 4.0;

/// The last outliers of one quantity, all on one side of its mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OutlierFilter {
    values: [f64; CHANGED - 1],
    count: usize,
    /// The mean before the first outlier, and the distance from it beyond which a measurement is an
    /// outlier.
    mean: f64,
    far: f64,
}

/// The meaning of a measurement, with its logarithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Evidence {
    /// Noise: the caller should average this value.
    Noise(f64),
    /// A change: the caller should take this value as the new mean, whatever the mean was before.
    Change(f64),
}

impl OutlierFilter {
    /// Returns the state after outliers like `value` from `mean`: one more like them will show the
    /// change.
    pub(super) fn with_outliers(value: f64, mean: f64) -> Self {
        Self {
            values: [value; CHANGED - 1],
            count: CHANGED - 1,
            mean,
            far: FAR.ln(),
        }
    }

    /// Returns whether the last measurement was no outlier.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Classifies the logarithm of a measurement of a quantity with this mean and deviation.
    pub fn classify_value(&mut self, value: f64, mean: f64, deviation: f64) -> Evidence {
        if self.count > 0 && !self.is_like(value) {
            self.count = 0;
        }
        if self.count == 0 {
            self.mean = mean;
            self.far = FAR.ln().max(FAR_DEVIATIONS * deviation);
        }
        let distance = value - self.mean;
        if distance.abs() < self.far {
            return Evidence::Noise(value);
        }
        if let Some(place) = self.values.get_mut(self.count) {
            *place = value;
            self.count += 1;
            return Evidence::Noise(self.mean + self.far.copysign(distance));
        }
        let mut all = [self.values[0], self.values[1], value];
        all.sort_by(f64::total_cmp);
        *self = Self::default();
        Evidence::Change(all[CHANGED / 2])
    }

    /// Returns whether a value is an outlier on the same side as those before it.
    fn is_like(&self, value: f64) -> bool {
        let (distance, first) = (value - self.mean, self.values[0] - self.mean);
        distance.abs() >= self.far && distance.signum() == first.signum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What each of some ratios says where once is known, with a deviation of a tenth.
    fn said(ratios: &[f64]) -> Vec<Evidence> {
        let mut outliers = OutlierFilter::default();
        let each = ratios.iter();
        each.map(|ratio| outliers.classify_value(ratio.ln(), 0.0, 0.1))
            .collect()
    }

    fn changes(ratios: &[f64]) -> Vec<usize> {
        let said = said(ratios).into_iter().enumerate();
        let changes = said.filter(|(_, said)| matches!(said, Evidence::Change(_)));
        changes.map(|(index, _)| index).collect()
    }

    #[test]
    fn three_far_off_in_a_row_are_a_change_to_their_median() {
        assert_eq!(said(&[4.0, 9.0, 5.0])[2], Evidence::Change(5f64.ln()));
        assert_eq!(said(&[0.2, 0.01, 0.25])[2], Evidence::Change(0.2f64.ln()));
        assert_eq!(changes(&[1.0, 4.0, 4.0, 4.0, 4.0]), [3]);
    }

    #[test]
    fn what_is_held_up_now_and_then_is_no_change_and_counts_as_no_more_than_noise() {
        let held_up = [1.0, 50.0, 50.0, 1.1, 50.0, 0.9, 50.0, 50.0, 1.2];
        assert!(changes(&held_up).is_empty());
        let most = FAR.ln() + 1e-9;
        for said in said(&held_up) {
            assert!(
                matches!(said, Evidence::Noise(value) if value <= most),
                "{said:?}"
            );
        }
    }

    #[test]
    fn what_lies_far_off_on_both_sides_is_no_change() {
        assert!(changes(&[4.0, 4.0, 0.25, 0.25, 4.0, 4.0, 0.25]).is_empty());
        assert_eq!(changes(&[4.0, 4.0, 0.25, 0.25, 0.25]), [4]);
    }

    #[test]
    fn what_was_as_far_off_before_is_no_change() {
        let mut outliers = OutlierFilter::default();
        let uneven = 4f64.ln() / 2.0;
        let said = (0..9).map(|_| outliers.classify_value(4f64.ln(), uneven, uneven));
        assert!(said.eq([Evidence::Noise(4f64.ln()); 9]));
    }

    proptest! {
        #[test]
        fn noise_is_taken_as_it_is(values in prop::collection::vec(-0.4f64..0.4, 1..60)) {
            let mut outliers = OutlierFilter::default();
            for value in values {
                prop_assert_eq!(outliers.classify_value(value, 0.0, 0.0), Evidence::Noise(value));
            }
        }
    }
}
