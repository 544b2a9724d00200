//! Chooses how many steps of a sequence run at a time: enough to keep the provider busy. After a
//! step that the caller did not want, it starts again at one.

use serde::{Deserialize, Serialize};

use crate::clock::Micros;

/// The number of steps of a sequence to run at a time.
///
/// It grows until the provider is always busy: if a step takes as long as the quickest one, it
/// waited for no other step, so one more can run. If the caller asks for a different step than the
/// one sent ahead, for example after drafts, it starts again at one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LookAhead {
    steps: usize,
    most: usize,
    quickest: Micros,
}

impl LookAhead {
    /// Starts at one step, with at most `most`.
    pub fn new(most: usize) -> LookAhead {
        LookAhead {
            steps: 1,
            most: most.max(1),
            quickest: Micros(u64::MAX),
        }
    }

    #[cfg(test)]
    pub fn with_steps(steps: usize, most: usize) -> LookAhead {
        let new = LookAhead::new(most);
        LookAhead { steps, ..new }
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Starts again at one step.
    pub fn restart(&mut self) {
        self.steps = 1;
    }

    /// Adapts the number to the time that a step of one token took.
    pub fn adapt_steps(&mut self, took: Micros) {
        let took = took.max(Micros(1));
        self.quickest = self.quickest.min(took);
        // The number of steps that wait, as a multiple of `took`.
        let waiting = took
            .since(self.quickest)
            .0
            .saturating_mul(self.steps as u64);
        if waiting < took.0 {
            self.steps = (self.steps + 1).min(self.most);
        } else if waiting > took.0.saturating_mul(2) {
            self.steps -= 1;
        }
    }
}
