//! Formats conversations with the chat template that a model ships.
//!
//! A template is a program by the model's makers, in Jinja as Hugging Face's tools implement it, so
//! that the formatted text equals theirs byte for byte. It has no access to files or the network,
//! and its fuel, which pays for instructions and bytes, is limited.

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

/// Base fuel of a template; each message adds more. The most expensive known templates use a few
/// thousand per message. One unit pays for an instruction or 64 bytes, so the maximum allows 64 MB
/// of text.
const FUEL: u64 = 250_000;
const MESSAGE_FUEL: u64 = 5_000;
const FUEL_MAX: u64 = 1_000_000;

/// Bytes of stack for a template. Values can nest as deep as its fuel lasts, and each level needs
/// some hundred bytes. Unused stack takes no memory.
const STACK_BYTES: usize = 512 << 20;

/// Maximum bytes of a template: eight times the longest known one.
const SOURCE_BYTES_MAX: usize = 256 << 10;

/// A message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`. The template decides about other roles.
    pub role: String,
    /// The message's text.
    pub content: String,
    /// The author: one of several users, or the function that returned this result.
    pub name: Option<String>,
    /// The assistant's reasoning before this message.
    pub reasoning: Option<String>,
    /// Tool calls in this message.
    pub calls: Vec<ToolCall>,
    /// The id of the call that this message answers.
    pub call_id: Option<String>,
}

/// The input of a template.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conversation<'a> {
    /// The messages so far.
    pub messages: &'a [Message],
    /// The tools that the model may call.
    pub tools: &'a [Tool],
    /// Documents for the model to search. They must be objects as the template expects them.
    pub documents: &'a [serde_json::Value],
    /// Further values for the template, by name.
    pub values: Option<&'a Map<String, serde_json::Value>>,
    /// Unix time in seconds, for a template that prints the date (in UTC).
    pub now: u64,
}

/// A template, and the special tokens of the model's tokeniser.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTemplate {
    /// Jinja source.
    pub source: String,
    /// A separate source for conversations with tools, if the model has one.
    pub tool_source: Option<String>,
    /// Special tokens by their names in templates, such as `bos_token`.
    #[serde(rename = "marks")]
    pub special_tokens: BTreeMap<String, String>,
}

/// Why a conversation could not be rendered.
#[derive(Debug, ThisError)]
pub enum ChatError {
    /// The template is invalid, refuses the messages, or does not end.
    #[error("the model's chat template fails: {0:#}")]
    Template(#[from] Error),
    /// The thread for the template could not be started.
    #[error("the model's chat template cannot be run: {0}")]
    Thread(io::Error),
    /// The template is longer than the limit.
    #[error("the model's chat template is {0} bytes long; the limit is {SOURCE_BYTES_MAX}")]
    Size(usize),
    /// The template renders the same text with tools and without.
    #[error("the model cannot call tools: its chat template does not support them")]
    Tools,
}

impl ChatTemplate {
    /// Returns the source for conversations with tools.
    #[must_use]
    pub fn source_with_tools(&self) -> &str {
        self.tool_source.as_ref().unwrap_or(&self.source)
    }

    /// Renders the conversation up to the point where the model answers. The model may call the
    /// conversation's tools.
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
        let source = source::adapt_source(source);
        thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            let render = || self.render_checking_tools(&source, conversation);
            let rendering = thread
                .spawn_scoped(scope, render)
                .map_err(ChatError::Thread)?;
            rendering
                .join()
                .unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Renders the conversation. If it has tools, checks that the text shows them: a template that
    /// ignores tools gives the same text without them.
    fn render_checking_tools(
        &self,
        source: &str,
        conversation: &Conversation<'_>,
    ) -> Result<String, ChatError> {
        let text = self.render_source(source, conversation)?;
        let without_tools = Conversation {
            tools: &[],
            ..*conversation
        };
        let shows_tools =
            || self.render_source(source, &without_tools).ok().as_ref() != Some(&text);
        match conversation.tools.is_empty() || shows_tools() {
            true => Ok(text),
            false => Err(ChatError::Tools),
        }
    }

    fn render_source(
        &self,
        source: &str,
        conversation: &Conversation<'_>,
    ) -> Result<String, Error> {
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
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: String| {
            clock::format_time(now, &format)
        });
        environment.add_filter("tojson", json::format_json);
        environment.add_filter("wordcount", methods::count_words);
        sums::charge_list_sums(&mut environment);
        environment.add_template("chat", source)?;
        // As in Hugging Face's tools, an empty list is none.
        let list_or_none = |list: Vec<serde_json::Value>| match list.is_empty() {
            true => Value::from(()),
            false => Value::from(Serde(list)),
        };
        let inputs = context! {
            messages => messages.iter().map(message_value).collect::<Vec<Value>>(),
            tools => list_or_none(tools.iter().map(tools::describe_tool).collect()),
            documents => list_or_none(documents.to_vec()),
        };
        let empty = Map::new();
        let values = Value::from(Serde(values.unwrap_or(&empty)));
        let defaults = context! { add_generation_prompt => true };
        let special_tokens = Value::from(Serde(&self.special_tokens));
        // If two have the same name, the first one wins.
        let context = context! { ..inputs, ..values, ..defaults, ..special_tokens };
        environment.get_template("chat")?.render(context)
    }
}

/// Converts a message for templates: the arguments of a call are an object, not a string.
fn message_value(message: &Message) -> Value {
    let mut value = serde_json::json!({ "role": message.role, "content": message.content });
    let optional_fields = [
        ("name", &message.name),
        ("reasoning_content", &message.reasoning),
        ("tool_call_id", &message.call_id),
    ];
    for (name, text) in optional_fields {
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

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

#[cfg(test)]
mod tests;
