//! Stores the tokens of a sequence, and how many of them are in the caches of the open session. A
//! new session must get them again, `replay_tokens_max` at a time, before it can continue.

use serde::{Deserialize, Serialize};

use super::step::Step;

/// The tokens of a sequence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TokenHistory {
    tokens: Vec<u32>,
    /// The number of tokens that the open session has.
    held: usize,
    /// The most tokens of one step that replays them.
    replay_tokens_max: usize,
}

impl TokenHistory {
    /// Creates an empty history.
    pub fn new(replay_tokens_max: usize) -> TokenHistory {
        TokenHistory {
            tokens: Vec::new(),
            held: 0,
            replay_tokens_max: replay_tokens_max.max(1),
        }
    }

    /// Returns whether the tokens before position `after` are known here, or are in `before`.
    pub fn is_known_before(&self, before: &[u32], after: usize) -> bool {
        before.len().max(self.tokens.len()) >= after
    }

    /// Drops the tokens behind position `after`, and replaces those before it by `before`, if these
    /// are as many. Returns whether a token before it changed.
    pub fn go_back(&mut self, before: &[u32], after: usize) -> bool {
        let old = self.tokens.len().min(after);
        self.tokens.truncate(after);
        let mut same = old;
        if let Some(before) = before.get(..after) {
            let pairs = self.tokens.iter().zip(before);
            same = pairs.take_while(|(left, right)| left == right).count();
            self.tokens.truncate(same);
            self.tokens.extend_from_slice(&before[same..]);
        }
        self.held = self.held.min(same);
        same < old
    }

    /// Returns whether the open session has all tokens.
    pub fn is_whole(&self) -> bool {
        self.held == self.tokens.len()
    }

    /// Records that the open session is new and has no tokens.
    pub fn begin_anew(&mut self) {
        self.held = 0;
    }

    /// Returns the next step: which replays missing tokens if there are any, or else `adds`.
    pub fn next_step(&self, adds: &Step) -> Step {
        match self.tokens[self.held..]
            .chunks(self.replay_tokens_max)
            .next()
        {
            Some(replayed) => Step::for_last_token(replayed, self.held),
            None => adds.clone(),
        }
    }

    /// Records that the last step is done. Returns whether that was `adds`.
    pub fn on_done(&mut self, adds: &Step) -> bool {
        let missing = self.tokens.len() - self.held;
        let is_added = missing == 0;
        if is_added {
            self.tokens.extend(&adds.tokens);
            self.held = self.tokens.len();
        } else {
            self.held += missing.min(self.replay_tokens_max);
        }
        is_added
    }
}
