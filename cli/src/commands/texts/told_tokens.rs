//! The tokens of a sequence, and which of them the session that is open has in its caches.
//!
//! They are the truth: a session that begins anew is given them again, a piece at a time, before it
//! goes on.

use std::collections::BTreeMap;

use souk_llm::decoder::{ROWS, TOKENS, WRITE};
use souk_llm::generation::{CHUNK, inputs};
use souk_node::memory::Tensor;

/// Tokens that are to be added, and after which of them logits are wanted.
#[derive(Clone, Debug)]
pub struct Addition {
    /// Where they begin; what came after that no longer counts.
    pub after: usize,
    pub tokens: Vec<u32>,
    pub rows: Vec<usize>,
}

impl Addition {
    /// As a decoder is asked for it.
    pub fn of(inputs: &BTreeMap<String, Tensor>) -> Self {
        let integers = |name: &str| {
            let values = inputs.get(name).and_then(|it| it.to_vec::<i64>().ok());
            let values = values.unwrap_or_default().into_iter();
            values.filter_map(|it| usize::try_from(it).ok())
        };
        let tokens = integers(TOKENS).filter_map(|it| u32::try_from(it).ok());
        Self {
            after: integers(WRITE).next().unwrap_or_default(),
            tokens: tokens.collect(),
            rows: integers(ROWS).collect(),
        }
    }
}

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

    /// Another session is open, which has none.
    pub fn begin_anew(&mut self) {
        self.held = 0;
    }

    /// What the session is asked next: to have what it has not, else to add.
    pub fn next(&self, adds: &Addition) -> BTreeMap<String, Tensor> {
        match self.tokens[self.held..].chunks(CHUNK).next() {
            Some(chunk) => inputs(chunk, self.held, &[chunk.len() - 1]),
            None => inputs(&adds.tokens, self.held, &adds.rows),
        }
    }

    /// It has what it was asked for; whether that was what is added.
    pub fn on_done(&mut self, adds: &Addition) -> bool {
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

    fn adds(after: usize, tokens: &[u32]) -> Addition {
        let (tokens, rows) = (tokens.to_vec(), vec![tokens.len() - 1]);
        Addition {
            after,
            tokens,
            rows,
        }
    }

    #[test]
    fn a_session_that_begins_anew_is_given_all_tokens_once_before_what_is_added() {
        let mut told = ToldTokens::default();
        let first = adds(0, &[7; 300]);
        assert!(told.on_done(&first));
        let next = adds(300, &[8]);
        assert!(Addition::of(&told.next(&next)).tokens == [8]);
        told.begin_anew();
        for (after, count) in [(0, CHUNK), (CHUNK, 300 - CHUNK)] {
            let asked = Addition::of(&told.next(&next));
            assert_eq!((asked.after, asked.tokens.len()), (after, count));
            assert!(!told.on_done(&next));
        }
        let asked = Addition::of(&told.next(&next));
        assert_eq!(
            (asked.after, asked.tokens, asked.rows),
            (300, vec![8], vec![0])
        );
        assert!(told.on_done(&next));
        told.go_back(2);
        let asked = Addition::of(&told.next(&adds(2, &[9])));
        assert_eq!((asked.after, asked.tokens), (2, vec![9]));
    }
}
