//! Guesses the next tokens of a text (a draft) by copying from earlier in the text. A step with a
//! draft returns the logits after each of its tokens, so correct tokens need no step of their own.

/// Lengths of the text's ending that the draft looks for earlier in the text, the longest first.
const ENDS: [usize; 3] = [4, 3, 2];

/// Tokens of the first draft.
const FIRST: usize = 4;

/// Drafts of one text.
pub(super) struct Drafts {
    most: usize,
    /// Length of the next draft: it grows by the tokens that were right before.
    reach: usize,
    drafted: usize,
    accepted: usize,
}

impl Drafts {
    /// Creates drafts of at most this many tokens.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            reach: FIRST.min(most),
            drafted: 0,
            accepted: 0,
        }
    }

    /// Returns a guess of the next tokens: those that followed the last occurrence of the text's
    /// ending.
    pub(super) fn draft_tokens(&self, text: &[u32], most: usize) -> Vec<u32> {
        let length = self.reach.min(most);
        let mut found = ENDS.iter().filter_map(|end| after_the_like(text, *end));
        let Some(begin) = found.next() else {
            return Vec::new();
        };
        let mut draft = Vec::with_capacity(length);
        for at in begin..begin + length {
            // A repeating text is likely to keep repeating.
            draft.push(match text.get(at) {
                Some(token) => *token,
                None => draft[at - text.len()],
            });
        }
        draft
    }

    /// Records how many tokens of a draft were right.
    pub(super) fn record_result(&mut self, drafted: usize, right: usize) {
        if drafted == 0 {
            return;
        }
        self.drafted += drafted;
        self.accepted += right;
        let next = match right == drafted {
            true => self.reach * 2,
            false => right + 1,
        };
        self.reach = next.min(self.most);
    }

    /// Returns the number of drafted tokens, and of those that were right.
    pub(super) fn draft_counts(&self) -> (usize, usize) {
        (self.drafted, self.accepted)
    }
}

/// Returns the position after the latest earlier occurrence of the text's ending.
fn after_the_like(text: &[u32], length: usize) -> Option<usize> {
    let rest = text.len().checked_sub(length)?;
    let mut windows = text[..text.len() - 1].windows(length);
    windows
        .rposition(|window| window == &text[rest..])
        .map(|at| at + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_last_time_is_drafted() {
        let drafts = Drafts::new(8);
        assert_eq!(
            drafts.draft_tokens(&[1, 2, 3, 4, 5, 9, 1, 2], 8),
            [3, 4, 5, 9]
        );
        assert_eq!(drafts.draft_tokens(&[1, 2, 3, 4, 5, 9, 1, 2], 2), [3, 4]);
        // The nearest of two, and the longest end first.
        assert_eq!(drafts.draft_tokens(&[1, 2, 3, 1, 2, 4, 1, 2], 1), [4]);
        assert_eq!(drafts.draft_tokens(&[7, 1, 2, 3, 1, 2, 4, 7, 1, 2], 1), [3]);
        // What repeats goes on.
        assert_eq!(drafts.draft_tokens(&[5, 6, 5, 6, 5, 6], 4), [5, 6, 5, 6]);
        assert!(drafts.draft_tokens(&[1, 2, 3, 4], 8).is_empty());
        assert!(drafts.draft_tokens(&[], 8).is_empty());
    }

    #[test]
    fn drafts_reach_as_far_as_they_were_right() {
        let mut drafts = Drafts::new(16);
        drafts.record_result(4, 4);
        drafts.record_result(8, 8);
        assert_eq!(drafts.reach, 16);
        drafts.record_result(16, 2);
        assert_eq!(drafts.reach, 3);
        drafts.record_result(3, 0);
        assert_eq!((drafts.reach, drafts.draft_counts()), (1, (31, 14)));
        let none = Drafts::new(0);
        assert!(none.draft_tokens(&[5, 6, 5, 6], 4).is_empty());
    }
}
