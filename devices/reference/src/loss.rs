//! Computes the loss operators of classifiers, `NegativeLogLikelihoodLoss` and
//! `SoftmaxCrossEntropyLoss`: how far scores are from the true classes.

use souk_memory::Tensor;

use super::call::{Call, KernelError, Results};
use super::value::{from_floats, to_floats};

/// Scores with the axes samples, classes and positions, and the true class at each position.
struct Scores {
    values: Vec<f64>,
    classes: usize,
    plane: usize,
    labels: Vec<i64>,
    weights: Option<Vec<f64>>,
    ignored: Option<i64>,
}

impl Scores {
    fn read(call: &Call<'_>) -> Result<Self, KernelError> {
        let input = call.input(0)?;
        let &[_, classes, ref spatial @ ..] = input.dims() else {
            return Err(KernelError::Range(0));
        };
        let labels = call.input_ints(1)?;
        let ignored = call.node.int("ignore_index");
        let allowed = |label: &i64| Some(*label) == ignored || (0..classes as i64).contains(label);
        if !labels.iter().all(allowed) {
            return Err(KernelError::Range(1));
        }
        let weights = call.optional_input(2).map(to_floats).transpose()?;
        let plane = spatial.iter().product();
        Ok(Self {
            values: to_floats(input)?,
            classes,
            plane,
            labels,
            weights,
            ignored,
        })
    }

    /// Returns the weighted loss of each position, and the sum of weights.
    fn weighted_losses(&self) -> (Vec<f64>, f64) {
        let mut weight_sum = 0.0;
        let mut losses = Vec::with_capacity(self.labels.len());
        for (place, &label) in self.labels.iter().enumerate() {
            if Some(label) == self.ignored {
                losses.push(0.0);
                continue;
            }
            let class = label as usize;
            let weight = self.weights.as_ref().map_or(1.0, |weights| weights[class]);
            let (sample, at) = (place / self.plane.max(1), place % self.plane.max(1));
            losses.push(-weight * self.values[(sample * self.classes + class) * self.plane + at]);
            weight_sum += weight;
        }
        (losses, weight_sum)
    }

    fn reduce_losses(&self, call: &Call<'_>) -> Result<Tensor, KernelError> {
        let (losses, weights) = self.weighted_losses();
        let dtype = call.input(0)?.dtype();
        match call.text_attribute("reduction", "mean") {
            "none" => from_floats(dtype, call.input(1)?.dims(), losses),
            "sum" => from_floats(dtype, &[], vec![losses.iter().sum()]),
            _ => from_floats(dtype, &[], vec![losses.iter().sum::<f64>() / weights]),
        }
    }
}

pub(super) fn negative_log_likelihood(call: &Call<'_>) -> Results {
    Ok(vec![Scores::read(call)?.reduce_losses(call)?])
}

pub(super) fn softmax_cross_entropy(call: &Call<'_>) -> Results {
    let mut scores = Scores::read(call)?;
    let (classes, plane) = (scores.classes, scores.plane);
    for sample in scores.values.chunks_exact_mut((classes * plane).max(1)) {
        for place in 0..plane {
            let own = (0..classes).map(|class| sample[class * plane + place]);
            let own: Vec<f64> = own.collect();
            let largest = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = own.iter().map(|value| (value - largest).exp()).sum();
            for (class, value) in own.into_iter().enumerate() {
                sample[class * plane + place] = value - largest - sum.ln();
            }
        }
    }
    let input = call.input(0)?;
    let logs = from_floats(input.dtype(), input.dims(), scores.values.clone())?;
    Ok(vec![scores.reduce_losses(call)?, logs])
}
