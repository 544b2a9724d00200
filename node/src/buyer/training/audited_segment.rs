//! Compares the results of an audit, in which another provider runs some steps of training again,
//! with the results that earlier providers claimed for these steps.
//!
//! Devices of one kind compute the same bits. Other kinds round differently, and an optimiser that
//! divides by the size of a gradient turns the rounding of a tiny gradient into a step. So two
//! states count as equal if their distance is small compared with how far the steps moved them: a
//! step that a provider left out is a large part of that distance, whatever the learning rate.

use std::collections::BTreeMap;

use souk_memory::Tensor;
use souk_roles::train::{LossBits, SegmentClaim, StepAnswer};

use super::sent::state_ids;

/// The largest distance of two equal states, relative to how far the steps moved them.
const STATES_TOLERANCE: f64 = 0.01;

/// The largest difference of two equal losses: a part of the larger of them, and a constant.
const LOSS_TOLERANCE: (f64, f64) = (0.01, 1e-6);

/// A segment that is run again.
pub(super) struct AuditedSegment {
    /// The states from which it begins.
    from: BTreeMap<String, Tensor>,
    claims: Vec<SegmentClaim>,
    /// The states of each claim, in the order of claims. A claim without states is of numbers that
    /// are infinite.
    states: Vec<BTreeMap<String, Tensor>>,
    /// The number of answered steps.
    answered: usize,
}

impl AuditedSegment {
    /// Begins with a segment from these states. `made` has the states of the claims that have some.
    pub(super) fn new(
        from: BTreeMap<String, Tensor>,
        claims: Vec<SegmentClaim>,
        made: Vec<BTreeMap<String, Tensor>>,
    ) -> AuditedSegment {
        let of_claim = |claim: &SegmentClaim| {
            let mut made = made.iter();
            let found = made.find(|states| state_ids(states) == claim.states);
            found.cloned().unwrap_or_default()
        };
        AuditedSegment {
            states: claims.iter().map(of_claim).collect(),
            from,
            claims,
            answered: 0,
        }
    }

    /// Returns the answer to the next step, with the bits of a claim that it equals.
    pub(super) fn match_answer(
        &mut self,
        answer: StepAnswer,
        made: Option<&BTreeMap<String, Tensor>>,
    ) -> StepAnswer {
        let StepAnswer::Done { loss, states } = answer else {
            return answer;
        };
        let step = self.answered;
        self.answered += 1;
        let mut losses = self.claims.iter().filter_map(|it| it.losses.get(step));
        let claimed = losses.find(|claimed| is_loss_equal(**claimed, loss));
        let mut claims = self.claims.iter().zip(&self.states);
        let equal = made.and_then(|made| {
            claims.find(|(_, claimed)| are_states_equal(&self.from, claimed, made))
        });
        StepAnswer::Done {
            loss: claimed.copied().unwrap_or(loss),
            states: equal.map(|(claim, _)| claim.states.clone()).or(states),
        }
    }
}

fn is_loss_equal(left: LossBits, right: LossBits) -> bool {
    let number = |bits: LossBits| f64::from(f32::from_bits(bits.0));
    let (relative, besides) = LOSS_TOLERANCE;
    let scale = number(left).abs().max(number(right).abs());
    left == right || (number(left) - number(right)).abs() <= relative * scale + besides
}

/// Returns whether two providers made the same states of the same ones.
fn are_states_equal(
    from: &BTreeMap<String, Tensor>,
    left: &BTreeMap<String, Tensor>,
    right: &BTreeMap<String, Tensor>,
) -> bool {
    let is_equal = |(name, before): (&String, &Tensor)| {
        let (Some(left), Some(right)) = (left.get(name), right.get(name)) else {
            return false;
        };
        if left.id() == right.id() {
            return true;
        }
        let way = distance(before, left).zip(distance(before, right));
        let between = distance(left, right);
        way.zip(between)
            .is_some_and(|((left, right), between)| between <= STATES_TOLERANCE * left.max(right))
    };
    !left.is_empty() && from.iter().all(is_equal)
}

/// Returns the Euclidean distance of two tensors; none if they are not of floats in 32 bits and of
/// one size.
fn distance(left: &Tensor, right: &Tensor) -> Option<f64> {
    let (left, right) = (left.to_vec::<f32>().ok()?, right.to_vec::<f32>().ok()?);
    let pairs = left.iter().zip(&right);
    let squares = pairs.map(|(left, right)| (f64::from(*left) - f64::from(*right)).powi(2));
    (left.len() == right.len()).then(|| squares.sum::<f64>().sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(numbers: [f32; 4]) -> BTreeMap<String, Tensor> {
        let tensor = Tensor::from_vec([4], numbers.to_vec()).unwrap();
        [("parameters".to_owned(), tensor)].into()
    }

    fn bits(loss: f32) -> LossBits {
        LossBits(loss.to_bits())
    }

    fn claim(loss: f32, made: &BTreeMap<String, Tensor>) -> SegmentClaim {
        SegmentClaim {
            losses: vec![bits(loss)],
            states: state_ids(made),
        }
    }

    fn answer(loss: f32, made: &BTreeMap<String, Tensor>) -> StepAnswer {
        StepAnswer::Done {
            loss: bits(loss),
            states: Some(state_ids(made)),
        }
    }

    /// From these states, the steps of a claim moved each number by a thousandth.
    const FROM: [f32; 4] = [1.0, -1.0, 0.5, 0.25];
    const MADE: [f32; 4] = [1.001, -0.999, 0.501, 0.251];

    fn audited() -> AuditedSegment {
        let made = states(MADE);
        AuditedSegment::new(states(FROM), vec![claim(2.0, &made)], vec![made])
    }

    #[test]
    fn rounding_is_no_contradiction() {
        let rounded = MADE.map(|number| number * (1.0 + 2e-6));
        let found =
            audited().match_answer(answer(2.0001, &states(rounded)), Some(&states(rounded)));
        assert_eq!(found, answer(2.0, &states(MADE)), "the bits of the claim");
    }

    #[test]
    fn a_step_that_was_left_out_is_one_though_it_moves_little() {
        // One of eight equal steps.
        let mut fewer = FROM;
        for (number, made) in fewer.iter_mut().zip(MADE) {
            *number += (made - *number) * 7.0 / 8.0;
        }
        for other in [fewer, FROM] {
            let given = answer(2.0, &states(other));
            let found = audited().match_answer(given.clone(), Some(&states(other)));
            assert_eq!(found, given);
        }
    }

    #[test]
    fn another_loss_stays_another() {
        let given = answer(2.1, &states(MADE));
        let found = audited().match_answer(given.clone(), Some(&states(MADE)));
        assert_eq!(found, given);
        assert!(!is_loss_equal(bits(f32::NAN), bits(1.0)));
    }

    #[test]
    fn a_third_answer_gets_the_bits_of_the_claim_that_it_equals() {
        let (lie, right) = (states([3.0; 4]), states(MADE));
        let none = SegmentClaim {
            losses: Vec::new(),
            states: Vec::new(),
        };
        let claims = vec![claim(9.0, &lie), none, claim(2.0, &right)];
        let mut audited = AuditedSegment::new(states(FROM), claims, vec![lie, right]);
        let rounded = states(MADE.map(|number| number * (1.0 - 2e-6)));
        let found = audited.match_answer(answer(2.0, &rounded), Some(&rounded));
        assert_eq!(found, answer(2.0, &states(MADE)));
    }
}
