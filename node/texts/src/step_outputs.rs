//! Converts the steps of a text between the decoder's tensors and the session core's numbers, and
//! compares the outputs that two sessions computed for the same step.

use std::collections::BTreeMap;

use souk_llm::decoder::{DRAWN, LOGITS, TOKENS};
use souk_llm::generation::Step;
use souk_llm::sampling::Sampling;
use souk_node::memory::Tensor;
use souk_roles::session;

/// Largest difference between two logits of honest providers, relative to the largest logit:
/// kernels that quantise rows to bytes round differently from those that use floats.
const TOLERANCE: f32 = 0.02;

/// Outputs of a step, by name.
pub type StepOutputs = BTreeMap<String, Tensor>;

/// Returns a step as the core knows it, or `None` if its numbers describe no sampling.
pub fn to_core_step(step: Step) -> Option<session::Step> {
    let (sampling, _) = Sampling::from_numbers(&step.sampling).ok()?;
    let numbers = sampling.to_numbers(0);
    // The core writes the likeliest token as no numbers, and compares steps.
    let is_default = numbers == Sampling::default().to_numbers(0);
    let numbers = if is_default { Vec::new() } else { numbers };
    Some(session::Step {
        after: step.after,
        tokens: step.tokens,
        rows: step.rows,
        logit_rows: step.logit_rows,
        sampling: numbers.into_iter().map(f64::to_bits).collect(),
    })
}

/// Returns a step of the core as the decoder knows it.
fn to_decoder_step(step: session::Step) -> Step {
    let numbers: Vec<f64> = step.sampling.iter().copied().map(f64::from_bits).collect();
    // A step of the core itself has no numbers, and draws the likeliest token.
    let sampling = Sampling::from_numbers(&numbers).map_or_else(|_| Sampling::default(), |it| it.0);
    let position = step.after + step.rows.first().map_or(0, |row| row + 1);
    Step {
        after: step.after,
        tokens: step.tokens,
        rows: step.rows,
        logit_rows: step.logit_rows,
        sampling: sampling.to_numbers(position as u64),
    }
}

/// Returns the decoder's inputs for a step of the core.
pub fn step_inputs(step: session::Step) -> BTreeMap<String, Tensor> {
    let step = to_decoder_step(step);
    let mut inputs = step.decoder_inputs();
    if !step.is_known() {
        inputs.remove(TOKENS);
    }
    inputs
}

/// Returns the tokens that a step drew, one for each row.
pub fn drawn_tokens(outputs: &StepOutputs) -> Vec<i64> {
    let drawn = outputs.get(DRAWN).and_then(|it| it.to_vec::<i64>().ok());
    drawn.unwrap_or_default()
}

/// Returns whether the logits of two outputs are equal within the tolerance. `rows` selects the
/// rows of `right` that `left` has.
pub fn are_logits_close(left: &StepOutputs, right: &StepOutputs, rows: Option<&[usize]>) -> bool {
    let all = logits(right);
    let right = match rows {
        None => all,
        Some(rows) => {
            let width = all.len() / drawn_tokens(right).len().max(1);
            let row = |row: &usize| all.get(row * width..(row + 1) * width);
            let found: Option<Vec<&[f32]>> = rows.iter().map(row).collect();
            match found {
                Some(found) => found.concat(),
                None => return false,
            }
        }
    };
    is_close(&logits(left), &right)
}

/// Returns whether each drawn token is the one that its logits draw.
pub fn is_drawn_from_logits(outputs: &StepOutputs, step: session::Step) -> bool {
    let step = to_decoder_step(step);
    let (drawn, logits) = (drawn_tokens(outputs), logits(outputs));
    let Ok((sampling, position)) = Sampling::from_numbers(&step.sampling) else {
        return false;
    };
    let rows = drawn.len();
    if rows == 0
        || rows != step.rows.len()
        || logits.is_empty()
        || !logits.len().is_multiple_of(rows)
    {
        return false;
    }
    let each = logits.chunks_exact(logits.len() / rows);
    let mut drawn = drawn.iter().zip(each).zip(position..);
    drawn.all(|((token, logits), position)| {
        let right = sampling.draw_at(logits, position);
        right.is_ok_and(|right| i64::from(right) == *token)
    })
}

fn logits(outputs: &StepOutputs) -> Vec<f32> {
    let logits = outputs.get(LOGITS).and_then(|it| it.to_vec::<f32>().ok());
    logits.unwrap_or_default()
}

/// Returns whether logits are equal within the tolerance.
fn is_close(a: &[f32], b: &[f32]) -> bool {
    let finite = a.iter().chain(b).filter(|it| it.is_finite());
    let most = TOLERANCE * finite.fold(0.0_f32, |most, it| most.max(it.abs()));
    let same = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= most;
    a.len() == b.len() && a.iter().zip(b).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(drawn: &[i64], logits: &[f32]) -> StepOutputs {
        let drawn = Tensor::from_vec([1, drawn.len()], drawn.to_vec()).unwrap();
        let logits = Tensor::from_vec([logits.len()], logits.to_vec()).unwrap();
        BTreeMap::from([(DRAWN.to_owned(), drawn), (LOGITS.to_owned(), logits)])
    }

    fn core_step(step: Step) -> session::Step {
        to_core_step(step).unwrap()
    }

    #[test]
    fn a_step_comes_back_from_the_core_as_it_was() {
        let sampling = Sampling {
            temperature: 0.7,
            top_k: 5,
            seed: 9,
            ..Sampling::default()
        };
        let step = Step::for_last_token(&[5, 6], 3).with_sampling(&sampling);
        assert_eq!(to_decoder_step(core_step(step.clone())), step);
        // The core continues it as the decoder does.
        let next = core_step(step.clone()).after_it().unwrap();
        assert_eq!(to_decoder_step(next), step.after_it().unwrap());
        let own = session::Step::for_last_token(&[5, 6], 3);
        assert_eq!(core_step(Step::for_last_token(&[5, 6], 3)), own);
        assert_eq!(to_decoder_step(own), Step::for_last_token(&[5, 6], 3));
    }

    #[test]
    fn a_step_whose_token_is_unknown_has_no_tokens_among_its_inputs() {
        let step = core_step(Step::for_last_token(&[5, 6], 0));
        assert!(step_inputs(step.clone()).contains_key(TOKENS));
        assert!(!step_inputs(step.after_it().unwrap()).contains_key(TOKENS));
    }

    #[test]
    fn logits_are_the_same_up_to_rounding_in_parts_of_the_largest() {
        assert!(is_close(&[10.0, 1.0], &[10.1, 0.9]));
        assert!(!is_close(&[10.0, 1.0], &[10.0, 1.3]));
        assert!(!is_close(&[10.0], &[10.0, 1.0]), "of another vocabulary");
        assert!(!is_close(&[f32::NAN], &[f32::NAN]));
        let lowest = f32::NEG_INFINITY;
        assert!(is_close(&[1.0, lowest], &[1.0, lowest]));
    }

    #[test]
    fn rows_of_logits_are_compared_with_those_that_they_are() {
        let all = outputs(&[1, 0], &[0.0, 2.0, 3.0, 1.0]);
        let second = outputs(&[0], &[3.0, 1.0]);
        assert!(are_logits_close(&second, &all, Some(&[1])));
        assert!(!are_logits_close(&second, &all, Some(&[0])));
        assert!(
            !are_logits_close(&second, &all, Some(&[2])),
            "there is none"
        );
        assert!(!are_logits_close(&second, &all, None));
        assert!(are_logits_close(&all, &all, None));
    }

    #[test]
    fn a_token_that_its_logits_do_not_draw_is_a_lie() {
        let step = core_step(Step::for_last_token(&[5, 6], 0).with_logits());
        let is_true = |drawn: &[i64], logits: &[f32]| {
            is_drawn_from_logits(&outputs(drawn, logits), step.clone())
        };
        assert!(is_true(&[1], &[0.0, 2.0, 1.0]));
        assert!(!is_true(&[2], &[0.0, 2.0, 1.0]));
        assert!(!is_true(&[1], &[]), "and one of no logits");
        // Drawn by a seed, at its own position.
        let sampling = Sampling {
            temperature: 1.0,
            seed: 9,
            ..Sampling::default()
        };
        let logits = [0.5, 0.4, 0.3, 0.2];
        let step = core_step(Step::for_last_token(&[5, 6], 0).with_sampling(&sampling));
        let step = step.with_logits();
        let right = sampling.draw_at(&logits, 2).unwrap();
        let of = |token: u32| outputs(&[i64::from(token)], &logits);
        assert!(is_drawn_from_logits(&of(right), step.clone()));
        assert!(!is_drawn_from_logits(&of((right + 1) % 4), step));
    }
}
