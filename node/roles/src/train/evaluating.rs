//! Decides when a training run evaluates its held-out examples (on which it does not train).

use serde::Serialize;

use super::TrainCore;

/// When held-out examples are evaluated, which has no effect on the states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EvaluationSpec {
    /// The steps from one evaluation to the next. There is also one before the first step, and one
    /// after the last.
    pub every_steps: u64,
    /// How many requests of a lease an evaluation takes.
    pub requests: u64,
}

impl TrainCore {
    /// Returns whether the run evaluates the held-out examples at this position (number of steps
    /// done).
    pub(super) fn is_evaluation_point(&self, position: u64) -> bool {
        let spec = self.spec.evaluation;
        spec.is_some_and(|spec| {
            position.is_multiple_of(spec.every_steps) || position == self.past.steps
        })
    }

    /// Returns whether an evaluation at a position, from that of the last kept states on, is not in
    /// the journal.
    pub(super) fn is_due(&self, position: u64) -> bool {
        let last = self.past.held_out.last();
        self.is_evaluation_point(position) && last.is_none_or(|(at, _)| *at < position)
    }

    /// Returns whether all steps, audits and evaluations are done.
    pub(super) fn has_all(&self) -> bool {
        let has_audits = !self.past.due_audits.is_empty();
        self.past.is_done() && !has_audits && !self.is_due(self.past.steps)
    }

    /// Returns how many steps and evaluations the next lease is for. It does not evaluate after its
    /// last step, unless this is the last of the run: the next lease does so at its beginning.
    pub(super) fn lease_extent(&self, from: u64) -> (u64, u64) {
        let left = self.past.steps - from;
        let steps_max = left.min(self.spec.lease_steps_max);
        let Some(spec) = self.spec.evaluation else {
            return (steps_max, 0);
        };
        let requests_max = self.spec.lease_steps_max.saturating_add(spec.requests);
        let (mut steps, mut evaluations) = (0, 0);
        loop {
            let is_due = self.is_due(from + steps);
            let evaluated = evaluations + u64::from(is_due);
            let requests = evaluated.saturating_mul(spec.requests) + steps;
            // A lease does at least one of them.
            if requests > requests_max && steps > 0 {
                return (steps, evaluations);
            }
            if steps == steps_max {
                let is_last = steps == left;
                return (steps, if is_last { evaluated } else { evaluations });
            }
            evaluations = evaluated;
            steps += 1;
        }
    }
}
