//! Describes a step, the request for one run of a decoder, and converts it to the decoder's input
//! tensors. A step holds the new tokens, the rows for which the decoder draws a token, and the
//! settings of drawing.

use std::collections::BTreeMap;

use souk_memory::Tensor;

use crate::decoder::{LENGTH, LOGIT_ROWS, POSITIONS, ROWS, SAMPLING, TOKENS, WRITE};
use crate::sampling::Sampling;

/// Tokens to add to a sequence, and the outputs wanted after them.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Position of the first token; the caches' later contents no longer count.
    pub after: usize,
    /// Tokens to add; empty if not known yet.
    pub tokens: Vec<u32>,
    /// Indices of the tokens after which the decoder draws a token. They must be below the number
    /// of tokens, or 0 if the token is not known yet.
    pub rows: Vec<usize>,
    /// Indices among those rows whose logits the decoder returns.
    pub logit_rows: Vec<usize>,
    /// How tokens are drawn, as [`Sampling::to_numbers`].
    pub sampling: Vec<f64>,
}

impl Step {
    fn new(tokens: &[u32], after: usize, rows: Vec<usize>) -> Self {
        let position = after + rows.first().map_or(0, |row| row + 1);
        Self {
            after,
            tokens: tokens.to_vec(),
            rows,
            logit_rows: Vec::new(),
            sampling: Sampling::default().to_numbers(position as u64),
        }
    }

    /// Returns a step that draws the likeliest token after the last one.
    #[must_use]
    pub fn for_last_token(tokens: &[u32], after: usize) -> Self {
        Self::new(tokens, after, vec![tokens.len().saturating_sub(1)])
    }

    /// Returns a step that draws the likeliest token after each one.
    #[must_use]
    pub fn for_all_tokens(tokens: &[u32], after: usize) -> Self {
        Self::new(tokens, after, (0..tokens.len()).collect())
    }

    /// Returns this step with the logits of all rows.
    #[must_use]
    pub fn with_logits(self) -> Self {
        let logit_rows = (0..self.rows.len()).collect();
        Self { logit_rows, ..self }
    }

    /// Returns this step with tokens drawn by `sampling`, without its penalties.
    #[must_use]
    pub fn with_sampling(self, sampling: &Sampling) -> Self {
        let position = self.after + self.rows.first().map_or(0, |row| row + 1);
        let sampling = sampling.to_numbers(position as u64);
        Self { sampling, ..self }
    }

    /// Returns the step that continues with the token that this one draws, if it draws one after
    /// its last token. The new step's token is not known yet.
    #[must_use]
    pub fn after_it(&self) -> Option<Self> {
        let count = self.tokens.len().max(1);
        let (sampling, position) = Sampling::from_numbers(&self.sampling).ok()?;
        (self.rows == [count - 1] && self.logit_rows.is_empty()).then(|| Self {
            after: self.after + count,
            tokens: Vec::new(),
            rows: vec![0],
            logit_rows: Vec::new(),
            sampling: sampling.to_numbers(position + 1),
        })
    }

    /// Returns whether the step's tokens are known; otherwise the step before it samples its token.
    #[must_use]
    pub fn has_known_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Returns the decoder's inputs for the step. An unknown token is 0.
    #[must_use]
    pub fn decoder_inputs(&self) -> BTreeMap<String, Tensor> {
        let integers = |dims: &[usize], values: Vec<i64>| {
            Tensor::from_vec(dims, values).expect("as many as the sizes say")
        };
        let places = |rows: &[usize]| {
            let places = rows.iter().map(|&row| row as i64).collect();
            integers(&[rows.len()], places)
        };
        let unknown = [0];
        let tokens = match self.has_known_tokens() {
            true => &self.tokens[..],
            false => &unknown,
        };
        let (each, next) = (tokens.len(), self.after + tokens.len());
        let ids = tokens.iter().map(|&token| i64::from(token)).collect();
        let positions = (self.after..next).map(|at| at as i64).collect();
        let numbers = Tensor::from_vec([self.sampling.len()], self.sampling.clone());
        let inputs = [
            (TOKENS, integers(&[1, each], ids)),
            (POSITIONS, integers(&[1, each], positions)),
            (WRITE, places(&[self.after])),
            (LENGTH, places(&[next])),
            (ROWS, places(&self.rows)),
            (LOGIT_ROWS, places(&self.logit_rows)),
            (SAMPLING, numbers.expect("as many as there are")),
        ];
        inputs
            .map(|(name, tensor)| (name.to_owned(), tensor))
            .into()
    }

    /// Returns the step that these inputs encode.
    #[must_use]
    pub fn of_inputs(inputs: &BTreeMap<String, Tensor>) -> Self {
        let integers = |name: &str| {
            let values = inputs.get(name).and_then(|it| it.to_vec::<i64>().ok());
            let values = values.unwrap_or_default().into_iter();
            values.filter_map(|it| usize::try_from(it).ok())
        };
        let tokens = integers(TOKENS).filter_map(|it| u32::try_from(it).ok());
        let sampling = inputs.get(SAMPLING).and_then(|it| it.to_vec().ok());
        Self {
            after: integers(WRITE).next().unwrap_or_default(),
            tokens: tokens.collect(),
            rows: integers(ROWS).collect(),
            logit_rows: integers(LOGIT_ROWS).collect(),
            sampling: sampling.unwrap_or_default(),
        }
    }
}

/// Returns the decoder's inputs that add tokens at position `after` and return the logits of
/// `rows`.
#[must_use]
pub fn step_inputs(tokens: &[u32], after: usize, rows: &[usize]) -> BTreeMap<String, Tensor> {
    Step::new(tokens, after, rows.to_vec())
        .with_logits()
        .decoder_inputs()
}
