//! A step: a request to a session to add tokens to one sequence of a language model and to draw the
//! next ones. Callers build it, and the core compares it with the steps that it sent ahead.

use serde::{Deserialize, Serialize};

/// Tokens to add to a sequence, and the outputs wanted after them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The position of the first token; the caches' later contents no longer count.
    pub after: usize,
    /// The tokens to add; empty for the one token that the step before draws.
    pub tokens: Vec<u32>,
    /// The indices of the tokens after which the decoder draws a token.
    pub rows: Vec<usize>,
    /// The indices among `rows` whose logits the decoder returns.
    pub logit_rows: Vec<usize>,
    /// How the decoder draws tokens, as bits that the core only compares; empty for the likeliest
    /// token. The position is not part of it, because it is always that after the first row.
    pub sampling: Vec<u64>,
}

impl Step {
    /// Returns a step that draws the likeliest token after the last one.
    #[must_use]
    pub fn for_last_token(tokens: &[u32], after: usize) -> Step {
        Step {
            after,
            tokens: tokens.to_vec(),
            rows: vec![tokens.len().saturating_sub(1)],
            logit_rows: Vec::new(),
            sampling: Vec::new(),
        }
    }

    /// Returns this step with the logits of all rows.
    #[must_use]
    pub fn with_logits(self) -> Step {
        let logit_rows = (0..self.rows.len()).collect();
        Step { logit_rows, ..self }
    }

    /// Returns the step that continues with the token that this one draws, if it draws one after
    /// its last token. The new step's token is not known yet.
    #[must_use]
    pub fn after_it(&self) -> Option<Step> {
        let count = self.tokens.len().max(1);
        (self.rows == [count - 1] && self.logit_rows.is_empty()).then(|| Step {
            after: self.after + count,
            tokens: Vec::new(),
            rows: vec![0],
            logit_rows: Vec::new(),
            sampling: self.sampling.clone(),
        })
    }

    /// Returns whether the step's tokens are known.
    #[must_use]
    pub fn has_known_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Returns the position after the step's last token.
    pub(super) fn end_position(&self) -> usize {
        self.after + self.tokens.len()
    }
}
