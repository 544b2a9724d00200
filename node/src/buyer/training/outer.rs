//! Averages what the workers of a round made: the outer optimiser of DiLoCo, which is stochastic
//! gradient descent with Nesterov's momentum over the differences of the parameters.
//!
//! All numbers are in 32 bits, and the workers are summed in their order: the result has the same
//! bits wherever they trained, and in whatever order they came back.

/// The learning rate of the outer optimiser, as in the paper on DiLoCo.
pub const OUTER_LEARNING_RATE: f32 = 0.7;

/// The momentum of the outer optimiser, as in the paper on DiLoCo.
pub const OUTER_MOMENTUM: f32 = 0.9;

/// The parameters of a run between two rounds, and the momentum of the outer optimiser.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OuterState {
    pub(super) parameters: Vec<f32>,
    pub(super) momentum: Vec<f32>,
}

impl OuterState {
    /// Takes one step with the parameters of the workers, which began from those of the state. It
    /// computes as `torch.optim.SGD` with `nesterov=True`, where the gradient is the mean of the
    /// differences between the parameters before the round and those of each worker.
    pub(super) fn apply_round(&mut self, of_workers: &[Vec<f32>]) {
        let count = of_workers.len() as f32;
        let of_run = self.parameters.iter_mut().zip(&mut self.momentum);
        for (place, (parameter, momentum)) in of_run.enumerate() {
            let before = *parameter;
            let mut sum = 0.0_f32;
            for of_worker in of_workers {
                sum += before - of_worker[place];
            }
            let gradient = sum / count;
            *momentum = OUTER_MOMENTUM * *momentum + gradient;
            *parameter = before - OUTER_LEARNING_RATE * (gradient + OUTER_MOMENTUM * *momentum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_follow_nesterov_as_pytorch_computes_it() {
        let mut state = OuterState {
            parameters: vec![1.0, -2.0],
            momentum: vec![0.0, 0.0],
        };
        // The mean differences are 0.5 and -1, twice, then 0 and 0.
        state.apply_round(&[vec![0.25, -1.5], vec![0.75, -0.5]]);
        // gradient + 0.9 · gradient = 1.9 · gradient
        assert_near(&state.parameters, &[1.0 - 0.7 * 0.95, -2.0 + 0.7 * 1.9]);
        assert_near(&state.momentum, &[0.5, -1.0]);
        let [first, second] = state.parameters[..] else {
            panic!("two parameters");
        };
        let same = vec![first - 0.5, second + 1.0];
        state.apply_round(&[same.clone(), same]);
        // The momentum is 0.9 · 0.5 + 0.5 = 0.95, and the step 0.5 + 0.9 · 0.95 = 1.355.
        assert_near(&state.momentum, &[0.95, -1.9]);
        let expected = [0.335 - 0.7 * 1.355, -0.67 + 0.7 * 2.71];
        assert_near(&state.parameters, &expected);
        let rest = state.parameters.clone();
        state.apply_round(&[rest.clone(), rest]);
        assert_near(&state.momentum, &[0.855, -1.71]);
        let expected = [expected[0] - 0.7 * 0.7695, expected[1] + 0.7 * 1.539];
        assert_near(&state.parameters, &expected);
    }

    #[test]
    fn workers_are_summed_in_their_order() {
        let round = |of_workers: &[Vec<f32>]| {
            let mut state = OuterState {
                parameters: vec![0.0],
                momentum: vec![0.0],
            };
            state.apply_round(of_workers);
            state.parameters[0].to_bits()
        };
        let (large, small) = (vec![1.0e8], vec![1.0]);
        let back = vec![-1.0e8];
        // 1e8 + 1 is 1e8 in 32 bits, so the order shows.
        let first = [large.clone(), small.clone(), back.clone()];
        let second = [large, back, small];
        assert_eq!(f32::from_bits(round(&first)).abs(), 0.0);
        assert_ne!(round(&first), round(&second));
        assert_eq!(round(&first), round(&first));
    }

    fn assert_near(found: &[f32], expected: &[f32]) {
        for (one, other) in found.iter().zip(expected) {
            assert!((one - other).abs() < 1e-6, "{found:?}, {expected:?}");
        }
    }
}
