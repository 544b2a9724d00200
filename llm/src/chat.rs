//! Chat templates: what a model was taught a conversation looks like.
//!
//! A template is a program of whoever made the model. It runs in a language without files or
//! network, and with so much fuel, which pays for instructions and for bytes. The language is
//! Jinja as Hugging Face's tools have it, so that a conversation is byte for byte theirs.

mod clock;
mod json;
mod methods;
mod source;
mod sums;

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::{io, thread};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use thiserror::Error as ThisError;

use crate::tools::{self, Tool, ToolCall};

/// Fuel of a template, and more of it for each message: the longest that were seen take some
/// thousands a message. A unit is an instruction, or 64 bytes: 64 MB of text at most.
const FUEL: u64 = 250_000;
const MESSAGE_FUEL: u64 = 5_000;
const FUEL_MAX: u64 = 1_000_000;

/// The stack of a template. Values may lie within each other as deep as its fuel lasts, and some
/// hundred bytes of stack go for each; what is not used takes no memory.
const STACK_BYTES: usize = 512 << 20;

/// Bytes of a template at most: eight times those of the longest that was seen.
const SOURCE_BYTES_MAX: usize = 256 << 10;

/// A message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`; what else, the template says.
    pub role: String,
    /// Its text.
    pub content: String,
    /// Who says it: one of several users, or the function of a result.
    pub name: Option<String>,
    /// What an assistant thought before it said this.
    pub reasoning: Option<String>,
    /// The calls that it makes.
    pub calls: Vec<ToolCall>,
    /// The id of the call that it answers.
    pub call_id: Option<String>,
}

/// What a template writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conversation<'a> {
    /// What was said.
    pub messages: &'a [Message],
    /// What may be called.
    pub tools: &'a [Tool],
    /// What is to be looked things up in: objects as the template wants them.
    pub documents: &'a [serde_json::Value],
    /// What else the template is given, by name.
    pub values: Option<&'a Map<String, serde_json::Value>>,
    /// The time in seconds of Unix time, for a template that says the date: that of UTC.
    pub now: u64,
}

/// A template, and the marks of the model's tokeniser.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTemplate {
    /// Its source, in Jinja.
    pub source: String,
    /// Another one for conversations with tools, where the model has one.
    pub tool_source: Option<String>,
    /// Marks by what templates call them, such as `bos_token`.
    pub marks: BTreeMap<String, String>,
}

/// Why a conversation could not be written.
#[derive(Debug, ThisError)]
pub enum ChatError {
    /// The template is none, refuses the messages, or does not end.
    #[error("the model's chat template fails: {0:#}")]
    Template(#[from] Error),
    /// There is no thread for it.
    #[error("the model's chat template cannot be run: {0}")]
    Thread(io::Error),
    /// The template is longer than any that is known.
    #[error("the model's chat template has {0} bytes, at most {SOURCE_BYTES_MAX} are read")]
    Size(usize),
    /// The template says the same with tools and without.
    #[error("the model was not taught to call tools: its chat template does not know them")]
    Tools,
}

impl ChatTemplate {
    /// The source for conversations with tools.
    #[must_use]
    pub fn source_with_tools(&self) -> &str {
        self.tool_source.as_ref().unwrap_or(&self.source)
    }

    /// The text of a conversation, up to where the model is to answer, by calls of these tools if
    /// it likes.
    ///
    /// # Errors
    /// [`ChatError`].
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, ChatError> {
        let source = match conversation.tools {
            [] => &self.source,
            _ => self.source_with_tools(),
        };
        if source.len() > SOURCE_BYTES_MAX {
            return Err(ChatError::Size(source.len()));
        }
        let source = source::adapted(source);
        thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            let work = || self.text_with_tools(&source, conversation);
            let running = thread
                .spawn_scoped(scope, work)
                .map_err(ChatError::Thread)?;
            running.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// The text, where it is another one without the tools.
    fn text_with_tools(
        &self,
        source: &str,
        conversation: &Conversation<'_>,
    ) -> Result<String, ChatError> {
        let text = self.text(source, conversation)?;
        let without = Conversation {
            tools: &[],
            ..*conversation
        };
        let is_known = conversation.tools.is_empty()
            || self.text(source, &without).ok().as_ref() != Some(&text);
        is_known.then_some(text).ok_or(ChatError::Tools)
    }

    fn text(&self, source: &str, conversation: &Conversation<'_>) -> Result<String, Error> {
        let Conversation {
            messages,
            tools,
            documents,
            values,
            now,
        } = *conversation;
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        environment.set_syntax(syntax.trim_blocks(true).lstrip_blocks(true).build()?);
        let fuel = FUEL + MESSAGE_FUEL * messages.len() as u64;
        environment.set_fuel(Some(fuel.min(FUEL_MAX)));
        environment.set_unknown_method_callback(methods::call);
        environment.add_function("raise_exception", refused);
        environment.add_function("strftime_now", move |format: String| {
            clock::formatted(now, &format)
        });
        environment.add_filter("tojson", json::text);
        environment.add_filter("wordcount", methods::count_words);
        sums::count_in(&mut environment);
        environment.add_template("chat", source)?;
        // As Hugging Face's tools: what is not given is none.
        let none_or = |all: Vec<serde_json::Value>| match all.is_empty() {
            true => Value::from(()),
            false => Value::from(Serde(all)),
        };
        let given = context! {
            messages => messages.iter().map(value).collect::<Vec<Value>>(),
            tools => none_or(tools.iter().map(tools::described).collect()),
            documents => none_or(documents.to_vec()),
        };
        let empty = Map::new();
        let values = Value::from(Serde(values.unwrap_or(&empty)));
        let otherwise = context! { add_generation_prompt => true };
        let marks = Value::from(Serde(&self.marks));
        let all = context! { ..given, ..values, ..otherwise, ..marks };
        environment.get_template("chat")?.render(all)
    }
}

/// A message as templates read it: the arguments of a call are an object, not a text.
fn value(message: &Message) -> Value {
    let mut value = serde_json::json!({ "role": message.role, "content": message.content });
    let more = [
        ("name", &message.name),
        ("reasoning_content", &message.reasoning),
        ("tool_call_id", &message.call_id),
    ];
    for (name, text) in more {
        if let Some(text) = text {
            value[name] = text.as_str().into();
        }
    }
    if !message.calls.is_empty() {
        let calls = message.calls.iter().map(|call| {
            let function = serde_json::json!({ "name": call.name, "arguments": call.arguments });
            serde_json::json!({ "id": call.id, "type": "function", "function": function })
        });
        value["tool_calls"] = calls.collect();
    }
    Value::from(Serde(value))
}

fn refused(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

#[cfg(test)]
mod tests;
