//! A way out of a grammar: a text that begins with a mark is not held to it.

use std::sync::Arc;

/// How far a text is on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkProgress {
    /// It may still be of the grammar, or begin with the mark, so many bytes of which it has.
    Both(usize),
    /// It has so many bytes of the mark, and is not of the grammar.
    Mark(usize),
    /// It is of the grammar.
    Grammar,
    /// It began with the mark.
    Free,
}

/// A mark, and what is known of a text.
#[derive(Clone)]
pub(super) struct Escape {
    mark: Arc<[u8]>,
    /// The mark as one token, which may have no bytes.
    token: Option<u32>,
    spellings: Arc<[Vec<u8>]>,
    way: MarkProgress,
}

impl Escape {
    pub(super) fn new(mark: &str, token: Option<u32>, spellings: Arc<[Vec<u8>]>) -> Self {
        Self {
            mark: mark.as_bytes().into(),
            token,
            spellings,
            way: MarkProgress::Both(0),
        }
    }

    /// Whether the text may be of the grammar.
    pub(super) fn holds_grammar(&self) -> bool {
        matches!(self.way, MarkProgress::Both(_) | MarkProgress::Grammar)
    }

    /// Whether whatever comes is allowed.
    pub(super) fn is_free(&self) -> bool {
        self.way == MarkProgress::Free
    }

    /// Whether a token may come that is not of the grammar.
    pub(super) fn allows(&self, token: u32) -> bool {
        self.is_free() || self.reached(token).is_some()
    }

    /// The bytes of the mark that the text has with this token.
    fn reached(&self, token: u32) -> Option<usize> {
        let at = match self.way {
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

    /// Goes on with a token; whether the text may still begin with the mark.
    pub(super) fn push(&mut self, token: u32, is_of_grammar: bool) -> bool {
        let reached = self.reached(token);
        self.way = match (reached, is_of_grammar) {
            (Some(at), false) if at >= self.mark.len() => MarkProgress::Free,
            (Some(at), false) => MarkProgress::Mark(at),
            (Some(at), true) if at < self.mark.len() => MarkProgress::Both(at),
            (_, true) => MarkProgress::Grammar,
            (None, false) => self.way,
        };
        reached.is_some()
    }
}
