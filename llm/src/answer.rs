//! An answer as it comes: what the model thinks, what it says, and what it calls.
//!
//! Models were taught different forms of each. Which ones, their chat template says.

mod channels;
mod thoughts;

use crate::tools::{CallForm, CallReader, Tool, ToolCall};
use channels::ChannelReader;
use thoughts::ThoughtReader;

/// Marks that a tokeniser may leave out of texts, and that answers are read by.
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

/// How a model tells what it thinks from what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// It does not.
    Plain,
    /// It thinks first, between `<think>` and `</think>`.
    Thoughts,
    /// Each part is in a channel, as gpt-oss writes it.
    Channels,
}

impl AnswerForm {
    /// The form that a chat template speaks of.
    #[must_use]
    pub fn of(template: &str) -> Self {
        if template.contains(channels::CHANNEL) {
            Self::Channels
        } else if template.contains(thoughts::END) {
            Self::Thoughts
        } else {
            Self::Plain
        }
    }

    /// Marks that are part of an answer's text, where it may make calls.
    #[must_use]
    pub fn marks(self, calls: Option<CallForm>) -> &'static [&'static str] {
        match (self, calls) {
            (Self::Channels, _) => &channels::MARKS,
            (_, Some(_)) => &CALL_MARKS,
            (Self::Thoughts, None) => &THOUGHT_MARKS,
            (Self::Plain, None) => &[],
        }
    }
}

/// What is sure of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerPiece {
    /// What it thinks.
    pub thought: String,
    /// What it says.
    pub text: String,
}

impl AnswerPiece {
    /// Whether there is nothing in it.
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
    /// For answers after a prompt that ends so, which may call these tools in this form.
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

    /// Takes a piece; gives what of the answer is sure.
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

    /// What was held back, where the answer is over, and its calls. Ids are made of the number of
    /// a call.
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

/// Bytes of the longest ending of a text that one of these marks begins with.
fn doubtful(text: &str, marks: &[&str]) -> usize {
    let lengths = marks.iter().filter_map(|mark| {
        let most = (mark.len() - 1).min(text.len());
        let ends = |length: &usize| text.as_bytes().ends_with(&mark.as_bytes()[..*length]);
        (1..=most).rev().find(ends)
    });
    lengths.max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
