//! Drafts: what a text might go on with, looked up in what it said before. A step that carries a
//! draft gives the logits after each of its tokens, so those that are right cost no step of theirs.

/// Tokens at the end of a text that are looked for earlier in it, the longest first.
const ENDS: [usize; 3] = [4, 3, 2];

/// Tokens of the first draft.
const FIRST: usize = 4;

/// Drafts of one text.
pub(super) struct Drafts {
    most: usize,
    /// Tokens of the next: as many more as were right before.
    reach: usize,
    drafted: usize,
    accepted: usize,
}

impl Drafts {
    /// Of so many tokens at most.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            reach: FIRST.min(most),
            drafted: 0,
            accepted: 0,
        }
    }

    /// Tokens that a text may go on with: those that followed when it last ended as it does now.
    pub(super) fn draft(&self, text: &[u32], most: usize) -> Vec<u32> {
        let length = self.reach.min(most);
        let mut found = ENDS.iter().filter_map(|end| after_the_like(text, *end));
        let Some(begin) = found.next() else {
            return Vec::new();
        };
        let mut draft = Vec::with_capacity(length);
        for at in begin..begin + length {
            // What repeats goes on repeating.
            draft.push(match text.get(at) {
                Some(token) => *token,
                None => draft[at - text.len()],
            });
        }
        draft
    }

    /// So many tokens of a draft were right.
    pub(super) fn learn(&mut self, drafted: usize, right: usize) {
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

    /// Tokens that were drafted, and those that were right.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.drafted, self.accepted)
    }
}

/// Where the text goes on after what is like its end, and nearest to it.
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
        assert_eq!(drafts.draft(&[1, 2, 3, 4, 5, 9, 1, 2], 8), [3, 4, 5, 9]);
        assert_eq!(drafts.draft(&[1, 2, 3, 4, 5, 9, 1, 2], 2), [3, 4]);
        // The nearest of two, and the longest end first.
        assert_eq!(drafts.draft(&[1, 2, 3, 1, 2, 4, 1, 2], 1), [4]);
        assert_eq!(drafts.draft(&[7, 1, 2, 3, 1, 2, 4, 7, 1, 2], 1), [3]);
        // What repeats goes on.
        assert_eq!(drafts.draft(&[5, 6, 5, 6, 5, 6], 4), [5, 6, 5, 6]);
        assert!(drafts.draft(&[1, 2, 3, 4], 8).is_empty());
        assert!(drafts.draft(&[], 8).is_empty());
    }

    #[test]
    fn drafts_reach_as_far_as_they_were_right() {
        let mut drafts = Drafts::new(16);
        drafts.learn(4, 4);
        drafts.learn(8, 8);
        assert_eq!(drafts.reach, 16);
        drafts.learn(16, 2);
        assert_eq!(drafts.reach, 3);
        drafts.learn(3, 0);
        assert_eq!((drafts.reach, drafts.counts()), (1, (31, 14)));
        let none = Drafts::new(0);
        assert!(none.draft(&[5, 6, 5, 6], 4).is_empty());
    }
}
