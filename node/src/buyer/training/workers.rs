//! Computes how a training run on several workers is divided: into rounds, which end with an
//! average of the parameters, and each round into legs. A leg is the part of one worker in a round,
//! and is a run of its own.

use super::outer::{OUTER_LEARNING_RATE, OUTER_MOMENTUM};

/// The most workers of a run. The buyer has the states of each of them in memory.
pub const WORKERS_MAX: usize = 64;

/// Workers that train side by side, each on its own share of the batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// The number of workers.
    pub count: usize,
    /// The number of steps of each worker from one average to the next.
    pub round_steps: u64,
}

/// The part of a round that one worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    /// The number of the worker, from 0.
    pub(super) worker: usize,
    /// The position of its first step in the run.
    pub(super) first: u64,
    /// The number of its steps; none if it only evaluates.
    pub(super) steps: u64,
}

impl Workers {
    /// Returns the number of steps of the round that begins at a position.
    pub(super) fn round_length(self, first: u64, steps: u64) -> u64 {
        self.round_steps.min(steps.saturating_sub(first))
    }

    /// Returns whether the held-out examples are evaluated at a position between two rounds: at the
    /// first one at or after each multiple of `every`, and before the first and after the last.
    pub(super) fn is_evaluation_point(self, position: u64, steps: u64, every: u64) -> bool {
        let before = position.saturating_sub(self.round_steps);
        position == 0 || position == steps || position / every > before / every
    }

    /// Returns how often a run of some steps evaluates.
    pub(super) fn evaluation_count(self, steps: u64, every: u64) -> u64 {
        let rounds = 0..=self.round_count(steps);
        let positions = rounds.map(|round| round.saturating_mul(self.round_steps).min(steps));
        let points = positions.filter(|it| self.is_evaluation_point(*it, steps, every));
        points.count() as u64
    }

    /// Returns the number of rounds of a run.
    #[must_use]
    pub fn round_count(self, steps: u64) -> u64 {
        steps.div_ceil(self.round_steps)
    }

    /// Encodes all values on which the result of the training depends.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = b"workers".to_vec();
        bytes.extend_from_slice(&(self.count as u64).to_le_bytes());
        bytes.extend_from_slice(&self.round_steps.to_le_bytes());
        bytes.extend_from_slice(&OUTER_LEARNING_RATE.to_le_bytes());
        bytes.extend_from_slice(&OUTER_MOMENTUM.to_le_bytes());
        bytes
    }
}

impl Leg {
    /// Returns whether it only evaluates the held-out examples.
    pub(super) fn is_evaluation(self) -> bool {
        self.steps == 0
    }

    /// Returns the name of its folder.
    pub(super) fn name(self) -> String {
        match self.is_evaluation() {
            true => "evaluation".to_owned(),
            false => format!("worker-{}", self.worker + 1),
        }
    }

    /// Encodes the values that distinguish this leg from all other legs of the run.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let numbers = [self.worker as u64, self.first, self.steps];
        numbers.iter().flat_map(|it| it.to_le_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_fall_on_the_ends_of_rounds() {
        let workers = Workers {
            count: 2,
            round_steps: 4,
        };
        let points = |steps, every| -> Vec<u64> {
            let all = (0..=steps).filter(|it| it % 4 == 0 || *it == steps);
            all.filter(|it| workers.is_evaluation_point(*it, steps, every))
                .collect()
        };
        assert_eq!(points(10, 4), [0, 4, 8, 10]);
        assert_eq!(points(12, 8), [0, 8, 12]);
        // 5 is within the second round, and 10 within the third.
        assert_eq!(points(14, 5), [0, 8, 12, 14]);
        assert_eq!(workers.evaluation_count(14, 5), 4);
        assert_eq!(workers.evaluation_count(12, 1), 4);
        assert_eq!((workers.round_count(10), workers.round_count(8)), (3, 2));
        assert_eq!(workers.round_length(8, 10), 2);
    }
}
