//! Describes the tools that a model may call, for its chat template, and the forms in which models
//! write their calls.
//!
//! Models write calls differently, for example as JSON between `<tool_call>` and `</tool_call>`.
//! The chat template shows which form a model uses.

mod call_reader;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use call_reader::CallReader;

/// The marks around a call in the form of Hermes and Qwen.
const BEGIN: &str = "<tool_call>";
const END: &str = "</tool_call>";
/// The mark before calls in the form of Mistral's models, and the marks within a call.
const LIST: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";
/// Letters of a call's id, as Mistral's templates require.
const LISTED_ID_LETTERS: usize = 9;

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tool {
    /// The function's name.
    pub name: String,
    /// A description for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON schema of the arguments.
    pub parameters: Value,
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's id; the message with the result repeats it.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments, by name.
    pub arguments: Map<String, Value>,
}

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// Each call as `{"name", "arguments"}` between marks, as Hermes and Qwen do.
    Marked,
    /// One call as `{"name", "parameters"}` and nothing else, as Llama 3 does.
    Bare,
    /// After a mark, all calls in a list of `{"name", "arguments"}`, or each as a name and its
    /// arguments, as Mistral's models do.
    Listed,
    /// Each call in a channel of its own, as gpt-oss does ([`crate::answer`]).
    Channels,
}

impl CallForm {
    /// Returns the form that a chat template mentions, if souk supports it.
    #[must_use]
    pub fn from_template(template: &str) -> Option<Self> {
        if template.contains(BEGIN) {
            return Some(Self::Marked);
        }
        if template.contains(LIST) {
            return Some(Self::Listed);
        }
        if template.contains("<|channel|>") {
            return Some(Self::Channels);
        }
        let is_bare = template.contains("\"name\"") && template.contains("\"parameters\"");
        is_bare.then_some(Self::Bare)
    }

    /// Returns the text that precedes the JSON of a call to one of these tools, or none if the
    /// tools have different ones.
    #[must_use]
    pub fn call_opening(self, tools: &[Tool]) -> Option<String> {
        match self {
            Self::Marked => Some("<tool_call>\n".to_owned()),
            Self::Bare => Some(String::new()),
            Self::Listed => Some(LIST.to_owned()),
            Self::Channels => match tools {
                [tool] => Some(format!(
                    "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
                    tool.name
                )),
                _ => None,
            },
        }
    }

    /// Returns the id of a call from a number that no other call has.
    #[must_use]
    pub fn id(self, number: u64) -> String {
        match self {
            Self::Listed => {
                let digits = format!("{number:016x}");
                digits[digits.len() - LISTED_ID_LETTERS..].to_owned()
            }
            Self::Marked | Self::Bare | Self::Channels => format!("call_{number:016x}"),
        }
    }

    fn arguments_key(self) -> &'static str {
        match self {
            Self::Bare => "parameters",
            Self::Marked | Self::Listed | Self::Channels => "arguments",
        }
    }

    /// Returns the JSON schema of a call to one of these tools.
    #[must_use]
    pub fn call_schema(self, tools: &[Tool]) -> Value {
        if let (Self::Channels, [tool]) = (self, tools) {
            return tool.parameters.clone();
        }
        let (key, home) = match self {
            Self::Listed => (self.arguments_key(), "#/items"),
            _ => (self.arguments_key(), "#"),
        };
        let calls = tools.iter().enumerate().map(|(at, tool)| {
            let mut arguments = tool.parameters.clone();
            move_references(
                &mut arguments,
                &format!("{home}/anyOf/{at}/properties/{key}"),
            );
            json!({
                "type": "object", "additionalProperties": false, "required": ["name", key],
                "properties": { "name": { "const": tool.name }, key: arguments },
            })
        });
        let one = json!({ "anyOf": calls.collect::<Vec<_>>() });
        match self {
            Self::Listed => json!({ "type": "array", "minItems": 1, "items": one }),
            _ => one,
        }
    }
}

impl CallForm {
    /// Returns the JSON schema of a call to one of these tools, or of an answer.
    #[must_use]
    pub fn schema_or(self, tools: &[Tool], mut answer: Value) -> Value {
        let mut calls = self.call_schema(tools);
        move_references(&mut calls, "#/anyOf/0");
        move_references(&mut answer, "#/anyOf/1");
        json!({ "anyOf": [calls, answer] })
    }
}

/// Returns the description of a tool for templates, in OpenAI's format.
#[must_use]
pub fn describe_tool(tool: &Tool) -> Value {
    json!({ "type": "function", "function": tool })
}

/// Prefixes references in a schema with its new position in a larger schema.
fn move_references(schema: &mut Value, home: &str) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), &mut *value) {
                    ("$ref", Value::String(target)) if target.starts_with('#') => {
                        *target = format!("{home}{}", &target[1..]);
                    }
                    _ => move_references(value, home),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|it| move_references(it, home)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
