//! Reads the answer of a model that writes in channels, as gpt-oss does: the channel `analysis`
//! holds the thought, `final` the text, and a part that is addressed to a function
//! (`to=functions.NAME`) is a tool call.

use serde_json::Map;

use super::{AnswerPiece, partial_mark_length};
use crate::tools::{Tool, ToolCall};

pub(super) const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
/// Marks that end a part.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];
/// All marks; each is a token.
pub(super) const MARKS: [&str; 7] = [
    CHANNEL,
    MESSAGE,
    START,
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|constrain|>",
];
/// The text before the name of a function.
const RECIPIENT: &str = "to=functions.";

/// The kind of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// The reader has not seen the whole header yet.
    Header,
    Thought,
    Text,
    /// Arguments of a call to the named function.
    Call(String),
}

/// Reads the parts of an answer.
#[derive(Clone, Debug)]
pub(super) struct ChannelReader {
    names: Vec<String>,
    part: Part,
    pending_text: String,
    /// Calls so far: function names, and arguments as text.
    calls: Vec<(String, String)>,
}

impl ChannelReader {
    pub(super) fn new(tools: &[Tool]) -> Self {
        Self {
            names: tools.iter().map(|tool| tool.name.clone()).collect(),
            part: Part::Header,
            pending_text: String::new(),
            calls: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, piece: &str) -> AnswerPiece {
        self.pending_text.push_str(piece);
        let mut read = AnswerPiece::default();
        while self.advance(&mut read) {}
        read
    }

    /// Reads on and returns whether a part began or ended.
    fn advance(&mut self, read: &mut AnswerPiece) -> bool {
        if self.part == Part::Header {
            let Some((header, rest)) = self.pending_text.split_once(MESSAGE) else {
                return false;
            };
            self.part = part_of(header);
            self.pending_text = rest.to_owned();
            return true;
        }
        let ends = ENDS
            .iter()
            .filter_map(|end| self.pending_text.find(end).map(|at| (at, end.len())));
        let end = ends.min();
        let sure = end.map_or_else(
            || self.pending_text.len() - partial_mark_length(&self.pending_text, &ENDS),
            |it| it.0,
        );
        let rest = self.pending_text.split_off(sure + end.map_or(0, |it| it.1));
        let content = std::mem::replace(&mut self.pending_text, rest);
        self.append_content(&content[..sure], read);
        if end.is_some() {
            self.part = Part::Header;
        }
        end.is_some()
    }

    fn append_content(&mut self, content: &str, read: &mut AnswerPiece) {
        match &self.part {
            Part::Header => {}
            Part::Thought => read.thought.push_str(content),
            Part::Text => read.text.push_str(content),
            Part::Call(name) => {
                if self.calls.last().is_none_or(|(known, _)| known != name) {
                    self.calls.push((name.clone(), String::new()));
                }
                if let Some((_, arguments)) = self.calls.last_mut() {
                    arguments.push_str(content);
                }
            }
        }
    }

    /// Returns the text held back and the calls. A call must name one of the tools and have an
    /// object or nothing as its arguments; otherwise it becomes text.
    pub(super) fn finish(mut self, id: impl Fn(usize) -> String) -> (AnswerPiece, Vec<ToolCall>) {
        let mut read = AnswerPiece::default();
        let held = std::mem::take(&mut self.pending_text);
        match self.part {
            // If a model writes no channels, all it writes is text.
            Part::Header if !held.contains(CHANNEL) && !held.contains(START) => read.text = held,
            _ => self.append_content(&held, &mut read),
        }
        let mut calls = Vec::new();
        for (name, arguments) in self.calls {
            let parsed: Option<Map<_, _>> = match arguments.trim() {
                "" => Some(Map::new()),
                text => serde_json::from_str(text).ok(),
            };
            match parsed.filter(|_| self.names.contains(&name)) {
                Some(arguments) => calls.push(ToolCall {
                    id: id(calls.len()),
                    name,
                    arguments,
                }),
                None => read.text.push_str(&arguments),
            }
        }
        (read, calls)
    }
}

/// Returns the kind of part that a header announces.
fn part_of(header: &str) -> Part {
    if let Some((_, name)) = header.split_once(RECIPIENT) {
        let end = name.find(|letter: char| letter.is_whitespace() || letter == '<');
        return Part::Call(name[..end.unwrap_or(name.len())].to_owned());
    }
    let channel = header
        .rsplit_once(CHANNEL)
        .map_or("final", |(_, name)| name);
    match channel.trim() {
        "analysis" => Part::Thought,
        _ => Part::Text,
    }
}
