//! Remembers how long operators took on a device, compared with the cost model, and corrects later
//! estimates by it.
//!
//! A key is a class of operators in one element type and size. For each key, the history stores the
//! ratio of measured to modelled time as count, mean and variance of its logarithm, so that twice
//! too slow and twice too fast weigh the same. Once there are many runs, recent ones weigh more, so
//! that the mean follows drift; after three outliers in a row the mean jumps (`outlier_filter`). If
//! a slower device gets no more work, the history tries it again later (`retrial`). A size without
//! runs is interpolated between two sizes of its class that enclose it; if there are no such two,
//! its neighbours correct it. If works can only be measured together, they share the deviation
//! (`joint_estimator`).

mod joint_estimator;
mod key;
mod outlier_filter;
mod retrial;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use joint_estimator::{JointMeasurement, Part};
use key::Span;
pub use key::{Key, node_class};
pub use outlier_filter::{Evidence, KNOWN, OutlierFilter};

/// Beyond this many runs an old one fades, so that the mean follows the device's present speed.
const MEMORY_RUNS: f64 = 64.0;
/// A history can hold at most this many keys; any real mix of models has fewer operators, types and
/// size classes.
const KEYS_MAX: usize = 4096;
/// At most this many of them can be whole models, because strangers can name any number of models
/// and must not push out the records of operators.
const MODELS_MAX: usize = 256;
/// A measured time this many times off the model comes from a hiccup or a clock change, not from
/// the device's speed.
const RATIO_MAX: f64 = 1e6;

/// The most nearby sizes to search for two that enclose a new one.
const NEAR_MAX: usize = 12;
/// The number of nearest sizes whose mean corrects a size that no two enclose.
const NEIGHBOURS: usize = 4;
/// Added to squares of distances, so that a record of the same size does not get infinite weight.
const DISTANCE_LEAST: f64 = 1e-3;

/// The relation of measured to modelled times for one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of measured runs.
    pub count: u64,
    /// Mean of the logarithm of measured over modelled time.
    pub mean: f64,
    /// Variance of that logarithm.
    pub variance: f64,
    /// Mean of the logarithm of measured seconds.
    pub seconds: f64,
    /// Distance of the last run from the mean, in standard deviations of the runs before it.
    pub drift: f64,
    /// Weight of the evidence in runs: a run of this key alone counts one, a joint run less.
    #[serde(default)]
    pub weight: f64,
    /// Mean watts, if any run reported its energy.
    #[serde(default)]
    pub watts: Option<f64>,
    /// The mean before the device became slower; set until the next retrial.
    #[serde(default)]
    pub before: Option<f64>,
    /// The latest measurements, if they lay far from the mean.
    #[serde(skip)]
    pub outliers: OutlierFilter,
}

/// A correction of the cost model, learned from runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    records: Vec<(Key, Record)>,
    /// How many measurements other devices reported since this one last did, and how many retrials
    /// were in vain.
    #[serde(default)]
    passed: u32,
    #[serde(default)]
    trials: u32,
}

impl Record {
    /// Adds the logarithms of one ratio and of its measured seconds.
    fn add(&mut self, value: f64, seconds: f64) {
        let deviation = self.variance.sqrt();
        let said = match self.weight >= KNOWN {
            true => self.outliers.classify_value(value, self.mean, deviation),
            false => Evidence::Noise(value),
        };
        let weight = 1.0 / (self.weight + 1.0).min(MEMORY_RUNS);
        let distance = value - self.mean;
        self.drift = if deviation > 0.0 {
            distance / deviation
        } else {
            0.0
        };
        self.variance = (1.0 - weight) * (self.variance + weight * distance * distance);
        self.count += 1;
        match said {
            Evidence::Noise(value) => {
                self.mean += weight * (value - self.mean);
                self.seconds += weight * (seconds - self.seconds);
                self.weight += 1.0;
            }
            Evidence::Change(value) => {
                self.seconds += value - self.mean;
                self.mean = value;
                self.weight = KNOWN;
            }
        }
    }

    /// Checks that runs can have produced this record.
    fn is_sound(&self) -> bool {
        let figures = [self.mean, self.variance, self.seconds, self.weight];
        let is_power = |watts: f64| watts.is_finite() && watts >= 0.0;
        figures.iter().all(|figure| figure.is_finite())
            && self.mean.abs() <= RATIO_MAX.ln()
            && self.variance >= 0.0
            && self.weight >= 0.0
            && self.watts.is_none_or(is_power)
            && self.before.is_none_or(f64::is_finite)
    }
}

impl History {
    /// Checks that runs can have produced this history, because a file can be damaged. You should
    /// check a history from a file before you use it, because lookups need sorted records.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let records = &self.records;
        records.len() <= KEYS_MAX
            && records.is_sorted_by(|one, other| one.0 < other.0)
            && records.iter().all(|(_, record)| record.is_sound())
    }

    /// Returns the expected time for a modelled time, by records of the key's class; `None` if the
    /// class has no records.
    #[must_use]
    pub fn expected_time(&self, key: &Key, modelled: f64) -> Option<f64> {
        if let Some(record) = self.find_record(key) {
            return Some(modelled * record.mean.exp());
        }
        let of_class = self.of_operator(key).filter(|it| it.0.class == key.class);
        let near = nearest_first(of_class, key);
        if near.is_empty() {
            return None;
        }
        let by_size = interpolate_time(&near, key);
        Some(by_size.unwrap_or_else(|| modelled * mean_nearest_ratio(&near, key).exp()))
    }

    /// Returns a factor for the model of a class without records, from the errors of the other
    /// classes of its operator; `None` if they have no records either. The factor is the mean of
    /// their errors and of a correct model, less their deviation. One class that is off says little
    /// about the next, which should be tried rather than avoided for ever; many classes that agree
    /// say much.
    #[must_use]
    pub fn estimate_from_others(&self, key: &Key) -> Option<f64> {
        let mut classes: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for (held, record) in self.of_operator(key) {
            let (sum, weight) = classes.entry(&held.class).or_default();
            *sum += record.weight * record.mean;
            *weight += record.weight;
        }
        if classes.is_empty() || key.is_model() {
            return None;
        }
        let means = classes
            .values()
            .map(|(sum, weight)| sum / weight.max(f64::MIN_POSITIVE));
        let all: Vec<f64> = means.chain([0.0]).collect();
        let count = all.len() as f64;
        let mean = all.iter().sum::<f64>() / count;
        let squares = all.iter().map(|it| (it - mean).powi(2)).sum::<f64>();
        Some((mean - (squares / count).sqrt()).exp())
    }

    /// Returns the records of the same operator and type.
    fn of_operator<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a (Key, Record)> {
        let operator = &key.operator;
        let first = self.records.partition_point(|it| it.0.operator < *operator);
        let own = self.records[first..].iter();
        let own = own.take_while(move |it| it.0.operator == *operator);
        own.filter(move |it| it.0.has_same_operator(key))
    }

    /// Learns that work with the time `modelled` took `measured`. Ignores a time of zero and an
    /// absurd ratio. A full history can still learn about its keys, but will ignore a new one.
    pub fn learn_measurement(&mut self, key: Key, modelled: Duration, measured: Duration) {
        let ratio = measured.as_secs_f64() / modelled.as_secs_f64();
        if !(1.0 / RATIO_MAX..RATIO_MAX).contains(&ratio) {
            return;
        }
        let seconds = measured.as_secs_f64().ln();
        match self.records.binary_search_by(|(held, _)| held.cmp(&key)) {
            Ok(index) => self.records[index].1.add(ratio.ln(), seconds),
            Err(_) if self.records.len() >= KEYS_MAX => {}
            Err(index) => {
                let mut record = Record::default();
                record.add(ratio.ln(), seconds);
                self.records.insert(index, (key, record));
            }
        }
        assert!(self.records.len() <= KEYS_MAX, "the history is bounded");
    }

    /// Returns the record of a key, if it has runs.
    #[must_use]
    pub fn find_record(&self, key: &Key) -> Option<&Record> {
        let index = self
            .records
            .binary_search_by(|(held, _)| held.cmp(key))
            .ok()?;
        Some(&self.records[index].1)
    }

    /// Returns a modelled time, corrected by the best known evidence: the key's own record; else
    /// the two sizes of its class that enclose it best; else the nearest records of its class, its
    /// operator or its element type, in this order.
    #[must_use]
    pub fn correct_time(&self, key: &Key, modelled: Duration) -> Duration {
        let like = |mean: f64| modelled.as_secs_f64() * mean.exp();
        let seconds = match self.find_record(key) {
            Some(record) => like(record.mean),
            None => {
                let near = self.nearest_records(key);
                interpolate_time(&near, key).unwrap_or_else(|| like(mean_nearest_ratio(&near, key)))
            }
        };
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Returns the records that are most alike, nearest in size first.
    fn nearest_records(&self, key: &Key) -> Vec<&(Key, Record)> {
        let alike = |kinship| {
            let records = self.records.iter();
            records.filter(move |(held, _)| held.similarity(key) == Some(kinship))
        };
        let closest = self
            .records
            .iter()
            .filter_map(|(held, _)| held.similarity(key))
            .max();
        nearest_first(closest.into_iter().flat_map(alike), key)
    }

    /// Returns all records by key. A provider stores and displays them.
    #[must_use]
    pub fn records(&self) -> BTreeMap<&Key, &Record> {
        self.records
            .iter()
            .map(|(key, record)| (key, record))
            .collect()
    }
}

/// Returns the [`NEAR_MAX`] records that are nearest in size.
fn nearest_first<'a>(
    records: impl Iterator<Item = &'a (Key, Record)>,
    key: &Key,
) -> Vec<&'a (Key, Record)> {
    let mut near: Vec<_> = records.collect();
    let apart = |entry: &(Key, Record)| entry.0.squared_distance(key);
    near.sort_by(|one, other| apart(one).total_cmp(&apart(other)));
    near.truncate(NEAR_MAX);
    near
}

/// Interpolates the time between two sizes of the class that enclose this one, if there are such
/// two. It works on logarithms, so that it is exact for time that grows with any power of the size.
/// It does not use the model, which may consider another resource the operator's limit at each of
/// the two sizes.
fn interpolate_time(near: &[&(Key, Record)], key: &Key) -> Option<f64> {
    let alike = near
        .iter()
        .filter(|(held, _)| held.class == key.class && held.has_same_operator(key));
    let alike: Vec<_> = alike.collect();
    let pairs = alike.iter().enumerate().flat_map(|(index, low)| {
        let others = alike[index + 1..].iter();
        others.filter_map(|high| {
            let span = Span::from_keys(&low.0, &high.0, key)?;
            let seconds = low.1.seconds + span.part * (high.1.seconds - low.1.seconds);
            Some((span.cost(), seconds))
        })
    });
    let best = pairs.min_by(|one, other| one.0.total_cmp(&other.0));
    best.map(|(_, seconds)| seconds.exp())
}

/// Returns the mean logarithm of the nearest ratios, weighted by the inverse squares of their
/// distances; 0 if there are none.
fn mean_nearest_ratio(near: &[&(Key, Record)], key: &Key) -> f64 {
    let weigh = |(held, record): &&&(Key, Record)| {
        let weight = 1.0 / (held.squared_distance(key) + DISTANCE_LEAST);
        (weight, weight * record.mean)
    };
    let weighed = near.iter().take(NEIGHBOURS);
    let weighed: Vec<(f64, f64)> = weighed.map(|entry| weigh(&entry)).collect();
    let weight: f64 = weighed.iter().map(|(weight, _)| weight).sum();
    let sum: f64 = weighed.iter().map(|(_, sum)| sum).sum();
    if weight > 0.0 { sum / weight } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use souk_memory::DType;
    use souk_onnx::work::Work;

    use super::*;

    /// The key of a product whose amounts are all this power of two.
    fn key(size: u32) -> Key {
        in_class("", size)
    }

    fn in_class(class: &str, size: u32) -> Key {
        let work = Work {
            operations: 1 << size,
            bytes_read: 1 << size,
            bytes_written: 1 << size,
            launches: 1,
            dtype: Some(DType::F32),
        };
        Key::for_work("MatMul", class, &work)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_wrong_model_is_corrected_within_ten_runs() {
        let mut history = History::default();
        for run in 0..10 {
            // Three times slower than modelled, give or take a tenth.
            let measured = SECOND * 3 + SECOND / 3 * (run % 2);
            history.learn_measurement(key(20), SECOND, measured);
        }
        let corrected = history.correct_time(&key(20), SECOND).as_secs_f64();
        assert!((corrected - 3.16).abs() < 0.05, "{corrected}");
    }

    #[test]
    fn a_device_that_changes_is_followed() {
        let mut history = History::default();
        (0..1000).for_each(|_| history.learn_measurement(key(20), SECOND, SECOND));
        (0..300).for_each(|_| history.learn_measurement(key(20), SECOND, SECOND * 2));
        let factor = factor(&history, &key(20));
        assert!((factor - 2.0).abs() < 0.05, "{factor}");
    }

    #[test]
    fn a_device_that_becomes_another_is_followed_in_three_runs_and_back() {
        let mut history = History::default();
        let mut after = |runs: usize, measured: Duration| {
            (0..runs).for_each(|_| history.learn_measurement(key(20), SECOND, measured));
            factor(&history, &key(20))
        };
        after(1000, SECOND);
        assert!(after(2, SECOND * 4) < 1.05, "it may have been held up");
        assert!((after(1, SECOND * 4) - 4.0).abs() < 1e-9);
        assert!((after(20, SECOND * 4) - 4.0).abs() < 1e-9);
        assert!(after(2, SECOND) > 3.0);
        assert!((after(1, SECOND) - 1.0).abs() < 1e-9);
    }

    /// How many times what the model says.
    fn factor(history: &History, key: &Key) -> f64 {
        history.correct_time(key, SECOND).as_secs_f64()
    }

    #[test]
    fn unseen_sizes_lie_between_their_neighbours() {
        let mut history = History::default();
        history.learn_measurement(key(10), SECOND, SECOND * 4);
        history.learn_measurement(key(20), SECOND, SECOND);
        let middle = factor(&history, &key(15));
        assert!((middle - 2.0).abs() < 1e-3, "{middle}");
        let nearer = factor(&history, &key(12));
        assert!((nearer - 4f64.powf(0.8)).abs() < 1e-3, "{nearer}");
        let far = factor(&history, &key(40));
        assert!(far > 1.0 && far < 4.0, "beyond what was seen: {far}");
    }

    #[test]
    fn what_grows_with_a_power_is_met_whatever_the_model_says_between() {
        let mut history = History::default();
        let millis = |count: u64| Duration::from_millis(count);
        history.learn_measurement(key(10), SECOND, millis(10));
        history.learn_measurement(key(12), SECOND * 9, millis(160));
        let found = history.correct_time(&key(11), SECOND * 5).as_secs_f64();
        assert!((found - 0.040).abs() < 1e-6, "{found}");
    }

    #[test]
    fn what_is_more_alike_comes_first_and_the_nearest_of_it_most() {
        let mut history = History::default();
        assert!(
            (factor(&history, &key(15)) - 1.0).abs() < 1e-9,
            "nothing is known"
        );
        history.learn_measurement(in_class("held", 10), SECOND, SECOND * 4);
        history.learn_measurement(in_class("", 20), SECOND, SECOND * 9);
        let of = |class, size| factor(&history, &in_class(class, size));
        assert!((of("held", 20) - 4.0).abs() < 1e-6);
        assert!((of("", 10) - 9.0).abs() < 1e-6);
        let stranger = of("third", 20);
        assert!(
            stranger > 8.9 && stranger <= 9.0,
            "of that size: {stranger}"
        );
        let other = Key {
            operator: "Conv".to_owned(),
            ..key(10)
        };
        let other = factor(&history, &other);
        assert!(
            other > 4.0 && other < 4.1,
            "as what is near in size: {other}"
        );
        let exact = Key {
            dtype: Some(DType::F64),
            ..key(10)
        };
        assert!(
            (factor(&history, &exact) - 1.0).abs() < 1e-9,
            "of another type"
        );
    }

    #[test]
    fn times_of_zero_and_beyond_reason_teach_nothing() {
        let mut history = History::default();
        history.learn_measurement(key(10), Duration::ZERO, SECOND);
        history.learn_measurement(key(10), SECOND, Duration::ZERO);
        history.learn_measurement(key(10), Duration::from_nanos(1), SECOND * 3600);
        assert_eq!(history, History::default());
    }

    proptest! {
        #[test]
        fn mean_and_variance_are_those_of_the_runs(
            noise in prop::collection::vec(1.0f64..1.4, 1..60),
            any in prop::collection::vec(0.01f64..100.0, 1..=KNOWN as usize),
        ) {
            for ratios in [noise, any] {
                let mut record = Record::default();
                ratios.iter().for_each(|ratio| record.add(ratio.ln(), 0.0));
                let count = ratios.len() as f64;
                let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / count;
                let squares = ratios.iter().map(|ratio| (ratio.ln() - mean).powi(2));
                let variance = squares.sum::<f64>() / count;
                prop_assert!((record.mean - mean).abs() < 1e-9);
                prop_assert!((record.variance - variance).abs() < 1e-9);
            }
        }
    }
}
