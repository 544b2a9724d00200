//! Corrects estimates of time by the mean ratio of measured times to them, for each kind of task on
//! each device. The dispatch and the plans of groups use the corrections.

use serde::{Deserialize, Serialize};
use souk_vocabulary::history::{Evidence, KNOWN, OutlierFilter};

use crate::graph::cost::OperatorClass;

/// Number of kinds of work whose estimates have the same error on a device: products, convolutions
/// and all other work.
pub const KINDS: usize = 3;

/// Returns the kind of work of an operator.
#[must_use]
pub fn kind_of_class(class: OperatorClass) -> u16 {
    match class {
        OperatorClass::Matmul => 1,
        OperatorClass::Convolution => 2,
        _ => 0,
    }
}

/// Number of measurements after which an old one fades.
const MEMORY: f64 = 16.0;
/// A measurement that differs from its estimate by this factor must be a disturbance, not a speed.
const RATIO_MAX: f64 = 1e4;

/// Corrections of estimates, one for each kind of task on each device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    devices: usize,
    records: Vec<SpeedRecord>,
    factors: Vec<f64>,
}

/// The measurements of one kind of task on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct SpeedRecord {
    /// Mean and variance of the logarithm of measured time divided by estimated time.
    mean: f64,
    variance: f64,
    /// Number of measurements.
    count: f64,
    /// The last measurements, if they differ far from the mean.
    #[serde(skip)]
    outliers: OutlierFilter,
}

impl SpeedRecord {
    fn add(&mut self, value: f64) {
        let said = match self.count >= KNOWN {
            true => self
                .outliers
                .classify_value(value, self.mean, self.variance.sqrt()),
            false => Evidence::Noise(value),
        };
        let weight = 1.0 / (self.count + 1.0).min(MEMORY);
        let distance = value - self.mean;
        self.variance = (1.0 - weight) * (self.variance + weight * distance * distance);
        match said {
            Evidence::Noise(value) => {
                self.mean += weight * (value - self.mean);
                self.count += 1.0;
            }
            Evidence::Change(value) => {
                self.mean = value;
                self.count = KNOWN;
            }
        }
    }
}

impl Speeds {
    /// Creates neutral corrections for this number of kinds and devices.
    #[must_use]
    pub fn new(kinds: usize, devices: usize) -> Self {
        let length = kinds.max(1) * devices;
        Self {
            devices,
            records: vec![SpeedRecord::default(); length],
            factors: vec![1.0; length],
        }
    }

    /// Returns the number of kinds of task.
    #[must_use]
    pub fn kind_count(&self) -> usize {
        self.records.len() / self.devices.max(1)
    }

    /// Returns the number of devices.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.devices
    }

    /// Returns the factor for an estimate.
    #[must_use]
    #[inline]
    pub fn factor(&self, kind: u16, device: usize) -> f64 {
        self.factors[usize::from(kind) * self.devices + device]
    }

    /// Records the measured time of a task with its estimate before correction. `kind` and `device`
    /// must be below the numbers for which the corrections were created.
    pub fn record_ratio(&mut self, kind: u16, device: usize, estimated: f64, measured: f64) {
        let ratio = measured / estimated;
        if !(1.0 / RATIO_MAX..RATIO_MAX).contains(&ratio) {
            return;
        }
        let index = usize::from(kind) * self.devices + device;
        self.records[index].add(ratio.ln());
        self.factors[index] = self.records[index].mean.exp();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_too_slow_and_twice_too_fast_cancel() {
        let mut speeds = Speeds::new(2, 2);
        speeds.record_ratio(1, 0, 10.0, 20.0);
        assert!((speeds.factor(1, 0) - 2.0).abs() < 1e-9);
        speeds.record_ratio(1, 0, 10.0, 5.0);
        assert!((speeds.factor(1, 0) - 1.0).abs() < 1e-9);
        assert!(
            (speeds.factor(0, 0) - 1.0).abs() < 1e-9,
            "other kinds learn nothing"
        );
    }

    #[test]
    fn a_device_that_becomes_another_is_followed_in_three_measurements_and_back() {
        let mut speeds = Speeds::new(1, 1);
        let mut after = |measurements: usize, times: f64| {
            (0..measurements).for_each(|_| speeds.record_ratio(0, 0, 1.0, times));
            speeds.factor(0, 0)
        };
        after(100, 1.0);
        assert!(after(2, 4.0) < 1.06, "it may have been held up");
        assert!((after(1, 4.0) - 4.0).abs() < 1e-9);
        assert!((after(20, 4.0) - 4.0).abs() < 1e-9);
        assert!(after(2, 1.0) > 3.0);
        assert!((after(1, 1.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_takes_long_every_other_batch_is_averaged() {
        let mut speeds = Speeds::new(1, 1);
        let factors = (0..400).map(|batch| {
            let times = if batch / 5 % 2 == 0 { 1.0 } else { 4.0 };
            speeds.record_ratio(0, 0, 1.0, times);
            speeds.factor(0, 0)
        });
        let settled: Vec<f64> = factors.skip(100).collect();
        assert!(
            settled.iter().all(|factor| (1.5..2.7).contains(factor)),
            "{settled:?}"
        );
    }

    #[test]
    fn a_hiccup_teaches_nothing() {
        let mut speeds = Speeds::new(1, 1);
        speeds.record_ratio(0, 0, 1.0, 1e9);
        speeds.record_ratio(0, 0, 0.0, 1.0);
        assert_eq!(speeds, Speeds::new(1, 1));
    }
}
