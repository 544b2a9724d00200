//! Converts generation steps between the types of `souk_llm` and those of the session core, which
//! encodes sampling settings as a list of u64. It also compares the outputs of a step with those of
//! another session, and its sampled tokens with its own logits.

use std::collections::BTreeMap;

use souk_llm::decoder::{LOGITS, SAMPLED_TOKENS, TOKENS};
use souk_llm::generation::Step;
use souk_llm::sampling::{SampleError, Sampling};
use souk_node::memory::Tensor;
use souk_roles::session;

/// Maximum difference between two logits of honest providers, relative to the largest logit:
/// kernels that quantise rows to bytes round differently from those that use floats.
const TOLERANCE: f32 = 0.02;

/// Outputs of a step, by name.
pub type StepOutputs = BTreeMap<String, Tensor>;

/// Converts a step for the core.
///
/// # Errors
/// [`SampleError`] if the numbers of the step's sampling denote no settings.
pub fn to_core_step(step: Step) -> Result<session::Step, SampleError> {
    let (sampling, _) = Sampling::from_numbers(&step.sampling)?;
    let numbers = sampling.to_numbers(0);
    // The core encodes greedy sampling as an empty list, and compares steps for equality.
    let is_greedy = numbers == Sampling::default().to_numbers(0);
    let numbers = if is_greedy { Vec::new() } else { numbers };
    Ok(session::Step {
        after: step.after,
        tokens: step.tokens,
        rows: step.rows,
        logit_rows: step.logit_rows,
        sampling: numbers.into_iter().map(f64::to_bits).collect(),
    })
}

/// Converts a step of the core for the decoder.
fn to_decoder_step(step: session::Step) -> Result<Step, SampleError> {
    let numbers: Vec<f64> = step.sampling.iter().copied().map(f64::from_bits).collect();
    // The core encodes greedy sampling as an empty list.
    let sampling = match numbers.is_empty() {
        true => Sampling::default(),
        false => Sampling::from_numbers(&numbers)?.0,
    };
    // The sampled token follows the token of its row, so its position is one further.
    let position = step.after + step.rows.first().map_or(0, |row| row + 1);
    Ok(Step {
        after: step.after,
        tokens: step.tokens,
        rows: step.rows,
        logit_rows: step.logit_rows,
        sampling: sampling.to_numbers(position as u64),
    })
}

/// Returns the decoder's inputs for a step of the core.
///
/// # Errors
/// [`SampleError`] if the step's list encodes no sampling.
pub fn step_inputs(step: session::Step) -> Result<BTreeMap<String, Tensor>, SampleError> {
    let step = to_decoder_step(step)?;
    let mut inputs = step.decoder_inputs();
    if !step.has_known_tokens() {
        inputs.remove(TOKENS);
    }
    Ok(inputs)
}

/// Returns the tokens that the decoder sampled in a step, one for each row.
pub fn sampled_tokens(outputs: &StepOutputs) -> Vec<i64> {
    let tokens = outputs.get(SAMPLED_TOKENS);
    let tokens = tokens.and_then(|tensor| tensor.to_vec::<i64>().ok());
    tokens.unwrap_or_default()
}

/// Returns whether the logits of two outputs are equal within the tolerance. If `rows` is given,
/// `left` has only these rows of `right`.
pub fn are_logits_close(left: &StepOutputs, right: &StepOutputs, rows: Option<&[usize]>) -> bool {
    let all = logits(right);
    let expected = match rows {
        None => all,
        Some(rows) => {
            let vocabulary_size = all.len() / sampled_tokens(right).len().max(1);
            let row = |row: &usize| all.get(row * vocabulary_size..(row + 1) * vocabulary_size);
            let selected: Option<Vec<&[f32]>> = rows.iter().map(row).collect();
            match selected {
                Some(selected) => selected.concat(),
                None => return false,
            }
        }
    };
    is_close(&logits(left), &expected)
}

/// Returns whether sampling the logits again gives the tokens of the outputs.
pub fn are_tokens_sampled_from_logits(outputs: &StepOutputs, step: session::Step) -> bool {
    let Ok(step) = to_decoder_step(step) else {
        return false;
    };
    let (tokens, logits) = (sampled_tokens(outputs), logits(outputs));
    let Ok((sampling, position)) = Sampling::from_numbers(&step.sampling) else {
        return false;
    };
    let rows = tokens.len();
    if rows == 0
        || rows != step.rows.len()
        || logits.is_empty()
        || !logits.len().is_multiple_of(rows)
    {
        return false;
    }
    let vocabulary_size = logits.len() / rows;
    let row_logits = logits.chunks_exact(vocabulary_size);
    let mut samples = tokens.iter().zip(row_logits).zip(position..);
    samples.all(|((token, row_logits), position)| {
        let expected = sampling.draw_at(row_logits, position);
        expected.is_ok_and(|expected| i64::from(expected) == *token)
    })
}

fn logits(outputs: &StepOutputs) -> Vec<f32> {
    let logits = outputs.get(LOGITS);
    let logits = logits.and_then(|tensor| tensor.to_vec::<f32>().ok());
    logits.unwrap_or_default()
}

/// Returns whether logits are equal within the tolerance.
fn is_close(a: &[f32], b: &[f32]) -> bool {
    let finite = a.iter().chain(b).filter(|logit| logit.is_finite());
    let max_abs = finite.fold(0.0_f32, |max, logit| max.max(logit.abs()));
    let limit = TOLERANCE * max_abs;
    // Infinite logits are close only if they are equal.
    let is_near = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= limit;
    a.len() == b.len() && a.iter().zip(b).all(is_near)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(tokens: &[i64], logits: &[f32]) -> StepOutputs {
        let tokens = Tensor::from_vec([1, tokens.len()], tokens.to_vec()).unwrap();
        let logits = Tensor::from_vec([logits.len()], logits.to_vec()).unwrap();
        BTreeMap::from([
            (SAMPLED_TOKENS.to_owned(), tokens),
            (LOGITS.to_owned(), logits),
        ])
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
        let restored = to_decoder_step(core_step(step.clone()));
        assert_eq!(restored, Ok(step.clone()));
        // The core continues it as the decoder does.
        let next = core_step(step.clone()).after_it().unwrap();
        assert_eq!(to_decoder_step(next), Ok(step.after_it().unwrap()));
        let greedy = session::Step::for_last_token(&[5, 6], 3);
        assert_eq!(core_step(Step::for_last_token(&[5, 6], 3)), greedy);
        let restored = to_decoder_step(greedy);
        assert_eq!(restored, Ok(Step::for_last_token(&[5, 6], 3)));
    }

    #[test]
    fn a_list_that_encodes_no_sampling_is_an_error_and_not_greedy() {
        let invalid = session::Step {
            sampling: vec![1],
            ..session::Step::for_last_token(&[5, 6], 3)
        };
        let refused = Err(SampleError::Numbers(1));
        assert_eq!(step_inputs(invalid.clone()).map(|_| ()), refused);
        let greedy = outputs(&[1], &[0.0, 2.0, 1.0]);
        assert!(!are_tokens_sampled_from_logits(&greedy, invalid));
    }

    #[test]
    fn a_step_whose_token_is_unknown_has_no_tokens_among_its_inputs() {
        let step = core_step(Step::for_last_token(&[5, 6], 0));
        let has_tokens = |step| step_inputs(step).unwrap().contains_key(TOKENS);
        assert!(has_tokens(step.clone()));
        assert!(!has_tokens(step.after_it().unwrap()));
    }

    #[test]
    fn logits_are_close_if_they_differ_by_rounding_relative_to_the_largest() {
        assert!(is_close(&[10.0, 1.0], &[10.1, 0.9]));
        assert!(!is_close(&[10.0, 1.0], &[10.0, 1.3]));
        assert!(
            !is_close(&[10.0], &[10.0, 1.0]),
            "another size of vocabulary"
        );
        assert!(!is_close(&[f32::NAN], &[f32::NAN]));
        let lowest = f32::NEG_INFINITY;
        assert!(is_close(&[1.0, lowest], &[1.0, lowest]));
    }

    #[test]
    fn logits_of_selected_rows_are_compared_with_the_same_rows() {
        let all = outputs(&[1, 0], &[0.0, 2.0, 3.0, 1.0]);
        let second = outputs(&[0], &[3.0, 1.0]);
        assert!(are_logits_close(&second, &all, Some(&[1])));
        assert!(!are_logits_close(&second, &all, Some(&[0])));
        assert!(
            !are_logits_close(&second, &all, Some(&[2])),
            "there are only two rows"
        );
        assert!(!are_logits_close(&second, &all, None));
        assert!(are_logits_close(&all, &all, None));
    }

    #[test]
    fn a_token_that_its_logits_do_not_give_is_detected() {
        let step = core_step(Step::for_last_token(&[5, 6], 0).with_logits());
        let is_honest = |tokens: &[i64], logits: &[f32]| {
            are_tokens_sampled_from_logits(&outputs(tokens, logits), step.clone())
        };
        assert!(is_honest(&[1], &[0.0, 2.0, 1.0]));
        assert!(!is_honest(&[2], &[0.0, 2.0, 1.0]));
        assert!(!is_honest(&[1], &[]), "without logits");
        // With a seed, a sample depends on its position.
        let sampling = Sampling {
            temperature: 1.0,
            seed: 9,
            ..Sampling::default()
        };
        let logits = [0.5, 0.4, 0.3, 0.2];
        let step = core_step(Step::for_last_token(&[5, 6], 0).with_sampling(&sampling));
        let step = step.with_logits();
        let expected = sampling.draw_at(&logits, 2).unwrap();
        let with_token = |token: u32| outputs(&[i64::from(token)], &logits);
        let honest = with_token(expected);
        assert!(are_tokens_sampled_from_logits(&honest, step.clone()));
        let false_token = with_token((expected + 1) % 4);
        assert!(!are_tokens_sampled_from_logits(&false_token, step));
    }
}
