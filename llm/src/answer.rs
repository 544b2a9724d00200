//! Separates a model's answer, as it arrives, into its parts: the thought (reasoning), the text and
//! the tool calls.
//!
//! Models mark these parts differently, for example a thought by `<think>` and `</think>` or by a
//! channel. The chat template shows which form a model uses.

mod channels;
mod thoughts;

use crate::tools::{CallForm, CallReader, Tool, ToolCall};
use channels::ChannelReader;
use thoughts::ThoughtReader;

/// Marks that a tokeniser can leave out of texts, but that answer readers must see.
const THOUGHT_MARKS: [&str; 2] = [thoughts::BEGIN, thoughts::END];
const CALL_MARKS: [&str; 7] = [
    thoughts::BEGIN,
    thoughts::END,
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
];

/// How a model separates its thought from its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// The model writes no separate thought.
    Plain,
    /// The model thinks first, between `<think>` and `</think>`.
    Thoughts,
    /// The model writes each part in a channel, as gpt-oss does.
    Channels,
}

impl AnswerForm {
    /// Returns the form that a chat template mentions.
    #[must_use]
    pub fn from_template(template: &str) -> Self {
        if template.contains(channels::CHANNEL) {
            Self::Channels
        } else if template.contains(thoughts::END) {
            Self::Thoughts
        } else {
            Self::Plain
        }
    }

    /// Returns the marks that must stay in an answer's text, given the form of the calls it can
    /// make.
    #[must_use]
    pub fn marks_to_keep(self, calls: Option<CallForm>) -> &'static [&'static str] {
        match (self, calls) {
            (Self::Channels, _) => &channels::MARKS,
            (_, Some(_)) => &CALL_MARKS,
            (Self::Thoughts, None) => &THOUGHT_MARKS,
            (Self::Plain, None) => &[],
        }
    }
}

/// The parts of an answer that are certain so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerPiece {
    /// New text of the model's thought.
    pub thought: String,
    /// New text of the answer itself.
    pub text: String,
}

impl AnswerPiece {
    /// Returns whether both parts are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.thought.is_empty() && self.text.is_empty()
    }
}

/// Reads an answer piece by piece.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    thoughts: Option<ThoughtReader>,
    channels: Option<ChannelReader>,
    calls: Option<CallReader>,
}

impl AnswerReader {
    /// Creates a reader for the answer to this prompt. The model may call these tools in this form.
    #[must_use]
    pub fn new(form: AnswerForm, prompt: &str, calls: Option<(CallForm, &[Tool])>) -> Self {
        let tools = calls.map_or(&[][..], |(_, tools)| tools);
        let is_in_channels = form == AnswerForm::Channels;
        let calls = calls.filter(|(form, _)| *form != CallForm::Channels);
        Self {
            thoughts: (form == AnswerForm::Thoughts).then(|| ThoughtReader::new(prompt)),
            channels: is_in_channels.then(|| ChannelReader::new(tools)),
            calls: calls.map(|(form, tools)| CallReader::new(form, tools)),
        }
    }

    /// Adds a piece and returns the parts of the answer that are certain.
    pub fn push(&mut self, piece: &str) -> AnswerPiece {
        if let Some(channels) = &mut self.channels {
            return channels.push(piece);
        }
        let mut read = match &mut self.thoughts {
            Some(thoughts) => thoughts.push(piece),
            None => AnswerPiece {
                text: piece.to_owned(),
                ..AnswerPiece::default()
            },
        };
        if let Some(calls) = &mut self.calls {
            read.text = calls.push(&read.text);
        }
        read
    }

    /// Ends the answer and returns the text held back so far and the calls. `id` makes the id of
    /// each call from its number.
    pub fn finish(self, id: impl Fn(usize) -> String) -> (AnswerPiece, Vec<ToolCall>) {
        if let Some(channels) = self.channels {
            return channels.finish(id);
        }
        let mut read = self
            .thoughts
            .map_or_else(AnswerPiece::default, ThoughtReader::finish);
        let Some(mut calls) = self.calls else {
            return (read, Vec::new());
        };
        read.text = calls.push(&read.text);
        match calls.finish(id) {
            Ok(calls) => (read, calls),
            Err(rest) => {
                read.text.push_str(&rest);
                (read, Vec::new())
            }
        }
    }
}

/// Returns the length in bytes of the text's longest ending that begins one of these marks.
fn partial_mark_length(text: &str, marks: &[&str]) -> usize {
    let lengths = marks.iter().filter_map(|mark| {
        let most = (mark.len() - 1).min(text.len());
        let ends = |length: &usize| text.as_bytes().ends_with(&mark.as_bytes()[..*length]);
        (1..=most).rev().find(ends)
    });
    lengths.max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
