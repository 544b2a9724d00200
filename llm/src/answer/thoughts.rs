//! Reads the thought that a model writes between marks before it answers, without the space around
//! it.

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
    place: ThoughtStage,
    held: String,
}

impl ThoughtReader {
    /// Creates a reader. The prompt can have begun the thought, or ended it.
    pub(super) fn new(prompt: &str) -> Self {
        let prompt = prompt.trim_end();
        let place = match (prompt.ends_with(BEGIN), prompt.ends_with(END)) {
            (true, _) => ThoughtStage::ThoughtBegun,
            (false, true) => ThoughtStage::AfterThought,
            (false, false) => ThoughtStage::Beginning,
        };
        Self {
            place,
            held: String::new(),
        }
    }

    pub(super) fn push(&mut self, piece: &str) -> AnswerPiece {
        self.held.push_str(piece);
        let mut read = AnswerPiece::default();
        while self.advance(&mut read) {}
        read
    }

    /// Reads on and returns whether the state changed.
    fn advance(&mut self, read: &mut AnswerPiece) -> bool {
        let begun = self.held.trim_start();
        match self.place {
            ThoughtStage::Beginning => {
                if let Some(rest) = begun.strip_prefix(BEGIN) {
                    self.held = rest.to_owned();
                    self.place = ThoughtStage::ThoughtBegun;
                    return true;
                }
                let is_text = !BEGIN.starts_with(begun);
                if is_text {
                    self.place = ThoughtStage::Text;
                }
                is_text
            }
            ThoughtStage::ThoughtBegun | ThoughtStage::AfterThought => {
                self.held = begun.to_owned();
                let is_begun = !self.held.is_empty();
                if is_begun {
                    self.place = match self.place {
                        ThoughtStage::ThoughtBegun => ThoughtStage::Thought,
                        _ => ThoughtStage::Text,
                    };
                }
                is_begun
            }
            ThoughtStage::Thought => match self.held.split_once(END) {
                Some((thought, rest)) => {
                    read.thought.push_str(thought.trim_end());
                    self.held = rest.to_owned();
                    self.place = ThoughtStage::AfterThought;
                    true
                }
                None => {
                    let sure = self.held.len() - partial_mark_length(&self.held, &[END]);
                    let sure = self.held[..sure].trim_end().len();
                    let rest = self.held.split_off(sure);
                    read.thought
                        .push_str(&std::mem::replace(&mut self.held, rest));
                    false
                }
            },
            ThoughtStage::Text => {
                read.text.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }

    /// Returns the text held back. A thought without an end mark is still a thought.
    pub(super) fn finish(self) -> AnswerPiece {
        let mut read = AnswerPiece::default();
        match self.place {
            ThoughtStage::ThoughtBegun | ThoughtStage::Thought => {
                self.held.trim_end().clone_into(&mut read.thought);
            }
            ThoughtStage::Beginning | ThoughtStage::AfterThought | ThoughtStage::Text => {
                read.text = self.held
            }
        }
        read
    }
}
