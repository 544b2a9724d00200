//! Cuts the held-out examples of a run, on which it does not train, into batches. The losses of all
//! batches together give the held-out loss.
//!
//! An evaluation sends a few requests to the run's lease, with the same graph as a training step.
//! Their schedule input (which also has the learning rate) leaves all states unchanged, so an
//! evaluation does not affect the training, and only batches travel.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_scheduler::gradient::Loss;

use super::{
    EVALUATION_BATCHES_MAX, TrainingData, TrainingError, TrainingSettings, check_floats,
    count_examples,
};

/// A label that does not count in [`Loss::CountedCrossEntropy`].
const NOT_COUNTED: i64 = -1;

/// Held-out examples before a run is prepared.
#[derive(Clone, Debug)]
pub struct HeldOutData {
    /// The examples, with the names, types and shapes of those of the training.
    pub examples: TrainingData,
    /// The steps from one evaluation to the next.
    pub every_steps: u64,
}

/// Held-out examples in batches.
#[derive(Clone, Debug)]
pub struct HeldOut {
    /// The steps from one evaluation to the next.
    pub every_steps: u64,
    /// The number of examples that count.
    pub examples: usize,
    /// The number of examples that fill no batch, and do not count.
    pub left_out: usize,
    batches: Vec<Batch>,
}

#[derive(Clone, Debug)]
struct Batch {
    inputs: BTreeMap<String, Tensor>,
    /// The number of terms of which its loss is the mean.
    terms: u64,
}

impl HeldOut {
    /// Checks held-out examples for a run, and cuts them into its batches.
    ///
    /// # Errors
    /// [`TrainingError`] with what does not fit.
    pub(super) fn prepare(
        held_out: &HeldOutData,
        training: &TrainingData,
        settings: &TrainingSettings,
    ) -> Result<HeldOut, TrainingError> {
        let data = &held_out.examples;
        let (all, batch) = (count_examples(data)?, settings.batch);
        check_types(data, training)?;
        check_floats(data)?;
        let can_fill = settings.recipe.loss == Loss::CountedCrossEntropy;
        let count = match can_fill {
            true => all.div_ceil(batch),
            false => all / batch,
        };
        if count == 0 {
            let examples = all;
            return Err(TrainingError::HeldOutFew { batch, examples });
        }
        if count > EVALUATION_BATCHES_MAX {
            return Err(TrainingError::HeldOutMany { batches: count });
        }
        let examples = all.min(count * batch);
        let batches = (0..count).map(|place| {
            let rows: Vec<usize> = (place * batch..((place + 1) * batch).min(all)).collect();
            Batch::from_rows(data, &rows, batch, can_fill)
        });
        Ok(HeldOut {
            every_steps: held_out.every_steps.max(1),
            examples,
            left_out: all - examples,
            batches: batches.collect(),
        })
    }

    /// Returns the number of batches.
    #[must_use]
    pub fn batch_count(&self) -> usize {
        self.batches.len()
    }

    /// Returns how often a run of some steps evaluates.
    #[must_use]
    pub fn evaluation_count(&self, steps: u64) -> u64 {
        1 + steps.div_ceil(self.every_steps)
    }

    /// Returns the inputs and targets of a batch.
    pub(super) fn batch_inputs(&self, place: usize) -> &BTreeMap<String, Tensor> {
        &self.batches[place].inputs
    }

    /// Returns the loss of all examples by those of their batches: the mean over all terms.
    pub(super) fn combine_losses(&self, losses: &[f32]) -> f32 {
        assert_eq!(losses.len(), self.batches.len(), "each batch has a loss");
        let terms: u64 = self.batches.iter().map(|batch| batch.terms).sum();
        let sums = losses.iter().zip(&self.batches);
        let sums = sums.map(|(loss, batch)| f64::from(*loss) * batch.terms as f64);
        (sums.sum::<f64>() / terms.max(1) as f64) as f32
    }
}

impl Batch {
    /// Takes some rows, and fills the batch up with rows that do not count.
    fn from_rows(data: &TrainingData, rows: &[usize], batch: usize, can_fill: bool) -> Batch {
        let filled = rows.iter().copied().chain(std::iter::repeat(rows[0]));
        let filled: Vec<usize> = filled.take(batch).collect();
        let inputs = data.inputs.iter();
        let mut inputs: BTreeMap<String, Tensor> = inputs
            .map(|(name, all)| (name.clone(), super::take_rows(all, &filled)))
            .collect();
        let mut target = super::take_rows(&data.target, &filled);
        let mut terms = rows.len() as u64;
        if can_fill {
            let mut labels = target
                .to_vec::<i64>()
                .expect("counted labels are in 64 bits");
            let width = labels.len() / batch;
            labels[rows.len() * width..].fill(NOT_COUNTED);
            target = Tensor::from_vec(target.dims(), labels).expect("the same shape");
            terms = count_labels(&target);
        }
        inputs.insert(data.target_name.clone(), target);
        Batch { inputs, terms }
    }
}

/// Returns how many labels count in [`Loss::CountedCrossEntropy`].
pub(super) fn count_labels(target: &Tensor) -> u64 {
    let labels = target.to_vec::<i64>();
    let labels = labels.expect("counted labels are in 64 bits").into_iter();
    labels.filter(|label| *label >= 0).count() as u64
}

/// Checks that each tensor has the type and the shape of the training's, but for the number of
/// examples.
fn check_types(held_out: &TrainingData, training: &TrainingData) -> Result<(), TrainingError> {
    let tensors = |data: &TrainingData| -> BTreeMap<String, (DType, Vec<usize>)> {
        let target = (&data.target_name, &data.target);
        let all = data.inputs.iter().chain([target]);
        let typed = all.map(|(name, it)| (name.clone(), (it.dtype(), it.dims()[1..].to_vec())));
        typed.collect()
    };
    let (found, expected) = (tensors(held_out), tensors(training));
    let names = found.keys().chain(expected.keys());
    let mut differing = names.filter(|name| found.get(*name) != expected.get(*name));
    match differing.next() {
        None => Ok(()),
        Some(name) => Err(TrainingError::HeldOutType { name: name.clone() }),
    }
}
