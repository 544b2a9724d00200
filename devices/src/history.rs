//! What runs really took against what the cost model said, remembered and used for the next.
//!
//! A key is a class of operators in one element type, size class and class of arithmetic a byte.
//! For each, the ratio of measured to modelled time is kept as count, mean and variance of its
//! logarithm, so that twice too slow and twice too fast weigh the same; recent runs weigh more once
//! there are many, so that drift is followed. A size never seen is corrected by its neighbours, in
//! proportion to the distance.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_memory::DType;

use crate::work::Work;

/// Beyond this many runs an old one fades: the mean follows what the device does now.
const MEMORY_RUNS: f64 = 64.0;
/// Keys held at most; operators, types and size classes of any real mix of models are fewer.
const KEYS_MAX: usize = 4096;
/// A measured time this many times off the model is a hiccup or a clock set, not a speed.
const RATIO_MAX: f64 = 1e6;

/// What is alike enough to share a correction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Operator, such as `MatMul`.
    pub operator: String,
    /// Element type, if the work has one.
    pub dtype: Option<DType>,
    /// Size class: the binary logarithm of operations plus bytes, rounded down.
    pub size: u8,
    /// Class of arithmetic for each byte: the binary logarithm of operations over bytes, rounded
    /// down; 0 where there are fewer operations than bytes. Two products of as many operations, one
    /// of squares and one with a long thin side, differ in nothing else.
    #[serde(default)]
    pub intensity: u8,
}

/// How measured times of one key relate to the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Runs measured.
    pub count: u64,
    /// Mean of the logarithm of measured over modelled time.
    pub mean: f64,
    /// Variance of that logarithm.
    pub variance: f64,
    /// How far the last run lay from the mean, in standard deviations of the runs before it.
    pub drift: f64,
}

/// A correction of the cost model, learned from runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    records: Vec<(Key, Record)>,
}

impl Key {
    /// The key of some work of an operator.
    #[must_use]
    pub fn of(operator: &str, work: &Work) -> Self {
        let bytes = work.bytes_read.saturating_add(work.bytes_written);
        let amount = work.operations.saturating_add(bytes).max(1);
        Self {
            operator: operator.to_owned(),
            dtype: work.dtype,
            size: amount.ilog2() as u8,
            intensity: (work.operations / bytes.max(1)).max(1).ilog2() as u8,
        }
    }

    /// Whether two keys are of the same operator and type.
    fn is_kin(&self, other: &Self) -> bool {
        self.operator == other.operator && self.dtype == other.dtype
    }
}

impl Record {
    /// Takes in one ratio's logarithm.
    fn add(&mut self, value: f64) {
        let weight = 1.0 / (self.count as f64 + 1.0).min(MEMORY_RUNS);
        let distance = value - self.mean;
        let deviation = self.variance.sqrt();
        self.drift = if deviation > 0.0 {
            distance / deviation
        } else {
            0.0
        };
        self.mean += weight * distance;
        self.variance = (1.0 - weight) * (self.variance + weight * distance * distance);
        self.count += 1;
    }
}

impl History {
    /// Remembers that work the model put at `modelled` took `measured`. Nothing is learned from a
    /// time of zero, or one beyond all reason.
    pub fn learn(&mut self, key: Key, modelled: Duration, measured: Duration) {
        let ratio = measured.as_secs_f64() / modelled.as_secs_f64();
        if !(1.0 / RATIO_MAX..RATIO_MAX).contains(&ratio) {
            return;
        }
        match self.records.binary_search_by(|(held, _)| held.cmp(&key)) {
            Ok(index) => self.records[index].1.add(ratio.ln()),
            Err(_) if self.records.len() >= KEYS_MAX => {}
            Err(index) => {
                let mut record = Record::default();
                record.add(ratio.ln());
                self.records.insert(index, (key, record));
            }
        }
        assert!(self.records.len() <= KEYS_MAX, "the history is bounded");
    }

    /// The record of a key, if there were runs.
    #[must_use]
    pub fn record(&self, key: &Key) -> Option<&Record> {
        let index = self
            .records
            .binary_search_by(|(held, _)| held.cmp(key))
            .ok()?;
        Some(&self.records[index].1)
    }

    /// The factor by which to correct a modelled time: 1 where nothing is known.
    #[must_use]
    pub fn factor(&self, key: &Key) -> f64 {
        if let Some(record) = self.record(key) {
            return record.mean.exp();
        }
        let kin = || self.records.iter().filter(|(held, _)| held.is_kin(key));
        let is_alike = |held: &Key| held.intensity == key.intensity;
        let any_alike = kin().any(|(held, _)| is_alike(held));
        let near = || kin().filter(|(held, _)| !any_alike || is_alike(held));
        let below = near().rev().find(|(held, _)| held.size <= key.size);
        let above = near().find(|(held, _)| held.size >= key.size);
        let mean = match (below, above) {
            (Some((low, first)), Some((high, second))) if low.size < high.size => {
                let part = f64::from(key.size - low.size) / f64::from(high.size - low.size);
                first.mean + part * (second.mean - first.mean)
            }
            (Some((_, only)), _) | (None, Some((_, only))) => only.mean,
            (None, None) => 0.0,
        };
        mean.exp()
    }

    /// A modelled time, corrected.
    #[must_use]
    pub fn corrected(&self, key: &Key, modelled: Duration) -> Duration {
        let seconds = modelled.as_secs_f64() * self.factor(key);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// All records by key: what a provider keeps and shows.
    #[must_use]
    pub fn records(&self) -> BTreeMap<&Key, &Record> {
        self.records
            .iter()
            .map(|(key, record)| (key, record))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(size: u8) -> Key {
        Key {
            operator: "MatMul".to_owned(),
            dtype: Some(DType::F32),
            size,
            intensity: 3,
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_wrong_model_is_corrected_within_ten_runs() {
        let mut history = History::default();
        for run in 0..10 {
            // Three times slower than modelled, give or take a tenth.
            let measured = SECOND * 3 + SECOND / 3 * (run % 2);
            history.learn(key(20), SECOND, measured);
        }
        let corrected = history.corrected(&key(20), SECOND).as_secs_f64();
        assert!((corrected - 3.16).abs() < 0.05, "{corrected}");
    }

    #[test]
    fn a_device_that_changes_is_followed() {
        let mut history = History::default();
        (0..1000).for_each(|_| history.learn(key(20), SECOND, SECOND));
        (0..300).for_each(|_| history.learn(key(20), SECOND, SECOND * 2));
        let factor = history.factor(&key(20));
        assert!((factor - 2.0).abs() < 0.05, "{factor}");
    }

    #[test]
    fn unseen_sizes_lie_between_their_neighbours() {
        let mut history = History::default();
        history.learn(key(10), SECOND, SECOND * 4);
        history.learn(key(20), SECOND, SECOND);
        assert!((history.factor(&key(15)) - 2.0).abs() < 1e-9);
        assert!((history.factor(&key(5)) - 4.0).abs() < 1e-9);
        assert!((history.factor(&key(30)) - 1.0).abs() < 1e-9);
        let other = Key {
            operator: "Conv".to_owned(),
            ..key(15)
        };
        assert!((history.factor(&other) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_alike_in_intensity_comes_before_what_is_only_of_that_size() {
        let mut history = History::default();
        let thin = |size| Key {
            intensity: 1,
            ..key(size)
        };
        history.learn(key(10), SECOND, SECOND * 4);
        history.learn(thin(20), SECOND, SECOND * 9);
        assert!((history.factor(&key(20)) - 4.0).abs() < 1e-9);
        assert!((history.factor(&thin(10)) - 9.0).abs() < 1e-9);
        let third = Key {
            intensity: 2,
            ..key(20)
        };
        assert!((history.factor(&third) - 9.0).abs() < 1e-9, "of that size");
    }

    #[test]
    fn times_of_zero_and_beyond_reason_teach_nothing() {
        let mut history = History::default();
        history.learn(key(10), Duration::ZERO, SECOND);
        history.learn(key(10), SECOND, Duration::ZERO);
        history.learn(key(10), Duration::from_nanos(1), SECOND * 3600);
        assert_eq!(history, History::default());
    }

    proptest! {
        #[test]
        fn mean_and_variance_are_those_of_the_runs(
            ratios in prop::collection::vec(0.01f64..100.0, 1..60),
        ) {
            let mut record = Record::default();
            ratios.iter().for_each(|ratio| record.add(ratio.ln()));
            let count = ratios.len() as f64;
            let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / count;
            let squares = ratios.iter().map(|ratio| (ratio.ln() - mean).powi(2));
            let variance = squares.sum::<f64>() / count;
            prop_assert!((record.mean - mean).abs() < 1e-9);
            prop_assert!((record.variance - variance).abs() < 1e-9);
        }
    }
}
