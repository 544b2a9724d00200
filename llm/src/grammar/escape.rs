//! Lets a text that begins with a given mark (such as the one that begins a tool call) leave its
//! grammar. `Vocabulary::or_after` adds such an escape. The escape follows the text token by token
//! until it is clear whether the text begins with the mark.

use std::sync::Arc;

/// How a text relates to the mark and the grammar so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkProgress {
    /// The text may still match the grammar, or begin with the mark, of which it has this many
    /// bytes.
    Both(usize),
    /// The text has this many bytes of the mark, and does not match the grammar.
    Mark(usize),
    /// The text matches the grammar, not the mark.
    Grammar,
    /// The text began with the mark.
    Free,
}

/// The mark, and the state of a text.
#[derive(Clone)]
pub(super) struct Escape {
    mark: Arc<[u8]>,
    /// The mark as one token, which may have no bytes.
    token: Option<u32>,
    spellings: Arc<[Vec<u8>]>,
    progress: MarkProgress,
}

impl Escape {
    pub(super) fn new(mark: &str, token: Option<u32>, spellings: Arc<[Vec<u8>]>) -> Self {
        Self {
            mark: mark.as_bytes().into(),
            token,
            spellings,
            progress: MarkProgress::Both(0),
        }
    }

    /// Returns whether the text may match the grammar.
    pub(super) fn holds_grammar(&self) -> bool {
        matches!(self.progress, MarkProgress::Both(_) | MarkProgress::Grammar)
    }

    /// Returns whether any token is allowed.
    pub(super) fn is_free(&self) -> bool {
        self.progress == MarkProgress::Free
    }

    /// Returns whether a token outside the grammar is allowed.
    pub(super) fn can_accept(&self, token: u32) -> bool {
        self.is_free() || self.mark_bytes_after(token).is_some()
    }

    /// Returns how many bytes of the mark the text has after this token.
    fn mark_bytes_after(&self, token: u32) -> Option<usize> {
        let at = match self.progress {
            MarkProgress::Both(at) | MarkProgress::Mark(at) => at,
            MarkProgress::Grammar | MarkProgress::Free => return None,
        };
        if at == 0 && self.token == Some(token) {
            return Some(self.mark.len());
        }
        let bytes = self.spellings.get(token as usize)?;
        let rest = &self.mark[at..];
        let is_on = !bytes.is_empty() && (rest.starts_with(bytes) || bytes.starts_with(rest));
        is_on.then_some(at + bytes.len())
    }

    /// Continues with a token and returns whether the text may still begin with the mark.
    pub(super) fn push(&mut self, token: u32, is_of_grammar: bool) -> bool {
        let reached = self.mark_bytes_after(token);
        self.progress = match (reached, is_of_grammar) {
            (Some(at), false) if at >= self.mark.len() => MarkProgress::Free,
            (Some(at), false) => MarkProgress::Mark(at),
            (Some(at), true) if at < self.mark.len() => MarkProgress::Both(at),
            (_, true) => MarkProgress::Grammar,
            (None, false) => self.progress,
        };
        reached.is_some()
    }
}
