//! How measured times relate to estimates, by kind of task and device, carried from run to run.

use serde::{Deserialize, Serialize};

/// Beyond this many measurements an old one fades.
const MEMORY: f64 = 16.0;
/// A measurement this many times off its estimate is a hiccup, not a speed.
const RATIO_MAX: f64 = 1e4;

/// Corrections of estimates, one for each kind of task on each device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    devices: usize,
    /// Mean logarithm of measured over estimated time, and how much was measured.
    records: Vec<(f64, f64)>,
    factors: Vec<f64>,
}

impl Speeds {
    /// Estimates as they are, for so many kinds of task and devices.
    #[must_use]
    pub fn new(kinds: usize, devices: usize) -> Self {
        let length = kinds.max(1) * devices;
        Self {
            devices,
            records: vec![(0.0, 0.0); length],
            factors: vec![1.0; length],
        }
    }

    /// Kinds of task it tells apart.
    #[must_use]
    pub fn kinds(&self) -> usize {
        self.records.len() / self.devices.max(1)
    }

    /// Devices it tells apart.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// What an estimate is to be multiplied with.
    #[must_use]
    #[inline]
    pub fn factor(&self, kind: u16, device: usize) -> f64 {
        self.factors[usize::from(kind) * self.devices + device]
    }

    /// Takes in that what was estimated (before correction) to take one time took another.
    pub fn learn(&mut self, kind: u16, device: usize, estimated: f64, measured: f64) {
        let ratio = measured / estimated;
        if !(1.0 / RATIO_MAX..RATIO_MAX).contains(&ratio) {
            return;
        }
        let index = usize::from(kind) * self.devices + device;
        let (mean, count) = &mut self.records[index];
        *mean += (ratio.ln() - *mean) / (*count + 1.0).min(MEMORY);
        *count += 1.0;
        self.factors[index] = mean.exp();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_too_slow_and_twice_too_fast_cancel() {
        let mut speeds = Speeds::new(2, 2);
        speeds.learn(1, 0, 10.0, 20.0);
        assert!((speeds.factor(1, 0) - 2.0).abs() < 1e-9);
        speeds.learn(1, 0, 10.0, 5.0);
        assert!((speeds.factor(1, 0) - 1.0).abs() < 1e-9);
        assert!(
            (speeds.factor(0, 0) - 1.0).abs() < 1e-9,
            "other kinds learn nothing"
        );
    }

    #[test]
    fn a_hiccup_teaches_nothing() {
        let mut speeds = Speeds::new(1, 1);
        speeds.learn(0, 0, 1.0, 1e9);
        speeds.learn(0, 0, 0.0, 1.0);
        assert_eq!(speeds, Speeds::new(1, 1));
    }
}
