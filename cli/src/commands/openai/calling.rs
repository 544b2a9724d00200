//! An answer that may call tools: what the model is told, and how its calls are read.

use std::hash::{BuildHasher, RandomState};

use serde_json::{Value, json};
use souk_llm::chat::Message;
use souk_llm::tools::{CallForm, CallReader, ToolCall};

use super::question::ToolUse;
use super::refusal::Refusal;
use crate::commands::texts::{TextForm, Voice};

/// An answer that may call tools.
pub struct Calling<'a> {
    voice: &'a Voice,
    wanted: &'a ToolUse,
    form: CallForm,
}

impl<'a> Calling<'a> {
    /// Refuses a model that writes calls in no form that is known.
    pub fn new(voice: &'a Voice, wanted: &'a ToolUse) -> Result<Self, Refusal> {
        let form = CallForm::of(&voice.template()?.source);
        let refused = || Refusal::field("tools", "the model was taught no calls of a known form");
        Ok(Self {
            voice,
            wanted,
            form: form.ok_or_else(refused)?,
        })
    }

    /// What the answer begins with, where it has to be a call.
    fn opening(&self) -> &'static str {
        match self.wanted.forced.is_empty() {
            true => "",
            false => self.form.opening(),
        }
    }

    /// The tokens of a conversation with the tools in it.
    pub fn prompt(&self, messages: &[Message]) -> Result<Vec<u32>, Refusal> {
        let tools = &self.wanted.tools;
        Ok(self
            .voice
            .conversation_with(messages, tools, self.opening())?)
    }

    /// What the rest of the answer has to be.
    pub fn form(&self) -> Option<TextForm> {
        let forced = &self.wanted.forced;
        (!forced.is_empty()).then(|| TextForm::Schema(self.form.schema(forced)))
    }

    /// What reads the calls.
    pub fn reader(self) -> AnswerReader {
        let mut calls = CallReader::new(self.form, &self.wanted.tools);
        calls.push(self.opening());
        AnswerReader {
            calls,
            calls_max: if self.wanted.is_parallel {
                usize::MAX
            } else {
                1
            },
        }
    }
}

/// Reads the calls of an answer.
pub struct AnswerReader {
    calls: CallReader,
    calls_max: usize,
}

impl AnswerReader {
    /// What of a piece is text for sure.
    pub fn push(&mut self, piece: &str) -> String {
        self.calls.push(piece)
    }

    /// What the rest of the answer is.
    pub fn finish(self) -> AnswerEnd {
        let seed = RandomState::new().hash_one("call");
        let id = |at: usize| format!("call_{:016x}", seed.wrapping_add(at as u64));
        match self.calls.finish(id) {
            Ok(mut calls) => {
                calls.truncate(self.calls_max);
                AnswerEnd::Calls(calls.iter().enumerate().map(told).collect())
            }
            Err(text) => AnswerEnd::Text(text),
        }
    }
}

/// What an answer ends with.
pub enum AnswerEnd {
    /// More text, or none.
    Text(String),
    /// Calls as OpenAI has them.
    Calls(Vec<Value>),
}

fn told((at, call): (usize, &ToolCall)) -> Value {
    let arguments = Value::Object(call.arguments.clone()).to_string();
    json!({
        "index": at, "id": call.id, "type": "function",
        "function": { "name": call.name, "arguments": arguments },
    })
}
