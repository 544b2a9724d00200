//! The tokens of a sequence, and which of them the session that is open has in its caches.
//!
//! They are the truth: a session that begins anew is given them again, a piece at a time, before it
//! goes on.

use souk_llm::generation::{CHUNK, Step};

/// The tokens of a sequence.
#[derive(Default)]
pub struct ToldTokens {
    tokens: Vec<u32>,
    /// How many of them the open session has.
    held: usize,
}

impl ToldTokens {
    /// Goes back to where something is added.
    pub fn go_back(&mut self, after: usize) {
        self.tokens.truncate(after);
        self.held = self.held.min(after);
    }

    /// Whether the open session has all of them.
    pub fn is_whole(&self) -> bool {
        self.held == self.tokens.len()
    }

    /// What comes before the next step, where another session was told it.
    pub fn remember(&mut self, tokens: &[u32]) {
        if tokens.len() > self.tokens.len() {
            self.tokens = tokens.to_vec();
        }
    }

    /// Another session is open, which has none.
    pub fn begin_anew(&mut self) {
        self.held = 0;
    }

    /// What the session is asked next: to have what it has not, else to add.
    pub fn next(&self, adds: &Step) -> Step {
        match self.tokens[self.held..].chunks(CHUNK).next() {
            Some(chunk) => Step::last(chunk, self.held),
            None => adds.clone(),
        }
    }

    /// It has what it was asked for; whether that was what is added.
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
        let mut told = ToldTokens::default();
        let first = Step::last(&[7; 300], 0);
        assert!(told.on_done(&first));
        let next = Step::last(&[8], 300).told();
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
        let next = Step::last(&[9], 2);
        assert_eq!(told.next(&next), next);
    }
}
