//! The learning rate of each step: it can rise during the first steps, and fall during the others.

use std::f64::consts::PI;

use super::TrainingError;

/// The learning rates of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// The highest rate, a positive number.
    pub peak: f64,
    /// Over how many steps the rate rises to it; 0 to begin with it.
    pub warmup: u64,
    /// How the rate falls after that.
    pub decay: RateDecay,
}

/// How a learning rate falls until the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateDecay {
    /// It stays at the highest rate.
    #[default]
    Constant,
    /// It falls by the same amount after each step.
    Linear,
    /// It falls as the first half of a cosine.
    Cosine,
}

impl LearningRate {
    /// Returns a rate that is the same in all steps.
    #[must_use]
    pub fn constant(rate: f64) -> LearningRate {
        LearningRate {
            peak: rate,
            warmup: 0,
            decay: RateDecay::Constant,
        }
    }

    /// Checks the rates of a run of some steps.
    ///
    /// # Errors
    /// [`TrainingError::LearningRate`] and [`TrainingError::Warmup`].
    pub(super) fn check_bounds(self, steps: u64) -> Result<(), TrainingError> {
        let LearningRate { peak, warmup, .. } = self;
        if !(peak.is_finite() && peak > 0.0) {
            return Err(TrainingError::LearningRate {
                learning_rate: peak,
            });
        }
        if warmup >= steps {
            return Err(TrainingError::Warmup { warmup, steps });
        }
        Ok(())
    }

    /// Returns the rate of the step at a position of a run, both from 0. No step has the rate 0,
    /// which would change nothing: the first of N steps of warm-up has 1/N of the peak.
    #[must_use]
    pub fn rate_at(self, position: u64, steps: u64) -> f64 {
        if position < self.warmup {
            return self.peak * (position + 1) as f64 / self.warmup as f64;
        }
        let rest = (steps - self.warmup) as f64;
        let done = (position - self.warmup) as f64 / rest;
        match self.decay {
            RateDecay::Constant => self.peak,
            RateDecay::Linear => self.peak * (1.0 - done),
            RateDecay::Cosine => self.peak * 0.5 * (1.0 + (PI * done).cos()),
        }
    }
}

impl RateDecay {
    /// Returns the name, as options state it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RateDecay::Constant => "constant",
            RateDecay::Linear => "linear",
            RateDecay::Cosine => "cosine",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(warmup: u64, decay: RateDecay, steps: u64) -> Vec<f64> {
        let rate = LearningRate {
            peak: 8.0,
            warmup,
            decay,
        };
        rate.check_bounds(steps).unwrap();
        (0..steps).map(|at| rate.rate_at(at, steps)).collect()
    }

    #[test]
    fn a_rate_rises_to_its_peak_and_falls_by_its_decay() {
        assert_eq!(rates(0, RateDecay::Constant, 3), [8.0, 8.0, 8.0]);
        assert_eq!(
            rates(2, RateDecay::Linear, 6),
            [4.0, 8.0, 8.0, 6.0, 4.0, 2.0]
        );
        let cosine = rates(2, RateDecay::Cosine, 6);
        let expected = [4.0, 8.0, 8.0, 6.828427, 4.0, 1.171573];
        for (found, expected) in cosine.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{cosine:?}");
        }
    }

    #[test]
    fn a_warmup_leaves_a_step_after_it() {
        let rate = LearningRate {
            warmup: 3,
            ..LearningRate::constant(1.0)
        };
        let refused = rate.check_bounds(3).unwrap_err();
        let expected = "a warm-up of 3 steps leaves none of the 3 steps of the run";
        assert_eq!(refused.to_string(), expected);
    }
}
