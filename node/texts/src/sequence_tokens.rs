//! The tokens of a sequence, and how many of them are in the caches of the open session.
//!
//! They are the source of truth: a new session must get them again in chunks before it can
//! continue.

use souk_llm::generation::{CHUNK, Step};

/// The tokens of a sequence.
#[derive(Default)]
pub struct TokenHistory {
    tokens: Vec<u32>,
    /// Number of tokens that the open session has.
    held: usize,
}

impl TokenHistory {
    /// Drops the tokens behind position `after`.
    pub fn go_back(&mut self, after: usize) {
        self.tokens.truncate(after);
        self.held = self.held.min(after);
    }

    /// Returns whether the open session has all tokens.
    pub fn is_whole(&self) -> bool {
        self.held == self.tokens.len()
    }

    /// Replaces the tokens by those before the next step, if these are more.
    pub fn extend_tokens(&mut self, tokens: &[u32]) {
        if tokens.len() > self.tokens.len() {
            self.tokens = tokens.to_vec();
        }
    }

    /// Records that the open session is new and has no tokens.
    pub fn begin_anew(&mut self) {
        self.held = 0;
    }

    /// Returns the next step: a chunk of the missing tokens, or else `adds`.
    pub fn next(&self, adds: &Step) -> Step {
        match self.tokens[self.held..].chunks(CHUNK).next() {
            Some(chunk) => Step::for_last_token(chunk, self.held),
            None => adds.clone(),
        }
    }

    /// Records that the last step is done; returns whether that was `adds`.
    pub fn on_done(&mut self, adds: &Step) -> bool {
        let missing = self.tokens.len() - self.held;
        let is_added = missing == 0;
        if is_added {
            self.tokens.extend(&adds.tokens);
            self.held = self.tokens.len();
        } else {
            self.held += missing.min(CHUNK);
        }
        is_added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_begins_anew_is_given_all_tokens_once_before_what_is_added() {
        let mut told = TokenHistory::default();
        let first = Step::for_last_token(&[7; 300], 0);
        assert!(told.on_done(&first));
        let next = Step::for_last_token(&[8], 300).with_logits();
        assert_eq!(told.next(&next), next);
        told.begin_anew();
        for (after, count) in [(0, CHUNK), (CHUNK, 300 - CHUNK)] {
            let asked = told.next(&next);
            assert_eq!((asked.after, asked.tokens.len()), (after, count));
            assert!(!told.on_done(&next));
        }
        assert_eq!(told.next(&next), next);
        assert!(told.on_done(&next));
        told.go_back(2);
        let next = Step::for_last_token(&[9], 2);
        assert_eq!(told.next(&next), next);
    }
}
