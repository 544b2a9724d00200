//! Separates the thought that a model writes between `<think>` and `</think>` from the text of its
//! answer, and drops the white space around the thought.

use super::{AnswerPiece, partial_mark_length};

pub(super) const BEGIN: &str = "<think>";
pub(super) const END: &str = "</think>";

/// The reader's position in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThoughtStage {
    /// The reader has seen only space.
    Beginning,
    /// In a thought, after its mark and only space.
    ThoughtBegun,
    Thought,
    /// After a thought and only space.
    AfterThought,
    Text,
}

/// Reads thoughts.
#[derive(Clone, Debug)]
pub(super) struct ThoughtReader {
    stage: ThoughtStage,
    pending_text: String,
}

impl ThoughtReader {
    /// Creates a reader. The prompt can have begun the thought, or ended it.
    pub(super) fn new(prompt: &str) -> Self {
        let prompt = prompt.trim_end();
        let stage = match (prompt.ends_with(BEGIN), prompt.ends_with(END)) {
            (true, _) => ThoughtStage::ThoughtBegun,
            (false, true) => ThoughtStage::AfterThought,
            (false, false) => ThoughtStage::Beginning,
        };
        Self {
            stage,
            pending_text: String::new(),
        }
    }

    pub(super) fn push(&mut self, piece: &str) -> AnswerPiece {
        self.pending_text.push_str(piece);
        let mut read = AnswerPiece::default();
        while self.advance(&mut read) {}
        read
    }

    /// Reads on and returns whether the state changed.
    fn advance(&mut self, read: &mut AnswerPiece) -> bool {
        let begun = self.pending_text.trim_start();
        match self.stage {
            ThoughtStage::Beginning => {
                if let Some(rest) = begun.strip_prefix(BEGIN) {
                    self.pending_text = rest.to_owned();
                    self.stage = ThoughtStage::ThoughtBegun;
                    return true;
                }
                let is_text = !BEGIN.starts_with(begun);
                if is_text {
                    self.stage = ThoughtStage::Text;
                }
                is_text
            }
            ThoughtStage::ThoughtBegun | ThoughtStage::AfterThought => {
                self.pending_text = begun.to_owned();
                let is_begun = !self.pending_text.is_empty();
                if is_begun {
                    self.stage = match self.stage {
                        ThoughtStage::ThoughtBegun => ThoughtStage::Thought,
                        _ => ThoughtStage::Text,
                    };
                }
                is_begun
            }
            ThoughtStage::Thought => match self.pending_text.split_once(END) {
                Some((thought, rest)) => {
                    read.thought.push_str(thought.trim_end());
                    self.pending_text = rest.to_owned();
                    self.stage = ThoughtStage::AfterThought;
                    true
                }
                None => {
                    let sure =
                        self.pending_text.len() - partial_mark_length(&self.pending_text, &[END]);
                    let sure = self.pending_text[..sure].trim_end().len();
                    let rest = self.pending_text.split_off(sure);
                    read.thought
                        .push_str(&std::mem::replace(&mut self.pending_text, rest));
                    false
                }
            },
            ThoughtStage::Text => {
                read.text.push_str(&std::mem::take(&mut self.pending_text));
                false
            }
        }
    }

    /// Returns the text held back. A thought without an end mark is still a thought.
    pub(super) fn finish(self) -> AnswerPiece {
        let mut read = AnswerPiece::default();
        match self.stage {
            ThoughtStage::ThoughtBegun | ThoughtStage::Thought => {
                self.pending_text.trim_end().clone_into(&mut read.thought);
            }
            ThoughtStage::Beginning | ThoughtStage::AfterThought | ThoughtStage::Text => {
                read.text = self.pending_text
            }
        }
        read
    }
}
