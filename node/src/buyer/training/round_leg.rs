//! The leg of one worker in a round of training: what to do after it ended, and the mean loss and
//! total cost of all legs of a round.

use std::collections::BTreeMap;
use std::sync::Arc;

use souk_market::{Credits, Receipt};
use souk_memory::Tensor;
use tokio::sync::Notify;

use super::Training;
use super::run::{TrainingEnd, TrainingResult};
use super::workers::Leg;

/// A leg of the present round.
pub(super) struct RoundLeg {
    pub(super) leg: Leg,
    /// Its index among the legs of the round: the worker's number, or the one after the last for
    /// evaluations.
    pub(super) place: usize,
    pub(super) training: Training,
    /// What its leases have cost.
    pub(super) spent: Credits,
    /// Its result; none before it ended once.
    pub(super) result: Option<TrainingResult>,
    /// Stops it.
    pub(super) cancel: Arc<Notify>,
}

/// What to do after a leg ended.
pub(super) enum LegEnd {
    Done,
    /// No device did its steps; it can try again when another leg is done.
    Waits,
    /// Every other leg ends too.
    EndsRun,
}

impl RoundLeg {
    /// Returns what follows from the end of the leg.
    pub(super) fn judge(&self, result: &TrainingResult) -> LegEnd {
        match result.end {
            TrainingEnd::Done if self.leg.is_evaluation() && result.held_out.is_empty() => {
                LegEnd::Waits
            }
            TrainingEnd::Done => LegEnd::Done,
            TrainingEnd::NoLease(_)
            | TrainingEnd::NoMoney(_)
            | TrainingEnd::Lost(_)
            | TrainingEnd::NotFinite { .. }
            | TrainingEnd::Disputed { .. } => LegEnd::Waits,
            TrainingEnd::Stopped | TrainingEnd::Journal(_) => LegEnd::EndsRun,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        let result = self.result.as_ref();
        result.is_some_and(|result| matches!(self.judge(result), LegEnd::Done))
    }

    pub(super) fn ends_run(&self) -> bool {
        let result = self.result.as_ref();
        result.is_some_and(|result| matches!(self.judge(result), LegEnd::EndsRun))
    }

    pub(super) fn has_failed(&self) -> bool {
        let end = self.result.as_ref().map(|result| &result.end);
        self.ends_run() && !matches!(end, Some(TrainingEnd::Stopped))
    }

    /// Takes the reason why it ended, with the position of a step in the run.
    pub(super) fn take_end(&mut self) -> Option<TrainingEnd> {
        let result = self.result.as_mut()?;
        let end = std::mem::replace(&mut result.end, TrainingEnd::Stopped);
        Some(match end {
            TrainingEnd::NotFinite { step, loss } => TrainingEnd::NotFinite {
                step: self.leg.first + step,
                loss,
            },
            end => end,
        })
    }

    /// Returns the states after all its steps.
    pub(super) fn states(&self) -> &BTreeMap<String, Tensor> {
        let result = self.result.as_ref().expect("the leg is done");
        &result.states
    }

    pub(super) fn held_out_loss(&self) -> Option<f32> {
        let result = self.result.as_ref()?;
        result.held_out.first().map(|(_, loss)| *loss)
    }
}

/// Returns the mean loss of all workers at each step, and that of each worker over the round. Each
/// loss counts by its terms, so a long answer counts as much as its tokens.
pub(super) fn mean_losses(trained: &[&RoundLeg]) -> (Vec<f32>, Vec<f32>) {
    let of_leg = |leg: &RoundLeg| -> Vec<(f64, u64)> {
        let losses = leg.result.iter().flat_map(|result| &result.losses);
        let steps = (0..).zip(losses);
        steps
            .map(|(step, loss)| (f64::from(*loss), leg.training.step_terms(step)))
            .collect()
    };
    let all: Vec<Vec<(f64, u64)>> = trained.iter().map(|leg| of_leg(leg)).collect();
    let steps = all.first().map_or(0, Vec::len);
    let at_steps = (0..steps).map(|step| mean_loss(all.iter().map(|leg| leg[step])));
    let of_workers = all.iter().map(|leg| mean_loss(leg.iter().copied()));
    (at_steps.collect(), of_workers.collect())
}

/// Returns the mean of losses over their terms.
fn mean_loss(losses: impl Iterator<Item = (f64, u64)>) -> f32 {
    let (mut sum, mut terms) = (0.0, 0);
    for (loss, of_loss) in losses {
        sum += loss * of_loss as f64;
        terms += of_loss;
    }
    (sum / terms.max(1) as f64) as f32
}

/// Returns what the legs of a round have cost, and their receipts.
pub(super) fn total_cost(legs: &[RoundLeg]) -> (Credits, Vec<Receipt>) {
    let costs = legs.iter().map(|leg| leg.spent.0);
    let results = legs.iter().filter_map(|leg| leg.result.as_ref());
    let receipts = results.flat_map(|result| result.receipts.clone());
    (
        Credits(costs.fold(0, u64::saturating_add)),
        receipts.collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_counts_by_its_terms() {
        // Three tokens with the loss 2 and one with 6.
        assert_eq!(mean_loss([(2.0, 3), (6.0, 1)].into_iter()), 3.0);
        assert_eq!(mean_loss([(2.0, 4), (4.0, 0)].into_iter()), 2.0);
    }
}
